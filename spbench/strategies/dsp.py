"""Dynamic Sequence Parallelism (Zhao et al., ICML 2025): shard an axis that is not attended.

Attention along one axis never mixes positions of another. So while a sublayer attends along
one axis, another is sharded, and the sublayer needs no communication. Where the next one
attends along the sharded axis, one all-to-all moves the sharding elsewhere.

    attention over space    (B, T/N, S, H)
        switch              time whole again, space sharded: f M / N sent by each rank
    attention over time     (B, T, S/N, H)

So there is no communication code here: this file is a planner, and the model switches wherever the
layout changes. From the idea to the planner:

    DSPPlan           what a layout sends, and who attends where all axes are joined
    DSP               its options, whether any of their settings leads through the stack, the best
    TwoAxes           two axes sharded at once, and the all-to-alls between such shardings
    cheapest_layout   the layout of fewest bytes for given settings

Attention over all axes joined leaves none to shard: another strategy attends in that sublayer, at
its true cost. So it does along streams beside the axes, and from and to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, pairwise, permutations, product
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple, final

from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.comm.started_switches import can_be_in_chunks
from spbench.layers.attention import Scores
from spbench.strategies.base import Hops, Layout, Plan, Strategy
from spbench.strategies.fixed_axis import AUTO, FixedAxis, FixedPlan, chunks_of
from spbench.strategies.refusals import (
    across_misfit,
    chunks_misfit,
    divisors,
    groups_why_not,
    size_misfit,
)
from spbench.strategies.registry import EXCHANGES, exchange
from spbench.workload.block import Attention, Sublayer
from spbench.workload.mesh import Mesh
from spbench.workload.sharding import Shard
from spbench.workload.traffic import Hop, Traffic, Transfer, bytes_in_a_step
from spbench.workload.workload import Workload

OF_STREAMS = EXCHANGES[0]
"""What shares out streams beside the axes."""
MOST = 8
"""Settings that are weighed at most, those of the smallest inner groups."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class DSPPlan(Plan):
    """A layout; each entry is an axis, or two that are sharded at once (``time+space``)."""

    strategy: DSP
    cuts: TwoAxes
    chose_exchange: bool
    """Whether bytes decided what attends to all axes joined."""

    @property
    def joint(self) -> FixedPlan | None:
        """What attends to all axes joined; None: nothing does."""
        return self.cuts.joint

    @cached_property
    def mesh(self) -> Mesh:
        return self.cuts.mesh

    @property
    def notes(self) -> str:
        notes = []
        if self.cuts.inner > 1:
            notes.append("two axes are sharded at once where one is too short")
        if self.joint is not None:
            joint = "attention over all axes joined leaves none to shard: it goes by"
            why = ", which sends the fewest bytes" if self.chose_exchange else ""
            notes.append(f"{joint} {self.strategy.across}{why}")
        if self.workload.streams:
            notes.append(f"streams, and attention from and to them, go by {OF_STREAMS}")
        if self.strategy.chunks not in (AUTO, "1") and not self._can_leave_in_chunks:
            notes.append(
                "switches go whole: none follows an mlp or a cross-attention, without a condition "
                "for each position, between even shards of as many positions as chunks"
            )
        return "; ".join(notes)

    @property
    def chunks(self) -> int:
        return chunks_of(self.strategy.chunks, self.workload.activation_bytes, self.ranks)

    def with_heads_of(self, part: Workload) -> DSPPlan:
        joint = self.joint and self.joint.with_heads_of(joint_alone(part) or part)
        return replace(self, workload=part, cuts=replace(self.cuts, workload=part, joint=joint))

    @property
    def _can_leave_in_chunks(self) -> bool:
        """Whether some switch may, wherever its dims lie in memory."""
        if self.workload.modulation not in ("none", "per_sample") or self.workload.text:
            return False
        behind = zip(self.workload.stack, pairwise(self.layout), strict=False)
        switches = {ends for sublayer, ends in behind if not isinstance(sublayer, Attention)}
        hops = [self.hops(*ends) or () for ends in switches if ends[0] != ends[1]]
        return any(
            can_be_in_chunks(hop.before, hop.after, dim, self.chunks)
            for (hop,) in (way for way in hops if len(way) == 1)
            for dim in (hop.before.dim, hop.after.dim)
        )

    def shard(self, axis: str) -> Shard:
        return self.cuts.shard(axis)

    def hops(self, before: str, after: str) -> Hops | None:
        return self.cuts.hops(before, after)

    def choices(self, sublayer: Sublayer) -> Sequence[str]:
        """Axes that are long enough and not attended; where all are attended, those of the
        exchange."""
        if self.joint is None or sublayer not in self.joint.workload.kinds:
            return self.cuts.free(sublayer)
        return self.joint.strategy.axes(self.joint.workload, self.ranks)

    def sublayer_traffic(self, sublayer: Sublayer, axis: str) -> Traffic:
        if self.joint is None or axis not in sublayer.attended:
            return super().sublayer_traffic(sublayer, axis)
        return self.joint.sublayer_traffic(sublayer, axis)

    def sent_by_attend(self, sublayer: Sublayer, axis: str) -> list[Transfer]:
        if self.joint is None or axis not in sublayer.attended:
            return super().sent_by_attend(sublayer, axis)
        return self.joint.sent_by_attend(sublayer, axis)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        if self.joint is not None and shard.dim in scores.dims:  # which it is where all are
            return self.joint.attend(q, k, v, scores, shard, comm)
        return super().attend(q, k, v, scores, shard, comm)


