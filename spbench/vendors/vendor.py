"""What the adapters of other packages' attention share: the layout and the limits.

An adapter names its package, says in data what the package does not serve, calls its entry point in
``exchange``, and predicts by the published formula what that sends. It is a strategy like others:
in the same model, under the same gate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib.util import find_spec
from math import lcm
from typing import ClassVar, final

from torch import Tensor
from torch import distributed as dist

from spbench.comm.collectives import Collectives
from spbench.comm.compiler import never_compiled
from spbench.layers.attention import Folding, Scores
from spbench.layers.kernels import kernel
from spbench.strategies.fixed_axis import FixedPlan
from spbench.strategies.refusals import blocks_why_not
from spbench.text import counted, listed
from spbench.vendors.package import Packaged, group_of
from spbench.workload.block import Attention, Sublayer
from spbench.workload.fields import DTYPE_BYTES
from spbench.workload.sharding import Shard, Sizes
from spbench.workload.traffic import Op, Traffic, Transfer
from spbench.workload.workload import Workload


@dataclass(frozen=True, kw_only=True, eq=False)
class VendorPlan(FixedPlan):
    """One axis stays sharded; attention along it is the package's."""

    strategy: Vendor

    @property
    def sends_itself(self) -> bool:
        """Where an attention goes along the axis, and ranks share it: else the package's code does
        not run."""
        along = any(self.axis in attention.attended for attention in self.workload.attentions)
        return along and self.ranks > 1

    @property
    def queries_stay(self) -> bool:
        return not self.strategy.splits_heads

    def sublayer_traffic(self, sublayer: Sublayer, axis: str) -> Traffic:
        alone = self.ranks == 1  # ``attend`` does not call the package, and nothing is sent
        if alone or not isinstance(sublayer, Attention) or axis not in sublayer.attended:
            return super().sublayer_traffic(sublayer, axis)
        return self.strategy.sent(self.workload, self.held(axis))

    @never_compiled  # its transfers do not pass comm/, which the compiler is kept out of
    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        if shard.dim not in scores.dims or comm.size == 1:
            return super().attend(q, k, v, scores, shard, comm)
        # (B, *axes, Z, D) -> (b, Z, S/N, D), or (b, S/N, Z, D), each in one piece of memory
        folding = Folding.of(q.shape, scores.dims)
        heads_first = self.strategy.order == "b z s d"

        def laid(x: Tensor) -> Tensor:
            return x if heads_first else x.transpose(1, 2)

        queries, keys, values = (laid(folding.fold(x)).contiguous() for x in (q, k, v))
        call = Call(group=group_of(comm), causal=scores.causal)
        return folding.unfold(laid(self.strategy.exchange(queries, keys, values, call)))


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadTailPlan(VendorPlan):
    """Its ranks hold head and tail of the sequence under a mask, so that all compute as much."""

    zigzag: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class Call:
    """What a package's entry point is told beside q, k and v."""

    group: dist.ProcessGroup
    causal: bool


