"""Who holds what, axis by axis of a mesh around a strategy, in lines of text.

dp=2        ranks 0 4        2 of 4 samples each
pp=2        ranks 0 2        blocks 1 to 13, 14 to 28; 2 microbatches, bubble 50 %
sequence=2  ranks 0 1        positions of each sample
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from spbench.text import counted
from spbench.workload.mesh import CFG, DP, PP, TP

if TYPE_CHECKING:
    from spbench.strategies.base import Plan

MOST = 4
"""Ranks and stages that are named; of more the first ones."""


def who_holds(plan: Plan) -> tuple[str, ...]:
    """A line for each axis; none where the strategy has all ranks."""
    axes = plan.mesh.axes
    if plan.mesh == plan.group.mesh and (TP not in plan.mesh.names or len(axes) == 1):
        return ()
    names = [f"{axis}={size}" for axis, size in axes]
    ranks = [_ranks(plan, axis) for axis, _ in axes]
    wide, wider = (max(map(len, column)) for column in (names, ranks))
    return tuple(
        f"{name.ljust(wide)}  {members.ljust(wider)}  {_what(plan, axis, size)}"
        for name, members, (axis, size) in zip(names, ranks, axes, strict=True)
    )


def _ranks(plan: Plan, axis: str) -> str:
    """The first group of the axis."""
    first = plan.mesh.groups(axis)[0]
    more = " .." if len(first) > MOST else ""
    return f"ranks {' '.join(map(str, first[:MOST]))}{more}"


def _what(plan: Plan, axis: str, size: int) -> str:
    work = plan.workload
    if axis == DP:
        return f"{work.batch // size} of {counted(work.batch, 'sample')} each"
    if axis == CFG:
        return f"{work.guidance // size} of {counted(work.guidance, 'branch')} of guidance each"
    if axis == PP:
        return "; ".join(_of_stages(plan))
    if axis == TP or (plan.cuts_weights and axis == plan.mesh.last):
        return f"1/{size} of the weights each"
    return "positions or heads of each sample"


def _of_stages(plan: Plan) -> Iterator[str]:
    stages = plan.stages
    assert stages is not None, "a mesh with this axis has them"
    named = [f"{part.blocks.start + 1} to {part.blocks.stop}" for part in stages.parts]
    more = ", .." if len(named) > MOST else ""
    yield f"blocks {', '.join(named[:MOST])}{more}"
    yield f"{counted(stages.microbatches, 'microbatch')}, bubble {float(stages.bubble):.0%}"
