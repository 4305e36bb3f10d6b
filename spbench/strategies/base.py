"""A strategy's transfers sublayer by sublayer, with the switches between their shardings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import ClassVar, final

from torch import Tensor, nn

from spbench.comm.collectives import Collectives
from spbench.layers.attention import Scores, attend_whole
from spbench.layers.heads import gather_traffic, gathered
from spbench.layers.linear import LinearSpec, WholeLinear
from spbench.workload import traffic
from spbench.workload.block import Sublayer
from spbench.workload.flattened import flattened
from spbench.workload.mesh import Mesh
from spbench.workload.sharding import Shard, Sizes
from spbench.workload.traffic import Move, Traffic, Transfer
from spbench.workload.workload import Workload


def switch_traffic(
    strategy: Strategy, workload: Workload, before: str, after: str, ranks: int
) -> Traffic:
    """What moves the activation's sharding from one axis to another, and its gradient back."""
    hops = strategy.hops(workload, before, after, ranks)
    assert hops is not None, f"there is no way from {before} to {after}"
    mesh = Mesh.of(strategy.mesh(workload, ranks))
    there, back = hops, [hop.undone for hop in reversed(hops)]
    forward, backward = (
        [hop.transfer(workload.activation_bytes, mesh) for hop in way] for way in (there, back)
    )
    return forward, backward


def transfers_of(strategy: Strategy, workload: Workload, ranks: int, move: Move) -> list[Transfer]:
    """Transfers of a sublayer in a step, with those of the switch to its axis."""
    place, before, axis = move.place, move.before, move.axis
    own = strategy.sublayer_traffic(place.sublayer, workload, axis, ranks)
    switches = switch_traffic(strategy, workload, before, axis, ranks)
    return traffic.in_a_step(workload, place, own, switches, strategy.ends_in_transfer)


def transfers_of_step(strategy: Strategy, workload: Workload, ranks: int) -> list[Transfer]:
    """Every transfer of one step, predicted without running."""
    known = cache(lambda move: transfers_of(strategy, workload, ranks, move))
    layout = strategy.layout(workload, ranks)
    moves = map(Move, workload.places, (layout[0], *layout), layout)  # the first is no switch
    sent = (each for move in moves for each in known(move))
    how = Mesh.of(strategy.mesh(workload, ranks)), strategy.cuts_weights, strategy.holds_whole
    return [*sent, *traffic.gradient_sums(workload, *how)]


# The questions that a strategy answers; all but why_not and layout have an answer already.
#
# flattened          the workload as it cuts it, which all other questions are asked with
# misfit, why_not    why it cannot run: a sentence with values that would work; or None
# settled, mesh      itself, with its choices written out; its groups of ranks
# alternatives       itself with each other option; unevenness: what weighs
# others             strategies that exchange in its place
# layout, choices    which axis is sharded while each sublayer runs, and among which it chose
# shard, text_shard  which positions of that axis, and which text tokens, each rank holds
# notes              what it does on a workload beyond its usual idea
# sublayer_traffic   what one sublayer sends; hops: a switch
# linear_in, _out    make the projections into a sublayer and out of it
# attend             attention along axes that may be sharded

Hops = Sequence[traffic.Hop]
Layout = tuple[str, ...]  # the axis that each sublayer of the whole stack shards; two: time+space


