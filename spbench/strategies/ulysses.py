"""DeepSpeed-Ulysses (Jacobs et al., 2023): swap the sharded axis for sharded heads.

One axis stays sharded. Where a sublayer attends along it, one all-to-all carries q, k and v
together: the axis becomes whole and the heads are shared out; a second one brings the result
back (``layers/heads.py``). Attention along any other axis is local and silent.

    q, k, v   (B, T/N, S, Z, D)   --switch-->   (B, T, S, Z/N, D)
    out       (B, T, S, Z/N, D)   --switch-->   (B, T/N, S, Z, D)

Each of these four tensors sends f M / N; k and v less where they have fewer heads, each of which
goes to every rank that has queries of it: on more ranks than key heads as copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, final

from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.layers.attention import Scores
from spbench.layers.head_chunks import attend_in_chunks, head_chunks
from spbench.layers.heads import attend_by_heads, traffic_between_by_heads, traffic_by_heads
from spbench.strategies.fixed_axis import FixedAxis, FixedPlan, chunks_of, padding_in_words
from spbench.strategies.refusals import chunks_misfit, heads_why_not
from spbench.workload.block import Attention, Sublayer
from spbench.workload.sharding import Shard, Sizes
from spbench.workload.strands import Between
from spbench.workload.traffic import Traffic, Transfer
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class UlyssesPlan(FixedPlan):
    """Two all-to-alls around each attention along the sharded axis."""

    strategy: Ulysses

    def exchanges(self, is_attended: bool) -> bool:
        """Whether an attention sends something; ``is_attended``: it goes along the sharded axis."""
        return is_attended or self.strategy.every_attention

    @property
    def notes(self) -> str:
        if self.head_chunks > 1:
            return f"heads go in {self.head_chunks} chunks"
        if self.strategy.chunks.isdecimal() and self.strategy.chunks != "1":
            return f"heads go whole: {self._why_whole}"
        return padding_in_words(self.workload, self.ranks, self.strategy.padded)

    @property
    def _why_whole(self) -> str:
        if self.workload.checkpointing == "selective":
            return "an attention that is recomputed would send chunks home twice"
        has = f"{self.workload.key_heads} key heads on {self.ranks} ranks"
        return f"{has} are not as many on each, or but one"

    @cached_property
    def head_chunks(self) -> int:
        """Chunks of heads that go one after the other."""
        work = self.workload
        qkv_bytes = work.query_bytes + work.key_value_bytes
        most = chunks_of(self.strategy.chunks, qkv_bytes, self.ranks)
        # Attention that is computed again stops at its last kernel: by then the chunks before it
        # would be on their way home once more.
        return head_chunks(work, self.ranks, most) if work.checkpointing != "selective" else 1

    def sublayer_traffic(self, sublayer: Sublayer, axis: str) -> Traffic:
        if isinstance(sublayer, Attention) and self.exchanges(axis in sublayer.axes):
            pads = self.strategy.padded
            return traffic_by_heads(sublayer, self.workload, axis, self.held(axis), pads)
        return super().sublayer_traffic(sublayer, axis)

    def traffic_between(self, one: Between, queries: Sizes, keys: Sizes) -> Traffic:
        return traffic_between_by_heads(one, queries, keys, self.strategy.padded)

    def sent_by_attend(self, sublayer: Sublayer, axis: str) -> list[Transfer]:
        sent = super().sent_by_attend(sublayer, axis)
        if isinstance(sublayer, Attention) and self.exchanges(axis in sublayer.axes):
            return sent[:-1]  # backward of the result's way home needs nothing of forward
        return sent

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        if self.exchanges(shard.dim in scores.dims):
            if self.head_chunks > 1 and comm.size > 1 and scores.queries is None:
                return attend_in_chunks(q, k, v, scores, shard, comm, self.head_chunks)
            return attend_by_heads(q, k, v, scores, shard, comm, pads=self.strategy.padded)
        return super().attend(q, k, v, scores, shard, comm)


@final
@dataclass(frozen=True, kw_only=True)
class Ulysses(FixedAxis):
    """With ``every_attention`` it communicates in every attention, as a paper's baseline did;
    ``padded``: heads that do not divide are padded, where otherwise ranks have unequal numbers.
    They go in so many ``chunks``, or fewer: one is under way while another is attended to."""

    forms: ClassVar[tuple[str, ...]] = ("every-attention", "padded", "chunks=2")
    plan: ClassVar[type[UlyssesPlan]] = UlyssesPlan
    every_attention: bool = False
    padded: bool = False
    chunks: str = "1"

    @property
    def beside_axes(self) -> Ulysses:
        return self.with_any_axis

    def misfit(self, workload: Workload) -> str | None:
        if self.padded and self.chunks != "1":
            return "heads that are padded do not go in chunks; leave out padded, or chunks"
        return chunks_misfit(self.chunks) or super().misfit(workload)

    def why_not_along(self, axis: str, workload: Workload, ranks: int) -> str | None:
        # Only an attention along the sharded axis shares heads out, unless every one does.
        attended = any(
            axis in attention.axes or self.every_attention for attention in workload.attentions
        )
        too_few = heads_why_not(workload, ranks) if attended else None
        return too_few or super().why_not_along(axis, workload, ranks)
