"""What every strategy answers: whether it can run a case, and its plan for that case.

A ``Strategy`` is frozen data, its fields are options (``rsa:reduce-scatter``). It says why it
cannot run a workload (``misfit``, ``why_not``), or gives a ``Plan`` of it (``on``). A plan is bound
to its case, made once, and asked by the model, the prediction of bytes, the gate, dry runs and
diagrams alike:

    layout              the axis that is sharded while each sublayer of the stack runs
    mesh                the groups of ranks, by default one of all
    shards, text        which positions of each axis, and which text tokens, each rank holds
    hops                the all-to-alls of a switch between the shardings of two sublayers
    of_streams          the plan of each stream beside the axes, which is a workload of its own
    between             the plan of an attention from one of these strands to another
    sublayer_traffic    what one sublayer sends: the papers' formulas less a rank's own part
    traffic_between     what an attention sends whose queries are another strand's
    sent_by_attend      what of that its attention sends again under selective checkpointing
    traffic             every transfer of one step, which follows from these
    notes               what it does beyond its usual idea, in a sentence
    linear_in, _out     make the projections into a sublayer and out of it
    inside              how the axes are cut between the two
    attend              attention along axes that may be sharded

Only ``layout`` has to be given; all else has the answer of a strategy that shards an axis which no
sublayer at hand attends along.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import chain
from typing import Any, ClassVar, Self, final

from torch import Tensor, nn

from spbench.comm.collectives import Collectives
from spbench.layers.attention import Scores, attend_whole
from spbench.layers.heads import gather_traffic, gathered
from spbench.layers.linear import LinearSpec, WholeLinear
from spbench.workload.block import AXES, StreamAttention, Sublayer
from spbench.workload.flattened import flattened
from spbench.workload.mesh import Mesh
from spbench.workload.sharding import Shard, Sizes
from spbench.workload.stages import Stages
from spbench.workload.strands import Between, between, crossings
from spbench.workload.traffic import (
    Hop,
    Move,
    Traffic,
    Transfer,
    gradient_sums,
    held_with_text,
    in_a_step,
    waited_bytes,
)
from spbench.workload.weights import are_shared, sharing_traffic, sums_of_stages
from spbench.workload.workload import Workload

Hops = Sequence[Hop]
Layout = tuple[str, ...]  # the axis that each sublayer of the whole stack shards; two: time+space


@dataclass(frozen=True, kw_only=True)
class Strategy(ABC):
    """One way to share a sequence among ranks; its fields are its options."""

    forms: ClassVar[tuple[str, ...]] = ()
    """Options that people run it with, as they are written (``tp=2``): ``verify`` proves each."""
    keeps_scores: ClassVar[bool] = False  # whether backward needs them along the sharded axis

    def environment(self, capability: tuple[int, int]) -> dict[str, str]:
        """Variables that it needs on GPUs of this compute capability; (0, 0): it is not known."""
        return {}

    def flattened(self, workload: Workload) -> Workload:
        """The workload with axes that are only attended jointly as one; itself if it is so.

        All other questions are asked with it, so that ``workload.axes`` are those that can be cut.
        """
        return flattened(workload)

    @final
    def declines(self, workload: Workload, ranks: int) -> str | None:
        """Why it cannot run a workload with the axes of its file on ``ranks``; or None."""
        cut = self.flattened(workload)
        return self.misfit(cut) or self.unfit(cut, ranks)

    @final
    def unfit(self, workload: Workload, ranks: int) -> str | None:
        """Why it cannot run on ``ranks``, streams included, with values that would work; or
        None."""
        return self.why_not_streams(workload, ranks) or self.why_not(workload, ranks)

    @property
    def beside_axes(self) -> Strategy | None:
        """What shares out streams beside the axes, and attention from and to them; None: nothing
        does."""
        return None

    def why_not_streams(self, workload: Workload, ranks: int) -> str | None:
        """Why it cannot share out the streams beside the axes on ``ranks``; or None."""
        if not workload.streams:
            return None
        if (own := self.beside_axes) is None:
            return (
                f"it does not share out streams beside the axes ({', '.join(workload.streams)}); "
                "ulysses, kv-gather, ring, megatron-sp and megatron-tp do"
            )
        for name in workload.streams:
            if unfit := own.why_not(workload.strands[name], ranks):
                return f"of stream {name}: {unfit}"
        for one, _ in crossings(workload):
            if unfit := own.why_not(one.attended, ranks):
                return f"of attention to {one.asked_name or AXES}: {unfit}"
        return None

    def misfit(self, workload: Workload) -> str | None:
        """Why its options do not fit this workload, on any number of ranks; or None."""
        return None

    @property
    def only_measured(self) -> str | None:
        """Why it runs between processes alone, neither as a share of one GPU nor as a dry run."""
        return None

    @property
    def has_float32_copy(self) -> bool:
        """Whether a step of it in 16 bits is the same code in float32, and is proved there too."""
        return True

    @property
    def origin(self) -> str:
        """The package whose own code it is, with its version and commit; blank: spbench's own."""
        return ""

    @abstractmethod
    def why_not(self, workload: Workload, ranks: int) -> str | None:
        """Why it cannot run on ``ranks``, with values that would work; or None."""

    @abstractmethod
    def on(self, workload: Workload, ranks: int) -> Plan:
        """Its plan for a workload that it can run; of several the one of least ``cost``."""

    def alternatives(self, workload: Workload, ranks: int) -> Sequence[Plan]:
        """All plans that ``on`` chooses among; tests hold its choice against each."""
        return [self.on(workload, ranks)]