@dataclass(frozen=True, kw_only=True)
class Strategy(ABC):
    """One way to share a sequence, as frozen data: fields are options (``rsa:reduce-scatter``)."""

    forms: ClassVar[tuple[str, ...]] = ()
    """Options that people run it with, as they are written (``tp=2``): ``verify`` proves each."""
    cuts_weights: ClassVar[bool] = False
    """Whether projections are cut over groups of the mesh's last axis, which sum no gradients."""
    holds_whole: ClassVar[bool] = False  # whether each rank of such a group holds all that it has
    keeps_scores: ClassVar[bool] = False  # whether backward needs scores along the sharded axis
    switches: ClassVar[bool] = True  # whether the sharded axis may change from sublayer to sublayer
    ends_in_transfer: ClassVar[bool] = False
    """Whether a sublayer's last forward transfer comes after all tensors that backward needs."""

    def environment(self, capability: tuple[int, int]) -> dict[str, str]:
        """Variables that it needs on GPUs of this compute capability; (0, 0): it is not known."""
        return {}

    def flattened(self, workload: Workload) -> Workload:
        """The workload with axes that are only attended jointly as one; itself if it is so."""
        return flattened(workload)

    @final
    def declines(self, workload: Workload, ranks: int) -> str | None:
        """Why it cannot run a workload with the axes of its file on ``ranks``; or None."""
        cut = self.flattened(workload)
        return self.misfit(cut) or self.why_not(cut, ranks)

    def misfit(self, workload: Workload) -> str | None:
        """Why its options do not fit this workload, on any number of ranks; or None."""
        return None

    @abstractmethod
    def why_not(self, workload: Workload, ranks: int) -> str | None:
        """Why it cannot run on ``ranks``, with values that would work; or None."""

    @final
    def on(self, workload: Workload, ranks: int) -> Plan:
        """What it does on a workload that it can run, cut as ``flattened`` cuts it."""
        return Plan(self.settled(workload, ranks), workload, ranks, self)

    def settled(self, workload: Workload, ranks: int) -> Strategy:
        """The strategy with each option that it chooses by the workload's bytes written out."""
        return self

    def alternatives(self, workload: Workload, ranks: int) -> Sequence[Strategy]:
        """All that ``settled`` chooses among, each written out; none: it chooses nothing.

        Its choice sends the fewest bytes, weighed by ``unevenness``; tests hold that.
        """
        return ()

    def unevenness(self, workload: Workload, ranks: int) -> float:
        """The attention of the busiest rank over the mean of all, where options decide on it."""
        return 1.0

    def others(self, workload: Workload, ranks: int) -> Sequence[tuple[Strategy, Workload, int]]:
        """The strategies that exchange in its place, each with what it is asked about."""
        return ()

    def in_a_group(self, workload: Workload, ranks: int) -> tuple[Strategy, Workload, int]:
        """What ranks that share samples run: their strategy, their workload, their number."""
        return self, workload, ranks

    @abstractmethod
    def layout(self, workload: Workload, ranks: int) -> Layout:
        """The axis that is sharded while each sublayer of the stack runs."""

    def mesh(self, workload: Workload, ranks: int) -> Mapping[str, int]:
        """Its groups of ranks and their sizes, outermost first; the last one's are neighbours."""
        return {"sequence": ranks}

    def choices(self, sublayer: Sublayer, workload: Workload, ranks: int) -> Sequence[str]:
        """Axes that might be sharded in ``sublayer``; none: it is not bytes that it looks for."""
        return ()

    def notes(self, workload: Workload, ranks: int) -> str:
        """What it does on this workload beyond its usual idea, in a sentence; or ''."""
        return ""

    def shard(self, workload: Workload, axis: str, ranks: int) -> Shard:
        """Which positions of ``axis`` each rank holds while that axis is sharded."""
        return Shard.even(workload.dim(axis), workload.axes[axis], ranks)

    def text_shard(self, workload: Workload, ranks: int) -> Shard:
        """Which text tokens of (B, L, H) each rank holds, whatever axis is sharded."""
        return Shard.even(1, workload.text, ranks)

    def inside(self, shard: Shard) -> Shard | None:
        """How the axes are cut between a sublayer's two projections; None: they are whole."""
        return shard

    def sublayer_traffic(
        self, sublayer: Sublayer, workload: Workload, axis: str, ranks: int
    ) -> Traffic:
        """Transfers of ``sublayer`` while ``axis`` is sharded; by default, of its side input."""
        return gather_traffic(sublayer, workload, lambda along: self.shard(workload, along, ranks))

    def linear_in(self, spec: LinearSpec, comm: Collectives) -> nn.Module:
        """The projection into a sublayer: (…, H) and the current shard -> (…, *out)."""
        return WholeLinear(spec)

    def linear_out(self, spec: LinearSpec, comm: Collectives) -> nn.Module:
        """The projection out of a sublayer: (…, *in) and the current shard -> (…, H)."""
        return WholeLinear(spec)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        """Attention of (B, *axes, Z, D), cut as ``shard`` says; by default along other dims."""
        return attend_whole(q, k, v, gathered(scores, comm))

    def hops(self, workload: Workload, before: str, after: str, ranks: int) -> Hops | None:
        """The all-to-alls of a switch from axis to axis, in turn; None: there is no way."""
        return traffic.Hop.between(*(self.shard(workload, x, ranks) for x in (before, after)))

    @final
    def held(self, workload: Workload, axis: str, ranks: int) -> Sizes:
        """What each rank holds of a self-attention's sequence while ``axis`` is sharded."""
        sizes = self.shard(workload, axis, ranks).sizes, self.text_shard(workload, ranks).sizes
        return traffic.held_with_text(workload, axis, *sizes)

    def traffic(self, workload: Workload, ranks: int) -> list[Transfer]:
        """Every transfer of one step, predicted without running."""
        return transfers_of_step(self, workload, ranks)


