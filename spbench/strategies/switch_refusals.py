"""Reasons why a strategy that switches between axes cannot run on a number of ranks."""

from __future__ import annotations

from spbench.workload.block import Sublayer
from spbench.workload.workload import Workload


def no_order_kept(name: str, axis: str) -> str:
    """Why strategy ``name``, which cuts ``axis`` out of order, cannot attend among switches."""
    return (
        f"under a causal mask {name} gives each rank an early and a late chunk of {axis}, but a "
        "switch needs positions in their order; leave out the option across, or use 1 rank"
    )


def nothing_to_switch(workload: Workload) -> str:
    """Why no axis can be sharded while others are attended, on any number of ranks."""
    if len(workload.axes) == 1:
        return "it shards an axis that is not attended, and needs a second sequence axis"
    return (
        f"every attention joins {', '.join(workload.axes)}, which leaves no axis to shard; "
        "strategies that share heads, pass keys or cut weights can run it"
    )


def too_short(workload: Workload, ranks: int) -> str | None:
    """Why no axis that is not attended can be sharded in some sublayer: all have too few positions;
    or None."""
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


def no_two_axes(inner: str, ranks: int) -> str:
    """Why ranks in groups of ``inner`` cannot shard axes in every sublayer, one or two at once."""
    return (
        f"{ranks} ranks in groups of inner={inner} leave a sublayer without axes to shard, which "
        "are not attended and long enough; leave out the option inner"
    )