@final
@dataclass(frozen=True, kw_only=True)
class DSP(Strategy):
    """The layout of fewest bytes over the whole stack, switching as late as possible.

    ``across`` attends where all axes are joined; with ``inner`` above 1 two axes may be sharded at
    once, one within groups of so many ranks: by default where one is not enough. A switch goes in
    so many ``chunks``, each under the mlp or cross-attention of the next, where one comes before.
    """

    forms: ClassVar[tuple[str, ...]] = ("inner=2", "chunks=2")
    across: str = AUTO
    inner: str = AUTO
    chunks: str = "1"

    def misfit(self, workload: Workload) -> str | None:
        unfit = chunks_misfit(self.chunks) or size_misfit(inner=self.inner)
        return unfit or across_misfit(self.across, (AUTO, *EXCHANGES))

    @property
    def beside_axes(self) -> FixedAxis:
        # A stream has one axis, which its own attention goes along: none is left to shard.
        return exchange(OF_STREAMS)

    def why_not(self, workload: Workload, ranks: int) -> str | None:
        if workload.streams and self.inner not in (AUTO, "1"):
            streams = ", ".join(workload.streams)
            return (
                f"streams beside the axes ({streams}) are asked where one axis is sharded, not "
                f"two; leave out the option inner={self.inner}"
            )
        unfit = groups_why_not(ranks, inner=self.inner)
        if unfit or any(map(leads_through, self._drafts(workload, ranks))):
            return unfit
        return self._none_is_enough(workload, ranks)

    def on(self, workload: Workload, ranks: int) -> DSPPlan:
        """With the settings of the fewest bytes in a step; of equals the first."""
        plans = islice(self._plans(workload, ranks), MOST)
        _, plan = min(plans, key=itemgetter(0))
        return plan

    def alternatives(self, workload: Workload, ranks: int) -> Sequence[DSPPlan]:
        """Each exchange where all axes are joined, in each size of inner groups that is allowed."""
        return [plan for _, plan in self._plans(workload, ranks)]

    def _plans(self, workload: Workload, ranks: int) -> Iterator[tuple[int, DSPPlan]]:
        """The best layout of each setting, behind its bytes; of settings that lead through."""
        for draft in self._drafts(workload, ranks):
            best = cheapest_layout(draft)
            if best is not None:
                yield round(best.cost[0]), replace(draft, layout=best.layout)

    def _drafts(self, workload: Workload, ranks: int) -> Iterator[DSPPlan]:
        """Plans, still without a layout, with settings that leave each sublayer an axis to shard;
        only those without inner groups if any does."""
        joint = joint_alone(workload)
        if joint and len(joint.kinds) == len(workload.attentions):
            return
        across: dict[str, FixedPlan | None] = {self._names[0]: None}
        if joint is not None:
            plans = {name: exchange_on(name, joint, ranks) for name in self._names}
            across = {name: plan for name, plan in plans.items() if not isinstance(plan, str)}
        sizes = [size for size in divisors(ranks) if size == 1 or size <= ranks // 2]
        sizes = [1] if workload.streams else sizes
        for size in sizes if self.inner == AUTO else [int(self.inner)]:
            drafts = [
                self._draft(name, plan, size, workload, ranks)
                for name, plan in across.items()
                # One with groups of its own has no room for those of two axes.
                if plan is None or size == 1 or len(plan.mesh.axes) == 1
            ]
            fit = [draft for draft in drafts if all(map(draft.choices, workload.kinds))]
            yield from fit
            if size == 1 and fit:
                return

    def _draft(
        self, across: str, plan: FixedPlan | None, inner: int, workload: Workload, ranks: int
    ) -> DSPPlan:
        """A plan without a layout.

        Parameters
        ----------
        across, plan
            The name of what attends to all axes joined, and its plan; None: no attention does.
        inner : int
            Ranks of an inner group; 1: one axis is sharded at a time.
        workload, ranks
            The case.

        Returns
        -------
        DSPPlan
            With both options written out.
        """
        return DSPPlan(
            strategy=replace(self, across=across, inner=str(inner)),
            workload=workload,
            ranks=ranks,
            layout=(),
            cuts=TwoAxes(workload, ranks, inner, plan),
            chose_exchange=self.across == AUTO,
        )

    @property
    def _names(self) -> Sequence[str]:
        """Strategies that may attend to all axes joined."""
        return EXCHANGES if self.across == AUTO else (self.across,)

    def _none_is_enough(self, workload: Workload, ranks: int) -> str:
        """Why no setting leads through the stack."""
        joint = joint_alone(workload)
        if joint and len(joint.kinds) == len(workload.attentions):  # on any number of ranks
            if len(workload.coordinates) == 1:
                return "it shards an axis that is not attended, and needs a second sequence axis"
            axes = ", ".join(workload.coordinates)
            return (
                f"every attention joins {axes}, which leaves no axis to shard; "
                "strategies that share heads, pass keys or cut weights can run it"
            )
        if self.inner not in (AUTO, "1"):
            return (
                f"{ranks} ranks in groups of inner={self.inner} leave a sublayer without axes to "
                "shard, which are not attended and long enough; leave out the option inner"
            )
        return _too_short(workload, ranks) or (joint and self._none_fits(joint, ranks)) or ""

    def _none_fits(self, joint: Workload, ranks: int) -> str | None:
        """Why no exchange can attend among switches: what the first lacks; or None."""
        plans = [exchange_on(name, joint, ranks) for name in self._names]
        reasons = [plan for plan in plans if isinstance(plan, str)]
        return reasons[0] if len(reasons) == len(plans) else None


def joint_alone(workload: Workload) -> Workload | None:
    """A block of the attentions that join all axes, and nothing else; None: there is none."""
    every_axis = set(workload.axes)
    joint = [attention for attention in workload.attentions if set(attention.axes) == every_axis]
    if not joint:
        return None
    alone: dict[str, Any] = {"stacks": None, "depth": 1, "block": tuple(joint), "streams": {}}
    return workload.model_copy(update=alone)


def exchange_on(name: str, joint: Workload, ranks: int) -> FixedPlan | str:
    """How the strategy of that name attends to all axes joined, between switches; or a sentence why
    it cannot."""
    other = exchange(name)
    unfit = other.why_not(joint, ranks)
    if unfit is not None:
        return unfit
    plan = other.on(joint, ranks)
    mixed = [axis for axis in joint.axes if not _keeps_order(plan.shard(axis))]
    if not mixed:
        return plan
    return (
        f"under a causal mask {name} gives each rank an early and a late chunk of {mixed[0]}, but "
        "a switch needs positions in their order; leave out the option across, or use 1 rank"
    )


def _keeps_order(shard: Shard) -> bool:
    """Whether rank order is the order of positions."""
    runs = [run for of_rank in shard.runs for run in of_rank if run[1]]
    return runs == sorted(runs)


def _too_short(workload: Workload, ranks: int) -> str | None:
    """Why some sublayer has no axis to shard: those not attended are all too short; or None."""
    kinds = [kind for kind in workload.kinds if {*workload.axes} - {*kind.attended}]
    longest = {kind: _longest(kind, workload) for kind in kinds}
    sublayer = min(kinds, key=lambda kind: workload.axes[longest[kind]])
    axis = longest[sublayer]
    if workload.axes[axis] >= ranks:
        return None
    attended = " and ".join(sublayer.attended)
    when = f" while {attended} is attended" if attended else ""
    return (
        f"no axis has {ranks} positions to shard{when}: the longest is {axis} with "
        f"{workload.axes[axis]}; use 1 to {workload.axes[axis]} ranks"
    )


def _longest(sublayer: Sublayer, workload: Workload) -> str:
    """The longest axis that is not attended."""
    free = (axis for axis in workload.axes if axis not in sublayer.attended)
    return max(free, key=workload.axes.__getitem__)


# Two axes of the tensor sharded at once, over the two axes of a mesh of ranks:
#
#     {"outer": 2, "inner": 4}   time+space   time cut over 2 groups, space within each of 4 ranks
#                                space        space cut over all 8
#
# One all-to-all moves one of the two cuts, in the groups of its axis of the mesh.

OUTER, INNER = "outer", "inner"
Pair = tuple[str, str]
"""The axes that are cut over the outer and over the inner ranks; twice the same: over all."""


@final
@dataclass(frozen=True)
class TwoAxes:
    """What may be sharded of a workload at once, and how to switch."""

    workload: Workload
    ranks: int
    inner: int  # ranks of an inner group; 1: one axis is sharded at a time
    joint: FixedPlan | None
    """What attends to all axes joined, for a workload of such attention alone."""

    @property
    def mesh(self) -> Mesh:
        """The groups of ranks; without inner ones those of what attends to all axes joined."""
        if self.inner > 1:
            return Mesh.of({OUTER: self.ranks // self.inner, INNER: self.inner})
        return Mesh.of({"sequence": self.ranks}) if self.joint is None else self.joint.mesh

    @cached_property
    def pairs(self) -> dict[str, Pair]:
        """The axes of each entry of a layout, all of them long enough."""
        axes, outer, inner = self.workload.axes, self.ranks // self.inner, self.inner
        fits = permutations(axes, 2) if inner > 1 else ()
        two = {f"{a}+{b}": (a, b) for a, b in fits if axes[a] >= outer and axes[b] >= inner}
        return two | {axis: (axis, axis) for axis, n in axes.items() if n >= self.ranks}

    def free(self, sublayer: Sublayer) -> list[str]:
        """Entries without an axis that is attended."""
        return [entry for entry, pair in self.pairs.items() if not {*pair} & {*sublayer.attended}]

    @cached_property
    def _shards(self) -> dict[str, Shard]:
        return {entry: self._shard(entry) for entry in {**self.pairs, **self.workload.axes}}

    def shard(self, entry: str) -> Shard:
        """What each rank holds: of two axes the product of its parts."""
        return self._shards[entry]

    def _shard(self, entry: str) -> Shard:
        outer, inner = self.pairs.get(entry, (entry, entry))
        if outer == inner:
            return self._over_all(outer)
        # Rank o x I + i holds part o of the one axis, and part i of the other.
        of_ranks = [run for run in self._outer(outer).runs for _ in range(self.inner)]
        within = self._even(inner, self.inner)
        beside = replace(within, runs=within.runs * (self.ranks // self.inner))
        return Shard(self.workload.dim(outer), tuple(of_ranks), beside)

    def hops(self, before: str, after: str) -> Hops | None:
        """The fewest all-to-alls from one entry to another; None: there is no way.

        A search in breadth: ``ways`` holds ways from ``before`` to different entries, the shortest
        first, each a list of entries of which two neighbours are one all-to-all apart.
        """
        if before not in self.pairs or after not in self.pairs:
            return None
        ways, reached = [[before]], {before}
        while ways:
            way = ways.pop(0)
            if way[-1] == after:
                return [self._hops[step] for step in pairwise(way)]
            for entry in self.pairs:
                if entry not in reached and (way[-1], entry) in self._hops:
                    reached.add(entry)
                    ways.append([*way, entry])
        return None

    @cached_property
    def _hops(self) -> dict[tuple[str, str], Hop]:
        """The all-to-all between each two entries that are one apart."""
        hops = {ends: self._hop(*ends) for ends in permutations(self.pairs, 2)}
        return {ends: hop for ends, hop in hops.items() if hop is not None}

    def _hop(self, before: str, after: str) -> Hop | None:
        """The one all-to-all from an entry to another; None: it takes more than one.

        An axis that is cut over all ranks can give up, or take over, its cut inside the groups and
        keep the one across them, not the other way round. With 2 groups of 4, rank r holds the
        r-th eighth of time. Within groups, ranks 0 to 3 exchange and 4 to 7: each group has a half
        of time. Across them, ranks 0 and 4 do: eighths 0 and 4 lie apart, and are no part that an
        entry names.
        """
        (outer, inner), (new_outer, new_inner) = self.pairs[before], self.pairs[after]
        of_two_axes = [entry for entry in (before, after) if self._has_two_axes(entry)]
        if not of_two_axes:  # space -> time: the one cut of all ranks
            return Hop(self.shard(before), self.shard(after))
        if outer == new_outer:  # time+space -> time+width, time+space -> time, time -> time+space
            return self._hop_of_one_cut(before, after, (inner, new_inner), outer, INNER)
        if inner == new_inner and len(of_two_axes) == 2:  # time+space -> width+space
            return self._hop_of_one_cut(before, after, (outer, new_outer), inner, OUTER)
        return None

    def _has_two_axes(self, entry: str) -> bool:
        """Whether it cuts one axis across the groups and another within them."""
        outer, inner = self.pairs[entry]
        return outer != inner

    def _hop_of_one_cut(
        self, before: str, after: str, moved: tuple[str, str], kept: str, over: str
    ) -> Hop:
        """The all-to-all that moves one cut and leaves the other.

        Parameters
        ----------
        before, after : str
            Entries of a layout.
        moved : tuple of str
            The axis that is cut before and becomes whole (or less cut), and the one that is cut
            in its place.
        kept : str
            The axis that stays cut as it is across the groups of ``over``.
        over : str
            The axis of the mesh in whose groups the all-to-all goes.
        """
        away, there = moved
        # An entry of one axis cuts it over all ranks. How the kept axis is cut across the groups
        # alone is what an entry of two axes says: one of the ends is such a one.
        two_axes = before if self._has_two_axes(before) else after
        stays = self._cut(two_axes, kept)
        return Hop(self._cut(before, away), self._cut(after, there), over=over, stays=stays)

    def _cut(self, entry: str, axis: str) -> Shard:
        """How ``entry`` cuts one of its axes."""
        cut = self.shard(entry).of(self.workload.dim(axis))
        assert cut is not None, f"{entry} leaves {axis} whole"
        return cut

    def _outer(self, axis: str) -> Shard:
        """The cut over the outer ranks: where the axis may be cut over all, their parts joined."""
        if self.workload.axes[axis] >= self.ranks:
            return self._over_all(axis).joined(self.inner)
        return self._even(axis, self.ranks // self.inner)

    def _over_all(self, axis: str) -> Shard:
        return self._even(axis, self.ranks) if self.joint is None else self.joint.shard(axis)

    def _even(self, axis: str, parts: int) -> Shard:
        return Shard.even(self.workload.dim(axis), self.workload.axes[axis], parts)


# The planner: the layout of fewest bytes through a whole stack.

Cost = tuple[float, float]
"""Bytes that ranks wait for (of each transfer's busiest rank), then imbalance of compute."""
Inside = Mapping[Sublayer, Mapping[str, Cost]]
"""Cost of each sublayer without switches, for each axis that may be sharded in it."""
Moves = Mapping[tuple[str, str, bool], float]
"""Bytes of a switch from axis to axis, and whether it starts a block; absent: there is none."""


class Best(NamedTuple):
    """The axis that is sharded in each sublayer, and what the whole stack costs."""

    layout: Layout
    cost: Cost


def leads_through(plan: Plan) -> bool:
    """Whether some layout of the plan's choices has a way for each of its switches."""
    first, *others = plan.workload.places
    reached = {*plan.choices(first.sublayer)}
    inside = {sublayer: plan.choices(sublayer) for sublayer in plan.workload.kinds}
    taken = {axis for axes in inside.values() for axis in axes}
    ways = {ends for ends in product(taken, repeat=2) if plan.hops(*ends) is not None}
    for place in others:
        axes = inside[place.sublayer]
        reached = {after for after in axes if any((axis, after) in ways for axis in reached)}
    return bool(reached)


def cheapest_layout(plan: Plan) -> Best | None:
    """The layout of fewest bytes over the axes that are the plan's choices; None: no switches lead
    through the stack.

    Dynamic programming from the last sublayer back to the first. ``ahead[axis]`` is the least cost
    of all sublayers from one on, if ``axis`` is sharded in that one. With K axes in rotation it
    finds K/(K-1) switches a round, and none after the last attention. On a tie the axis stays, so
    switches come late.
    """
    inside = {sublayer: _inside(sublayer, plan) for sublayer in plan.workload.kinds}
    moves = _moves(inside, plan)
    ahead: dict[str, Cost] = {after: (0.0, 0.0) for _, after, _ in moves}
    follow: list[dict[str, str]] = []  # from the last sublayer: the axis behind each axis
    for place in reversed(plan.workload.places):
        into = place.is_last  # the switch behind it starts a block
        costs: dict[str, Cost] = {}
        chosen: dict[str, str] = {}
        for axis, (sent, uneven) in inside[place.sublayer].items():
            options = {
                after: (sent + later + moves[axis, after, into], uneven + waited)
                for after, (later, waited) in ahead.items()
                if (axis, after, into) in moves
            }
            if options:
                # Of equal costs False comes first, which is to stay.
                costs[axis], _, chosen[axis] = min(
                    (cost, after != axis, after) for after, cost in options.items()
                )
        ahead = costs
        follow.append(chosen)
    if not ahead:
        return None
    layout = [min(ahead, key=ahead.__getitem__)]
    least = ahead[layout[0]]
    for chosen in follow[:0:-1]:  # from the first sublayer; nothing follows the last
        layout.append(chosen[layout[-1]])
    return Best(tuple(layout), least)


def _inside(sublayer: Sublayer, plan: Plan) -> dict[str, Cost]:
    return {
        axis: (
            bytes_in_a_step(
                plan.workload,
                *plan.traffic_of(sublayer, axis),
                attended_again=plan.attended_again(sublayer, axis),
            ),
            plan.shard(axis).imbalance - 1,
        )
        for axis in plan.choices(sublayer)
    }


def _moves(inside: Inside, plan: Plan) -> Moves:
    """A switch into a block is not recomputed."""
    taken = dict.fromkeys(axis for costs in inside.values() for axis in costs)
    moves: dict[tuple[str, str, bool], float] = {}
    for a, b in product(taken, repeat=2):
        if plan.hops(a, b) is not None:
            sent = plan.switch_traffic(a, b)
            moves[a, b, True] = bytes_in_a_step(plan.workload, *sent, repeated=False)
            moves[a, b, False] = bytes_in_a_step(plan.workload, *sent)
    return moves
