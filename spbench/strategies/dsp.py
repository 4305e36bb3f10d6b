"""Strategies that attend for another one, where all axes are joined and it has none to shard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice, pairwise, permutations, product
from operator import itemgetter
from typing import ClassVar, NamedTuple, cast, final

from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.layers.attention import Scores
from spbench.strategies.base import Layout, Strategy, switch_traffic
from spbench.strategies.fixed_axis import AUTO, FixedAxis, Known
from spbench.strategies.refusals import across_misfit, groups_why_not, size_misfit
from spbench.strategies.registry import EXCHANGES, load
from spbench.workload.block import Sublayer
from spbench.workload.mesh import ALL
from spbench.workload.sharding import Shard
from spbench.workload.traffic import Hop, Traffic, bytes_in_a_step
from spbench.workload.workload import Workload


def exchange(name: str) -> FixedAxis:
    """The strategy of that name."""
    return cast("FixedAxis", load(name))


def joint_alone(workload: Workload) -> Workload | None:
    """A block of the attentions that join all axes, and nothing else; None: there is none."""
    joint = [each for each in workload.attentions if set(each.axes) == set(workload.axes)]
    if not joint:
        return None
    return workload.model_copy(update={"stacks": None, "depth": 1, "block": tuple(joint)})


def fitting(across: str, joint: Workload, ranks: int, inner: int) -> list[str]:
    """Names among ``across`` (all for ``auto``) of strategies that can attend between switches; in
    groups of ``inner`` > 1 ranks only strategies without groups of their own."""
    fit = [name for name in _names(across) if _why_not(name, joint, ranks) is None]
    return [name for name in fit if inner == 1 or len(exchange(name).mesh(joint, ranks)) == 1]


def none_fits(across: str, joint: Workload, ranks: int) -> str | None:
    """Why none of ``across`` can attend among switches: what the first lacks; or None."""
    reasons = [_why_not(name, joint, ranks) for name in _names(across)]
    return None if None in reasons else reasons[0]


def _names(across: str) -> Sequence[str]:
    return EXCHANGES if across == AUTO else (across,)


def _why_not(name: str, joint: Workload, ranks: int) -> str | None:
    other = exchange(name)
    unfit = other.why_not(joint, ranks)
    if unfit is not None:
        return unfit
    mixed = [axis for axis in joint.axes if not _keeps_order(other.shard(joint, axis, ranks))]
    if not mixed:
        return None
    return (
        f"under a causal mask {name} gives each rank an early and a late chunk of {mixed[0]}, but "
        "a switch needs positions in their order; leave out the option across, or use 1 rank"
    )


def _keeps_order(shard: Shard) -> bool:
    """Whether rank order is the order of positions."""
    runs = [run for own in shard.runs for run in own if run[1]]
    return runs == sorted(runs)


# Two axes of the tensor sharded at once, over the two axes of a mesh of ranks.
#
#     {"outer": 2, "inner": 4}  time+space   time cut over 2 groups, space within each of 4
#                                  space          space cut over all 8
#
# One all-to-all moves one of the two cuts, in groups of its axis of the mesh. An axis that is cut
# over all ranks is cut within the groups first: there alone a cut joins another or leaves it, since
# elsewhere its positions would come out of order.

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
    joint: tuple[FixedAxis, Workload] | None
    """What attends to all axes joined, and a workload of such attention alone."""

    @property
    def mesh(self) -> Mapping[str, int]:
        """The groups of ranks; without inner ones those of what attends to all axes joined."""
        if self.inner > 1:
            return {OUTER: self.ranks // self.inner, INNER: self.inner}
        if self.joint is None:
            return {"sequence": self.ranks}
        return self.joint[0].mesh(self.joint[1], self.ranks)

    @cached_property
    def pairs(self) -> dict[str, Pair]:
        """The axes of each entry of a layout, all of them long enough."""
        axes, outer, inner = self.workload.axes, self.ranks // self.inner, self.inner
        fits = permutations(axes, 2) if inner > 1 else ()
        two = {f"{a}+{b}": (a, b) for a, b in fits if axes[a] >= outer and axes[b] >= inner}
        return two | {axis: (axis, axis) for axis, n in axes.items() if n >= self.ranks}

    def free(self, sublayer: Sublayer) -> list[str]:
        """Entries without an axis that is attended."""
        return [x for x, pair in self.pairs.items() if not {*pair} & {*sublayer.attended}]

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
        each = [run for run in self._outer(outer).runs for _ in range(self.inner)]
        within = self._even(inner, self.inner)
        beside = replace(within, runs=within.runs * (self.ranks // self.inner))
        return Shard(self.workload.dim(outer), tuple(each), beside)

    def hops(self, before: str, after: str) -> Sequence[Hop] | None:
        """The fewest all-to-alls from one entry to another; None: there is no way."""
        if before not in self.pairs or after not in self.pairs:
            return None
        ways, seen = [[before]], {before}
        while ways:
            way = ways.pop(0)
            if way[-1] == after:
                return [self._hops[step] for step in pairwise(way)]
            for entry in self.pairs:
                if entry not in seen and (way[-1], entry) in self._hops:
                    seen.add(entry)
                    ways.append([*way, entry])
        return None

    @cached_property
    def _hops(self) -> dict[tuple[str, str], Hop]:
        """Entries that are one all-to-all apart."""
        return {ends: self._hop(*ends) for ends in permutations(self.pairs, 2) if self._over(*ends)}

    def _over(self, before: str, after: str) -> str:
        """The axis of the mesh whose groups one all-to-all goes in; '': there is none."""
        (a, b), (c, d) = self.pairs[before], self.pairs[after]
        if a == c or (a == b and c == d):
            return INNER if a == c else ALL
        return OUTER if b == d and a != b and c != d else ""

    def _hop(self, before: str, after: str) -> Hop:
        over, ends = self._over(before, after), (before, after)
        if over == ALL:
            return Hop(self.shard(before), self.shard(after))
        moves = int(over == INNER)  # the place in a pair
        cut, other = (self._cut(end, self.pairs[end][moves]) for end in ends)
        two = next(end for end in ends if len({*self.pairs[end]}) == 2)
        return Hop(cut, other, over=over, stays=self._cut(two, self.pairs[before][1 - moves]))

    def _cut(self, entry: str, axis: str) -> Shard:
        return next(x for x in self.shard(entry).cuts if x.dim == self.workload.dim(axis))

    def _outer(self, axis: str) -> Shard:
        if self.workload.axes[axis] >= self.ranks:
            return self._over_all(axis).joined(self.inner)
        return self._even(axis, self.ranks // self.inner)

    def _over_all(self, axis: str) -> Shard:
        if self.joint is None:
            return self._even(axis, self.ranks)
        return self.joint[0].shard(self.joint[1], axis, self.ranks)

    def _even(self, axis: str, parts: int) -> Shard:
        return Shard.even(self.workload.dim(axis), self.workload.axes[axis], parts)


# What a strategy that switches may shard in each sublayer, by which settings, or why nothing.


class Settings(NamedTuple):
    """What attends to all axes joined, and the ranks of an inner group."""

    across: str
    inner: str


@lru_cache(maxsize=100)
def two_axes(settings: Settings, known: Known, ranks: int) -> TwoAxes:
    """What may be sharded with these settings, one axis or two at once."""
    joint = joint_alone(known.workload)
    other = None if joint is None else (exchange(settings.across), joint)
    return TwoAxes(known.workload, ranks, int(settings.inner), other)


def choices(
    settings: Settings, sublayer: Sublayer, workload: Workload, ranks: int
) -> Sequence[str]:
    """Axes that are long enough and not attended; where all are attended, those of the exchange."""
    joint = joint_alone(workload)
    if joint is None or sublayer not in joint.kinds:
        return two_axes(settings, Known.of(workload), ranks).free(sublayer)
    return exchange(settings.across).choices(sublayer, joint, ranks)


def fitting_settings(given: Settings, workload: Workload, ranks: int) -> Iterator[Settings]:
    """Settings that leave each sublayer an axis to shard; only those without groups if any does."""
    joint = joint_alone(workload)
    if joint and len(joint.kinds) == len(workload.attentions):
        return
    sizes = [1, *(size for size in range(2, ranks // 2 + 1) if ranks % size == 0)]
    for size in sizes if given.inner == AUTO else [int(given.inner)]:
        names = EXCHANGES[:1] if joint is None else fitting(given.across, joint, ranks, size)
        each = [Settings(name, str(size)) for name in names]
        fit = [x for x in each if all(choices(x, s, workload, ranks) for s in workload.kinds)]
        yield from fit
        if size == 1 and fit:
            return


def none_is_enough(given: Settings, workload: Workload, ranks: int) -> str:
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
    if given.inner not in (AUTO, "1"):
        return (
            f"{ranks} ranks in groups of inner={given.inner} leave a sublayer without axes to "
            "shard, which are not attended and long enough; leave out the option inner"
        )
    return _too_short(workload, ranks) or (joint and none_fits(given.across, joint, ranks)) or ""


def notes_of(settings: Settings, given: Settings, workload: Workload) -> str:
    """What these settings do beyond switching between axes, and whether bytes decided."""
    notes = []
    if settings.inner != "1":
        notes.append("two axes are sharded at once where one is too short")
    if joint_alone(workload) is not None:
        joint = "attention over all axes joined leaves none to shard: it goes by"
        why = ", which sends the fewest bytes" if given.across == AUTO else ""
        notes.append(f"{joint} {settings.across}{why}")
    return "; ".join(notes)


def _too_short(workload: Workload, ranks: int) -> str | None:
    """Why some sublayer has no axis to shard: those not attended are all too short; or None."""
    kinds = [each for each in workload.kinds if {*workload.axes} - {*each.attended}]
    longest = {each: _longest(each, workload) for each in kinds}
    sublayer = min(kinds, key=lambda each: workload.axes[longest[each]])
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


# The layout of fewest bytes through a whole stack, from what sublayers and switches cost.

Cost = tuple[float, float]
"""Bytes that ranks wait for (of each transfer's busiest rank), then imbalance of compute."""
Inside = Mapping[Sublayer, Mapping[str, Cost]]
"""Cost of each sublayer without switches, for each axis that may be sharded in it."""
Moves = Mapping[tuple[str, str, bool], float]
"""Bytes of a switch from axis to axis, and whether it starts a block; absent: there is none."""


class Plan(NamedTuple):
    """The axis that is sharded in each sublayer, and what the whole stack costs."""

    layout: tuple[str, ...]
    cost: Cost


def cheapest_plan(strategy: Strategy, workload: Workload, ranks: int) -> Plan | None:
    """The plan of fewest bytes over the axes that are the strategy's choices; None: no switches
    lead through the stack.

    Dynamic programming from the last sublayer back to the first. ``ahead[axis]`` is the least cost
    of all sublayers from one on, if ``axis`` is sharded in that one. With K axes in rotation it
    finds K/(K-1) switches a round, and none after the last attention. On a tie the axis stays, so
    switches come late.
    """
    inside = {each: _inside(each, strategy, workload, ranks) for each in workload.kinds}
    moves = _moves(inside, strategy, workload, ranks)
    ahead: dict[str, Cost] = {after: (0.0, 0.0) for _, after, _ in moves}
    follow: list[dict[str, str]] = []
    for place in reversed(workload.places):
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
                costs[axis], _, chosen[axis] = min(
                    (cost, after != axis, after) for after, cost in options.items()
                )
        ahead = costs
        follow.append(chosen)
    if not ahead:
        return None
    plan = [min(ahead, key=ahead.__getitem__)]
    least = ahead[plan[0]]
    for chosen in follow[:0:-1]:
        plan.append(chosen[plan[-1]])
    return Plan(tuple(plan), least)


def _inside(
    sublayer: Sublayer, strategy: Strategy, workload: Workload, ranks: int
) -> dict[str, Cost]:
    return {
        axis: (
            bytes_in_a_step(workload, *strategy.sublayer_traffic(sublayer, workload, axis, ranks)),
            strategy.shard(workload, axis, ranks).imbalance - 1,
        )
        for axis in strategy.choices(sublayer, workload, ranks)
    }


def _moves(inside: Inside, strategy: Strategy, workload: Workload, ranks: int) -> Moves:
    """A switch into a block is not recomputed."""
    taken = dict.fromkeys(axis for costs in inside.values() for axis in costs)
    moves: dict[tuple[str, str, bool], float] = {}
    for a, b in product(taken, repeat=2):
        if strategy.hops(workload, a, b, ranks) is not None:
            sent = switch_traffic(strategy, workload, a, b, ranks)
            moves[a, b, True] = bytes_in_a_step(workload, *sent, repeated=False)
            moves[a, b, False] = bytes_in_a_step(workload, *sent)
    return moves


# Dynamic Sequence Parallelism (Zhao et al., ICML 2025): shard an axis that is not attended.
#
# Attention along one axis never mixes positions of another. So while a sublayer attends along
# one axis, another is sharded, and the sublayer needs no communication. Where the next one
# attends along the sharded axis, one all-to-all moves the sharding elsewhere.
#
#     attention over space    (B, T/N, S, H)
#         switch              time whole again, space sharded: f M / N sent by each rank
#     attention over time     (B, T, S/N, H)
#
# So there is no communication code here: this file is a planner, and the model switches
# wherever the layout changes. Two axes may be sharded at once (``two_axes.py``). Attention over
# all axes joined leaves none to shard: another strategy attends in that sublayer, at its true cost.

MOST = 8
"""Settings that are weighed at most, those of the smallest inner groups."""


@final
@dataclass(frozen=True, kw_only=True)
class DSP(Strategy):
    """The layout of fewest bytes over the whole stack, switching as late as possible.

    ``across`` attends where all axes are joined; with ``inner`` above 1 two axes may be sharded at
    once, one within groups of so many ranks: by default where one is not enough.
    """

    forms: ClassVar[tuple[str, ...]] = ("inner=2",)
    across: str = AUTO
    inner: str = AUTO

    @property
    def settings(self) -> Settings:
        """Both options."""
        return Settings(self.across, self.inner)

    def misfit(self, workload: Workload) -> str | None:
        return size_misfit(inner=self.inner) or across_misfit(self.across, (AUTO, *EXCHANGES))

    def why_not(self, workload: Workload, ranks: int) -> str | None:
        unfit = groups_why_not(ranks, inner=self.inner)
        if unfit or _cheapest(self, Known.of(workload), ranks):
            return unfit
        return none_is_enough(self.settings, workload, ranks)

    def settled(self, workload: Workload, ranks: int) -> DSP:
        if AUTO not in (self.across, self.inner):
            return self
        return _cheapest(self, Known.of(workload), ranks) or self

    def alternatives(self, workload: Workload, ranks: int) -> list[DSP]:
        """Each exchange where all axes are joined, in each size of inner groups that is allowed."""
        if AUTO not in (self.across, self.inner):
            return []
        fit = fitting_settings(self.settings, workload, ranks)
        each = (replace(self, **settings._asdict()) for settings in fit)
        return [one for one in each if _plan(one, Known.of(workload), ranks) is not None]

    def others(self, workload: Workload, ranks: int) -> list[tuple[Strategy, Workload, int]]:
        joint = joint_alone(workload)
        if joint is None:
            return []
        return [(exchange(self.settled(workload, ranks).across), joint, ranks)]

    def notes(self, workload: Workload, ranks: int) -> str:
        chosen = self.settled(workload, ranks).settings
        return notes_of(chosen, self.settings, workload)

    def _cuts(self, workload: Workload, ranks: int) -> TwoAxes:
        chosen = self.settled(workload, ranks).settings
        return two_axes(chosen, Known.of(workload), ranks)

    def mesh(self, workload: Workload, ranks: int) -> Mapping[str, int]:
        return self._cuts(workload, ranks).mesh

    def shard(self, workload: Workload, axis: str, ranks: int) -> Shard:
        return self._cuts(workload, ranks).shard(axis)

    def hops(self, workload: Workload, before: str, after: str, ranks: int) -> Sequence[Hop] | None:
        return self._cuts(workload, ranks).hops(before, after)

    def layout(self, workload: Workload, ranks: int) -> Layout:
        plan = _plan(self.settled(workload, ranks), Known.of(workload), ranks)
        assert plan is not None, "what is settled has a plan"
        return plan.layout

    def choices(self, sublayer: Sublayer, workload: Workload, ranks: int) -> Sequence[str]:
        chosen = self.settled(workload, ranks).settings
        return choices(chosen, sublayer, workload, ranks)

    def sublayer_traffic(
        self, sublayer: Sublayer, workload: Workload, axis: str, ranks: int
    ) -> Traffic:
        joint = joint_alone(workload)
        if joint is None or axis not in sublayer.attended:
            return super().sublayer_traffic(sublayer, workload, axis, ranks)
        other = exchange(self.settled(workload, ranks).across)
        return other.sublayer_traffic(sublayer, joint, axis, ranks)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        if shard.dim in scores.dims:  # which it is where all are; ``settled`` has named the other
            return exchange(self.across).attend(q, k, v, scores, shard, comm)
        return super().attend(q, k, v, scores, shard, comm)


@lru_cache(maxsize=100)
def _plan(strategy: DSP, known: Known, ranks: int) -> Plan | None:
    return cheapest_plan(strategy, known.workload, ranks)


@lru_cache(maxsize=100)
def _cheapest(strategy: DSP, known: Known, ranks: int) -> DSP | None:
    """With the settings of the fewest bytes in a step; None: with none is there a plan."""
    fit = fitting_settings(strategy.settings, known.workload, ranks)
    each = (replace(strategy, **settings._asdict()) for settings in fit)
    plans = ((round(plan.cost[0]), one) for one in each if (plan := _plan(one, known, ranks)))
    return min(islice(plans, MOST), key=itemgetter(0), default=(0, None))[1]