@final
@dataclass(frozen=True, eq=False)
class Plan:
    """What a strategy does on one workload and number of ranks: made once a case."""

    strategy: Strategy
    """With each option that it chose written out."""
    workload: Workload
    ranks: int
    asked_for: Strategy

    def rebound(self, workload: Workload) -> Plan:
        """The plan of the same options for another workload; itself for its own."""
        return self if workload == self.workload else self.strategy.on(workload, self.ranks)

    @cached_property
    def group(self) -> Plan:
        """What ranks that share samples do: itself, or the plan of each of several groups."""
        strategy, workload, ranks = self.strategy.in_a_group(self.workload, self.ranks)
        return self if strategy is self.strategy else Plan(strategy, workload, ranks, strategy)

    @property
    def cuts_weights(self) -> bool:
        return self.strategy.cuts_weights

    @property
    def holds_whole(self) -> bool:
        return self.strategy.holds_whole

    @property
    def keeps_scores(self) -> bool:
        return self.strategy.keeps_scores

    @cached_property
    def layout(self) -> Layout:
        return self.strategy.layout(self.workload, self.ranks)

    @cached_property
    def mesh(self) -> Mesh:
        return Mesh.of(self.strategy.mesh(self.workload, self.ranks))

    @cached_property
    def shards(self) -> Mapping[str, Shard]:
        """How each axis is cut while it is the sharded one."""
        axes = dict.fromkeys([*self.workload.axes, *self.layout])
        return {axis: self.strategy.shard(self.workload, axis, self.ranks) for axis in axes}

    @cached_property
    def text(self) -> Shard:
        return self.strategy.text_shard(self.workload, self.ranks)

    @cached_property
    def notes(self) -> str:
        return self.asked_for.notes(self.workload, self.ranks)

    @cached_property
    def traffic(self) -> list[Transfer]:
        return self.strategy.traffic(self.workload, self.ranks)

    def held(self, axis: str) -> Sizes:
        return self.strategy.held(self.workload, axis, self.ranks)

    def hops(self, before: str, after: str) -> Hops | None:
        return self.strategy.hops(self.workload, before, after, self.ranks)

    def sublayer_traffic(self, sublayer: Sublayer, axis: str) -> Traffic:
        return self.strategy.sublayer_traffic(sublayer, self.workload, axis, self.ranks)

    def switch_traffic(self, before: str, after: str) -> Traffic:
        return switch_traffic(self.strategy, self.workload, before, after, self.ranks)

    def inside(self, shard: Shard) -> Shard | None:
        return self.strategy.inside(shard)

    def linear_in(self, spec: LinearSpec, comm: Collectives) -> nn.Module:
        return self.strategy.linear_in(spec, comm)

    def linear_out(self, spec: LinearSpec, comm: Collectives) -> nn.Module:
        return self.strategy.linear_out(spec, comm)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        return self.strategy.attend(q, k, v, scores, shard, comm)
