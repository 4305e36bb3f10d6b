"""What may stand side by side, and what it is called."""

from __future__ import annotations

import re
from collections.abc import Iterable

from spbench.results.record import Record

Group = tuple[str, str, int, str, str, str, str, str, str, int]
"""What two cases must share to stand side by side: a panel, and a number of ranks."""


def group_of(record: Record) -> Group:
    return (
        f"{record.workload} {record.workload_key}",
        record.axes,
        record.batch,
        record.dtype,
        record.mode,
        record.checkpointing,
        record.device,
        record.kind,
        record.effort_label,
        record.world_size,
    )


def panel_of(record: Record) -> str:
    """A title for what stands side by side, the number of ranks apart."""
    axes = re.sub(r"(?<=\d)x", " x ", record.axes).replace("=", " ")
    words = [axes, f"batch {record.batch}", record.dtype, record.mode]
    if record.checkpointing != "none":
        words.append("checkpointed")
    if record.kind != "measured":
        words.append(record.kind.replace("_", " "))
    return f"{record.workload} ({', '.join(words)})"


def titles(records: Iterable[Record]) -> dict[Group, str]:
    """A title for each group; panels of one name are told apart by what they differ in."""
    panels: dict[Group, tuple[str, tuple[str, str, str]]] = {}
    alike: dict[str, set[tuple[str, str, str]]] = {}
    for record in records:
        panel, apart = panel_of(record), _apart(record)
        panels[group_of(record)] = panel, apart
        alike.setdefault(panel, set()).add(apart)
    return {group: _title(panel, apart, alike[panel]) for group, (panel, apart) in panels.items()}


def _apart(record: Record) -> tuple[str, str, str]:
    """What panels of one name may differ in, in words."""
    key = f"workload {record.workload_key}" if record.workload_key else ""
    return key, record.device, "" if record.effort_label == "full" else record.effort


def _title(panel: str, apart: tuple[str, ...], alike: set[tuple[str, str, str]]) -> str:
    words = [
        word for i, word in enumerate(apart) if word and len({other[i] for other in alike}) > 1
    ]
    return " ".join([panel, ", ".join(words)]).rstrip()
