"""The columns of a row that its case fixes."""

from collections.abc import Mapping
from typing import Any

from spbench.workload.case import Case


def axes_text(axes: Mapping[str, int]) -> str:
    """Lengths as a row has them: time=8xspace=512."""
    return "x".join(f"{name}={length}" for name, length in axes.items())


def columns_of_case(case: Case) -> dict[str, Any]:
    """The columns that are known before anything ran."""
    work = case.workload
    of_work = ("tokens", "hidden", "heads", "batch", "dtype", "mode", "checkpointing")
    return {
        "case": case.key,
        "strategy": case.name,
        "workload": work.name,
        "axes": axes_text(work.axes),
        **{name: getattr(work, name) for name in of_work},
        "optimizer": "" if work.optimizer == "none" else work.optimizer,
        "guidance": "" if work.guidance == 1 else str(work.guidance),
        **{name: getattr(case, name) for name in ("device", "kind", "launch", "workload_key")},
        "world_size": case.ranks,
        **case.mesh.sizes(case.ranks),
        "mesh": str(case.mesh),
        "effort": case.budget.label,
    }