@dataclass(frozen=True, kw_only=True)
class InGroups(Strategy, ABC):
    """A strategy inside of groups of ranks, or across them: what ``own`` says of itself holds."""

    own: Strategy

    def environment(self, capability: tuple[int, int]) -> dict[str, str]:
        return self.own.environment(capability)

    def flattened(self, workload: Workload) -> Workload:
        return self.own.flattened(workload)

    def why_not_streams(self, workload: Workload, ranks: int) -> str | None:
        return None  # a subclass says in its own words whether it serves them

    @property
    def only_measured(self) -> str | None:
        return self.own.only_measured

    @property
    def has_float32_copy(self) -> bool:
        return self.own.has_float32_copy

    @property
    def origin(self) -> str:
        return self.own.origin


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """What a strategy does on one workload and number of ranks: made once a case."""

    strategy: Strategy
    """With each option that it chose written out."""
    workload: Workload
    ranks: int
    layout: Layout
    cuts_weights: bool = False
    """Whether projections are cut over groups of the mesh's last axis, which sum no gradients."""
    holds_whole: bool = False
    """Whether each rank of such a group holds all that the group has."""
    ends_in_transfer: bool = False
    """Whether a sublayer's last forward transfer comes after all tensors that backward needs."""

    @final
    def rebound(self, workload: Workload) -> Plan:
        """The plan of the same options for another workload; itself for its own."""
        return self if workload == self.workload else self.strategy.on(workload, self.ranks)

    def with_heads_of(self, part: Workload) -> Plan:
        """Its options, layout and ranks, for a workload that differs in its heads alone."""
        return replace(self, workload=part)

    @property
    def group(self) -> Plan:
        """What ranks that share samples do: this plan, unless groups have samples of their own."""
        return self

    @property
    def stages(self) -> Stages | None:
        """The stages of a pipeline, each of which is such a group; None: every rank has all
        blocks."""
        return None

    @cached_property
    def mesh(self) -> Mesh:
        """Its groups of ranks and their sizes, outermost first; the last one's are neighbours."""
        return Mesh.of({"sequence": self.ranks})

    @property
    def sends_itself(self) -> bool:
        """Whether another package's code sends, past ``comm/``: a witness counts its transfers, and
        nothing silences them."""
        return False

    @property
    def notes(self) -> str:
        """What it does on this workload beyond its usual idea, in a sentence; or ''."""
        return ""

    @property
    def chunks(self) -> int:
        """In how many chunks a switch leaves, under the sublayer before it; 1: whole."""
        return 1

    @property
    def unevenness(self) -> float:
        """The attention of the busiest rank over the mean of all, where options decide on it."""
        return 1.0

    @final
    @cached_property
    def of_streams(self) -> Mapping[str, Plan]:
        """The plan of each stream beside the axes, by name."""
        work = self.workload
        return {name: self._beside(work.strands[name]) for name in work.streams}

    @final
    def between(self, sublayer: StreamAttention) -> Plan:
        """The plan of an attention from one strand to another: it has the keys' positions, and the
        heads."""
        if sublayer not in self._between:
            one = between(sublayer, self.workload)
            self._between[sublayer] = self._beside(one.attended)
        return self._between[sublayer]

    @cached_property
    def _between(self) -> dict[StreamAttention, Plan]:
        return {}

    def _beside(self, workload: Workload) -> Plan:
        strategy = self.strategy.beside_axes
        assert strategy is not None, "who serves no streams has declined them"
        return strategy.on(workload, self.ranks)

    @final
    def held_tokens(self, strand: str, axis: str) -> Shard:
        """Which tokens (B, S, ...) of a strand each rank holds, the sharded axis outermost in S.

        ``axis``: the sharded one of the axes; of a stream it is the stream.
        """
        plan, along = (self.of_streams[strand], strand) if strand else (self, axis)
        return plan.shards[along].spread(1, plan.workload.tokens // plan.workload.axes[along])

    def choices(self, sublayer: Sublayer) -> Sequence[str]:
        """Axes that might be sharded in ``sublayer``, of a plan that may switch between them."""
        return ()

    def shard(self, axis: str) -> Shard:
        """Which positions of ``axis`` each rank holds while that axis is sharded."""
        return Shard.even(self.workload.dim(axis), self.workload.axes[axis], self.ranks)

    @final
    @cached_property
    def shards(self) -> Mapping[str, Shard]:
        """``shard`` of each axis of the workload, and of each entry of the layout."""
        # Two axes that are cut at once, time+space, are no axis of the workload.
        axes = dict.fromkeys([*self.workload.axes, *self.layout])
        return {axis: self.shard(axis) for axis in axes}

    @cached_property
    def text(self) -> Shard:
        """Which text tokens of (B, L, H) each rank holds, whatever axis is sharded."""
        return Shard.even(1, self.workload.text, self.ranks)

    def inside(self, shard: Shard) -> Shard | None:
        """How the axes are cut between a sublayer's two projections; None: they are whole."""
        return shard

    def hops(self, before: str, after: str) -> Hops | None:
        """The all-to-alls of a switch from axis to axis, in turn; None: there is no way."""
        return Hop.between(self.shard(before), self.shard(after))

    def sublayer_traffic(self, sublayer: Sublayer, axis: str) -> Traffic:
        """Transfers of ``sublayer`` while ``axis`` is sharded; by default, of its side input."""
        return gather_traffic(sublayer, self.workload, self.shard)

    def traffic_between(self, one: Between, queries: Sizes, keys: Sizes) -> Traffic:
        """Transfers of the attention that ``between`` makes this the plan of; by default none.

        Parameters
        ----------
        one
            Its sizes, and those of both strands.
        queries, keys : Sizes
            Positions of the strand that asks, and of the one that is asked, of each rank.

        Returns
        -------
        Traffic
            In forward and in backward, those of its projections included.
        """
        return [], []

    @final
    def traffic_of(self, sublayer: Sublayer, axis: str) -> Traffic:
        """Transfers of a sublayer of any strand while ``axis`` is sharded."""
        work = self.workload
        if isinstance(sublayer, StreamAttention):
            one = between(sublayer, work)
            names = work.strand_of(sublayer), one.asked_name
            held = (self.held_tokens(name, axis).sizes for name in names)
            return self.between(sublayer).traffic_between(one, *held)
        if name := work.strand_of(sublayer):
            own, _ = work.at_home(sublayer)
            return self.of_streams[name].sublayer_traffic(own, name)
        return self.sublayer_traffic(sublayer, axis)

    def sent_by_attend(self, sublayer: Sublayer, axis: str) -> list[Transfer]:
        """Transfers of ``attend`` in forward, up to the last tensor that its backward needs.

        They are what a self-attention sends once more where it alone is recomputed, since torch
        stops there. By default all that the sublayer sends in forward.
        """
        forward, _ = self.sublayer_traffic(sublayer, axis)
        return forward

    @final
    def attended_again(self, sublayer: Sublayer, axis: str) -> list[Transfer]:
        """What ``sublayer`` sends again in backward since its attention alone is recomputed."""
        if not self.workload.recomputes_attention or isinstance(sublayer, StreamAttention):
            return []  # attention to another strand is kept, as cross-attention is
        if name := self.workload.strand_of(sublayer):
            own, _ = self.workload.at_home(sublayer)
            return self.of_streams[name].sent_by_attend(own, name)
        return self.sent_by_attend(sublayer, axis)

    def linear_in(self, spec: LinearSpec, comm: Collectives) -> nn.Module:
        """The projection into a sublayer: (…, H) and the current shard -> (…, *out)."""
        return WholeLinear(spec, comm)

    def linear_out(self, spec: LinearSpec, comm: Collectives) -> nn.Module:
        """The projection out of a sublayer: (…, *in) and the current shard -> (…, H)."""
        return WholeLinear(spec, comm)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        """Attention of this rank's part; by default along dims that are not cut.

        Parameters
        ----------
        q, k, v : Tensor
            (B, *axes, Z, D), cut as ``shard`` says; k and v may have fewer heads. With text, image
            and text are one axis of S + L positions. From strand to strand (B, S, Z, D), q of other
            positions than k and v, cut as ``scores.queries`` says.
        scores : Scores
            The attended dims; mask, projection and bias.
        shard : Shard
            Which positions each rank holds, of one dim or of two.
        comm : Collectives
            Those of the ranks that share samples.

        Returns
        -------
        Tensor
            In the shape of ``q``.
        """
        return attend_whole(q, k, v, gathered(scores, comm))

    @final
    def held(self, axis: str) -> Sizes:
        """What each rank holds of a self-attention's sequence while ``axis`` is sharded."""
        return held_with_text(self.workload, axis, self.shard(axis).sizes, self.text.sizes)

    @final
    def switch_traffic(self, before: str, after: str) -> Traffic:
        """What moves the activation's sharding from one axis to another, and its gradient back."""
        there = self.hops(before, after)
        assert there is not None, f"there is no way from {before} to {after}"
        # The gradient goes the way back: the last all-to-all first, each undone.
        back = [hop.undone for hop in reversed(there)]
        forward, backward = (
            [hop.transfer(self.workload.activation_bytes, self.mesh) for hop in way]
            for way in (there, back)
        )
        return forward, backward

    @final
    def transfers_of(self, move: Move) -> list[Transfer]:
        """Transfers of a sublayer in a step, with those of the switch to its axis."""
        sublayer, axis = move.place.sublayer, move.axis
        own = self.traffic_of(sublayer, axis)
        switches = self.switch_traffic(move.before, axis)
        again = self.attended_again(sublayer, axis)
        return in_a_step(self.workload, move.place, own, switches, self.ends_in_transfer, again)

    @cached_property
    def of_blocks(self) -> list[list[Transfer]]:
        """Every transfer of one step but those of weights and their gradients, block by block."""
        once = cache(self.transfers_of)  # of a few kinds, many times
        before = self.layout[0], *self.layout  # the first sublayer comes without a switch
        blocks: list[list[Transfer]] = []
        for move in map(Move, self.workload.places, before, self.layout):
            if move.place.is_first:
                blocks.append([])
            blocks[-1] += once(move)
        return blocks

    @cached_property
    def of_sublayers(self) -> list[Transfer]:
        """Every transfer of one step but those of weights and their gradients."""
        return list(chain.from_iterable(self.of_blocks))

    @final
    @cached_property
    def of_weights(self) -> list[Transfer]:
        """The sums of gradients; where weights are shared out, all by which they are."""
        case = self.workload, self.mesh, self.cuts_weights
        if self.stages is not None:
            return sums_of_stages(*case, self.holds_whole, self.stages)
        how = sharing_traffic if are_shared(*case) else gradient_sums
        return how(*case, self.holds_whole)

    @final
    @cached_property
    def traffic(self) -> list[Transfer]:
        """Every transfer of one step, predicted without running."""
        return [*self.of_sublayers, *self.of_weights]

    @property
    def cost(self) -> float:
        """Bytes that ranks wait for in a step, weighed by how unevenly they attend."""
        # Bytes alone do not tell that of 5 heads shared by 2 ranks the busier one has 3.
        return waited_bytes(self.of_sublayers) * self.unevenness


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanOfGroups(Plan):
    """The plan of ranks in groups, each of which goes by ``inner``: how axes and text are cut, and
    what sublayers do, is a group's."""

    inner: Plan

    @classmethod
    def around(cls, inner: Plan, **own: Any) -> Self:
        """``own``: the strategy, workload and ranks of all groups, and what a subclass has."""
        as_inner = ("layout", "cuts_weights", "holds_whole", "ends_in_transfer")
        return cls(inner=inner, **{name: getattr(inner, name) for name in as_inner}, **own)

    @property
    def group(self) -> Plan:
        return self.inner.group

    @property
    def notes(self) -> str:
        return self.inner.notes

    def shard(self, axis: str) -> Shard:
        return self.group.shard(axis)

    @cached_property
    def text(self) -> Shard:
        return self.group.text

    def hops(self, before: str, after: str) -> Hops | None:
        return self.group.hops(before, after)