@dataclass(frozen=True, kw_only=True)
class Vendor(Packaged, ABC):
    """A package's attention of sharded sequences; class variables say what it does not serve."""

    plan: ClassVar[type[VendorPlan]] = VendorPlan
    order: ClassVar[str] = "b s z d"
    """The layout of q, k and v at its entry point: or ``b z s d``."""
    splits_heads: ClassVar[bool] = False
    """Whether heads of queries, and of keys, must divide by the ranks."""
    repeats_keys: ClassVar[bool] = False
    """Whether it repeats key heads that are fewer than ranks, where these are a multiple."""
    halves: ClassVar[bool] = False
    """Whether it cuts every rank's positions in two, also without a mask."""
    is_causal_too: ClassVar[bool] = True
    """Whether it serves a causal mask."""
    groups_heads: ClassVar[bool] = True
    """Whether keys may have fewer heads than queries."""
    dtypes: ClassVar[tuple[str, ...]] = ("float64", "float32", "bfloat16", "float16")
    """Those that it computes in."""
    flash: ClassVar[bool] = False
    """Whether it calls flash_attn, of 16 bits alone, and torch's kernels where that is missing."""
    wrong_in_float32: ClassVar[bool] = False
    """Whether float32 is wrong in its stock form, and 16 bits are right."""

    @final
    @property
    def has_float32_copy(self) -> bool:
        is_wrong = self.wrong_in_float32 and not getattr(self, "patched", False)
        return "float32" in self._dtypes() and not is_wrong

    @final
    def _dtypes(self) -> list[str]:
        """Those that it computes in here."""
        is_there = self.flash and find_spec("flash_attn") is not None
        return [dtype for dtype in self.dtypes if dtype.endswith("16") or not is_there]

    def misfit(self, workload: Workload) -> str | None:
        unfit = super().misfit(workload)
        if unfit is None and workload.recomputes_attention:
            # torch stops behind the last tensor that a package saves, which differs by version.
            return (
                f"what {self.package} sends again where attention alone is recomputed is not "
                "predicted; write checkpointing: none, or full"
            )
        return unfit

    @abstractmethod
    def exchange(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """Attention of this rank's part of one sequence, by the package.

        Parameters
        ----------
        q, k, v
            (b, S/N, Z, D) or (b, Z, S/N, D), as ``order`` says; k and v may have fewer heads.
        call
            The ranks that share the sequence, and the mask.

        Returns
        -------
        Tensor
            In the shape of ``q``.
        """

    @abstractmethod
    def sent(self, workload: Workload, sizes: Sizes) -> Traffic:
        """The published formula: the transfers of one attention, forward and backward, of which
        each rank holds so many positions. The gate holds it against the witness's count."""

    def sharers(self, axis: str, workload: Workload, ranks: int) -> int:
        """Neighbours that share out the heads; 1: none do."""
        return ranks if self.splits_heads else 1

    def why_not_along(self, axis: str, workload: Workload, ranks: int) -> str | None:
        too_short = super().why_not_along(axis, workload, ranks)
        along = [one for one in workload.attentions if axis in one.attended]
        if too_short or ranks == 1:
            return too_short
        if not along:
            return f"no attention goes along {axis}: nothing of {self.package} would run"
        return (
            blocks_why_not(axis, workload)
            or self._not_served(axis, workload, along)
            or self._uneven(axis, workload, ranks)
        )

    def _uneven(self, axis: str, workload: Workload, ranks: int) -> str | None:
        length, heads, keys = workload.axes[axis], workload.heads, workload.key_heads
        sharers = self.sharers(axis, workload, ranks)
        parts = self.parts(axis, workload, ranks, sharers)
        if length % parts:
            fit = f"give {axis} a multiple of {parts} positions"
            return f"{length} positions of {axis} do not divide into {parts} even parts; {fit}"

        def shared(n: int) -> bool:
            return not heads % n and (not keys % n or (self.repeats_keys and not n % keys))

        if not shared(sharers):
            unit = f"{heads} heads" if heads % sharers else f"{keys} key heads"
            fit = ", ".join(str(n) for n in range(1, sharers) if shared(n))
            what = "ranks" if sharers == ranks else "neighbours"
            return f"{unit} do not divide by {counted(sharers, what[:-1])}; {what} may be {fit}"
        return None

    def parts(self, axis: str, workload: Workload, ranks: int, sharers: int) -> int:
        """The even parts that an axis is cut into."""
        if self.plan.zigzag and workload.is_causal(axis):
            # A zigzag shard is two runs, one from each end, which neighbours cut once more.
            return lcm(2 * (ranks // sharers), ranks)
        return 2 * ranks if self.halves else ranks

    def _not_served(self, axis: str, workload: Workload, along: Sequence[Attention]) -> str | None:
        if workload.dtype not in (dtypes := self._dtypes()):
            fit = listed([*dtypes], "or")
            return f"its attention does not compute in {workload.dtype}; its dtypes are {fit}"
        if workload.key_heads != workload.heads and not self.groups_heads:
            return f"its adapter takes as many key heads as heads; set kv_heads={workload.heads}"
        unserved = {
            "causal mask": any(one.causal for one in along) and not self.is_causal_too,
            "projection of keys": any(one.projection for one in along),
            "pair bias": any(one.pair_bias for one in along),
            "window": any(one.window for one in along),
            "sinks": any(one.sinks for one in along),
            "documents": any(one.documents for one in along),
            "joined text": bool(workload.text),
            "values of another size than keys": workload.value_size != workload.head_size,
        }
        what = next((name for name, is_there in unserved.items() if is_there), None)
        return what and (
            f"its adapter serves no {what} along {axis}; spbench's own strategies that gather keys "
            "or share heads do"
        )


# What several packages send alike


def four_all_to_alls(workload: Workload, sizes: Sizes) -> Traffic:
    """Ulysses as published: q, k, v and the result each by an all-to-all of its own; and back.

    Each rank sends (N - 1) / N of its part of each tensor (Jacobs et al., 2023, section 3.2).
    """
    moved = switches(workload, len(sizes), len(sizes))
    return moved, moved


def switches(workload: Workload, ranks: int, sharers: int, copies: int = 1) -> list[Transfer]:
    """An all-to-all each for q, k, v and the result, among ``sharers`` neighbours of the ranks.

    ``copies``: how often each key head travels.
    """
    each = [workload.query_bytes, *[workload.key_bytes * copies] * 2, workload.query_bytes]
    # Each has 1 / ranks of a tensor, and keeps 1 / sharers of that.
    parts = [Fraction(whole * (sharers - 1), sharers * ranks) for whole in each]
    return [Transfer(op="all_to_all", sent=(part,) * ranks) for part in parts]


def sent_by_each(op: Op, all_bytes: int, ranks: int) -> Transfer:
    """A collective in which every one of the ranks sends as much: ``all_bytes`` by all of them."""
    return Transfer(op=op, sent=(Fraction(all_bytes, ranks),) * ranks)


def float32_times(workload: Workload) -> int:
    """Bytes of a number in float32 over those of the dtype: 2 of 16 bits, and 1 at least."""
    return max(1, 4 // DTYPE_BYTES[workload.dtype])


def plain(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """The local attention that a package is given, in torch's kernel: (b, S, Z, D)."""
    folded = (x.transpose(1, 2) for x in (q, k, v))
    return kernel(*folded, is_causal=causal).transpose(1, 2)
