"""Cases that need not be tried: at least as large as one for which there was no memory."""

from __future__ import annotations

from collections.abc import Sequence

from spbench.text import counted
from spbench.workload.case import Case

SIZES = {"axes", "batch", "depth"}
TEXTS = {"name", "source"}


def too_large(case: Case, starved: Sequence[Case]) -> str | None:
    """Why there is no memory for it either; None: that is not known."""
    for other in starved:
        if other.key == case.key:
            return f"out of memory in launch {other.launch + 1} already"
        if _is_larger(case, other):
            axes = " x ".join(f"{name} {size}" for name, size in other.workload.axes.items())
            return (
                f"larger than an oom case ({axes}, batch {other.workload.batch}, depth "
                f"{other.workload.depth} on {counted(other.ranks, 'rank')})"
            )
    return None


def _is_larger(case: Case, other: Case) -> bool:
    """Nowhere smaller, on no more ranks, and alike in all that is no size."""
    if (case.strategy, case.device, case.kind) != (other.strategy, other.device, other.kind):
        return False
    mine, theirs = case.workload, other.workload
    alike = [
        work.model_dump(exclude=SIZES | TEXTS) | {"axes": list(work.axes)}
        for work in (mine, theirs)
    ]
    return (
        alike[0] == alike[1]
        and case.ranks <= other.ranks
        and mine.batch >= theirs.batch
        and mine.depth >= theirs.depth
        and all(mine.axes[name] >= size for name, size in theirs.axes.items())
    )
