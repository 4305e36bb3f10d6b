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
    return {
        "case": case.key,
        "strategy": case.name,
        "workload": work.name,
        "tokens": work.tokens,
        "hidden": work.hidden,
        "heads": work.heads,
        "axes": axes_text(work.axes),
        "batch": work.batch,
        "dtype": work.dtype,
        "mode": work.mode,
        "checkpointing": work.checkpointing,
        "optimizer": "" if work.optimizer == "none" else work.optimizer,
        "guidance": "" if work.guidance == 1 else str(work.guidance),
        "device": case.device,
        "kind": case.kind,
        "world_size": case.ranks,
        **case.mesh.sizes(case.ranks),
        "mesh": str(case.mesh),
        "launch": case.launch,
        "workload_key": case.workload_key,
        "effort": case.budget.label,
    }
