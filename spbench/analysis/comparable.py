"""Which rows may be compared: rows of one case, of the same hardware, and in one panel.

- ``matched``: cases of two runs, by key where both have it, else by what is computed, on how many
  ranks and by which strategy. Device and seed are left out then: another device is a reason not to
  compare a case, and not another case.
- ``mismatch``: times of different GPUs, or of different versions of torch, say nothing about a
  change of the code. A field that is blank on one side is not known there, and stops nothing.
- ``panel_key``: what strategies must share to stand side by side, and ``panel_titles`` in words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from spbench.results.record import Record

Rows = list[Record]


def matched(before: Iterable[Record], after: Iterable[Record]) -> Iterator[tuple[Rows, Rows]]:
    """The rows of each case on both sides, in the order of the second; one side may be empty.

    What was interrupted says nothing of the code. What a baseline has as skipped, because a
    strategy declined it, is nothing that could be missed.
    """
    old = _by_case(one for one in before if one.status not in ("interrupted", "skipped"))
    new = _by_case(one for one in after if one.status != "interrupted")
    # A twin of the same key is nobody else's, whoever comes first.
    spare: dict[tuple[object, ...], list[str]] = {}
    for key, rows in old.items():
        if key not in new:
            spare.setdefault(_computes(rows[-1]), []).append(key)
    for key, rows in new.items():
        twin = key if key in old else _twin(rows, old, spare.get(_computes(rows[-1]), []))
        is_idle = twin is None and all(one.status == "skipped" for one in rows)
        if not is_idle:
            yield old.pop(twin) if twin is not None else [], rows
    for rows in old.values():
        yield rows, []


def _by_case(records: Iterable[Record]) -> dict[str, Rows]:
    cases: dict[str, Rows] = {}
    for record in records:
        cases.setdefault(record.case, []).append(record)
    return cases


def _twin(rows: Rows, old: dict[str, Rows], spare: list[str]) -> str | None:
    """The first of ``spare``, which it takes from there, that is of the same workload.

    Rows of before there were keys of workloads are known by its name.
    """
    for key in spare:
        keys = {old[key][-1].workload_key, rows[-1].workload_key}
        if len(keys) == 1 or "" in keys:
            spare.remove(key)
            return key
    return None


def _computes(record: Record) -> tuple[object, ...]:
    return (
        record.workload,
        record.axes,
        record.batch,
        record.dtype,
        record.mode,
        record.checkpointing,
        record.kind,
        record.world_size,
        record.strategy,
    )


LIBRARIES = ("device", "backend", "gpu", "torch", "cuda", "nccl")
"""What the memory of a step depends on, besides the code."""
HARDWARE = (*LIBRARIES, "hardware", "ranks_by_node", "effort", "statistic")
"""What its time depends on: links between machines, and a quick launch warms up for less."""


def mismatch(
    before: Iterable[Record], after: Iterable[Record], fields: Sequence[str] = HARDWARE
) -> str:
    """What differs, in words; blank if the two may be compared.

    Launches of one side that differ among themselves are not to be compared with anything.
    """
    both = list(before), list(after)
    kinds = {kind for side in both for kind in map(attrgetter(*fields), side)}
    if len(kinds) <= 1:
        return ""  # as nearly always, and much sooner known
    old, new = (_facts(side, fields) for side in both)
    said = []
    for name in fields:
        mixed = next((side[name] for side in (new, old) if len(side[name]) > 1), None)
        if mixed:
            said.append(f"launches with {_word(name)} {_listed(mixed)} in one case")
        elif old[name] and new[name] and old[name] != new[name]:
            said.append(f"{_word(name)} {_listed(new[name])}, was {_listed(old[name])}")
    return "; ".join(said)


def _facts(records: Iterable[Record], fields: Sequence[str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {name: set() for name in fields}
    for record in records:
        for name in fields:
            if value := getattr(record, name):
                found[name].add(value)
    return found


def _word(name: str) -> str:
    return name.replace("_", " ")


def _listed(values: set[str]) -> str:
    return " and ".join(sorted(values))


PanelKey = tuple[str, str, int, str, str, str, str, str, str, int]
"""What two cases must share to stand side by side: a panel, and a number of ranks."""


def panel_key(record: Record) -> PanelKey:
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


def panel_title(record: Record) -> str:
    """A title for what stands side by side, the number of ranks apart."""
    axes = re.sub(r"(?<=\d)x", " x ", record.axes).replace("=", " ")
    words = [axes, f"batch {record.batch}", record.dtype, record.mode]
    if record.checkpointing != "none":
        words.append("checkpointed")
    if record.kind != "measured":
        words.append(record.kind.replace("_", " "))
    return f"{record.workload} ({', '.join(words)})"


def panel_titles(records: Iterable[Record]) -> dict[PanelKey, str]:
    """A title for each group; panels of one name are told apart by what they differ in."""
    panels: dict[PanelKey, tuple[str, tuple[str, str, str]]] = {}
    alike: dict[str, set[tuple[str, str, str]]] = {}
    for record in records:
        panel, apart = panel_title(record), _apart(record)
        panels[panel_key(record)] = panel, apart
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
