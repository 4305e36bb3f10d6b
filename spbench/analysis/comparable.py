"""Which rows may be compared: rows of one case, of the same hardware, and in one panel.

- ``matched``: the cases of two runs, by key where both have it, else by what is computed, on how
  many ranks and by which strategy. Device and seed are left out then: another device is a reason
  not to compare a case, and not another case.
- ``mismatch``: times of different GPUs, or of different versions of torch, say nothing about a
  change of the code. A field that is blank on one side is not known there, and stops nothing.
- ``in_panels``: a panel is what strategies share that stand side by side, but for the ranks.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from operator import attrgetter

import pandas

from spbench.results.reading import records_of
from spbench.results.record import Record

SHAPE = ("axes", "batch", "dtype", "mode", "checkpointing", "kind")
COMPUTES = ("workload", *SHAPE, "world_size", "strategy")
"""Columns in which rows of one case agree, whatever their device and seed."""
PANEL = ("workload", "workload_key", *SHAPE, "device")
"""Columns in which rows of one panel agree, besides the effort."""
LIBRARIES = ("device", "backend", "gpu", "torch", "cuda", "nccl")
"""What the memory of a step depends on, besides the code."""
HARDWARE = (*LIBRARIES, "hardware", "ranks_by_node", "effort", "statistic")
"""What its time depends on: links between machines, and a quick launch warms up for less."""
IN_FRAME = (*LIBRARIES, "hardware", "placement", "world_size", "effort", "schema_version")
"""The columns that ``HARDWARE`` is made of."""
Setup = tuple[str, ...]
"""Values of ``HARDWARE``."""


def matched(
    before: pandas.DataFrame, after: pandas.DataFrame
) -> Iterator[tuple[str | None, str | None]]:
    """The key of each case in both runs, in the order of the second; one may be None.

    An interrupted launch says nothing of the code. What a baseline has as skipped, because a
    strategy declined it, cannot be missed.
    """
    old = _cases(before[~before["status"].isin(["interrupted", "skipped"])])
    tried = after[after["status"] != "interrupted"]
    new = _cases(tried)
    ran = set(tried.loc[tried["status"] != "skipped", "case"])
    # A case whose key both runs have is matched with no other, whichever comes first.
    spare: dict[tuple[object, ...], list[str]] = {}
    for case, (_, *computes) in old.items():
        if case not in new:
            spare.setdefault(tuple(computes), []).append(case)
    for case, (workload_key, *computes) in new.items():
        alike = spare.get(tuple(computes), [])
        same = case if case in old else _same_workload(workload_key, old, alike)
        if same is not None:
            del old[same]
        if same is not None or case in ran:
            yield same, case
    for case in old:
        yield case, None


def _cases(frame: pandas.DataFrame) -> dict[str, tuple[object, ...]]:
    """By the key of each case: the key of its workload, and what it computes."""
    columns = (frame[name] for name in ("workload_key", *COMPUTES))
    return dict(zip(frame["case"], zip(*columns, strict=True), strict=True))


def _same_workload(
    workload_key: object, old: dict[str, tuple[object, ...]], spare: list[str]
) -> str | None:
    """The first of ``spare`` with the same workload; it is taken from there.

    Rows from before workloads had keys are known by the workload's name.
    """
    for case in spare:
        keys = {old[case][0], workload_key}
        if len(keys) == 1 or "" in keys:
            spare.remove(case)
            return case
    return None


def setups_of(frame: pandas.DataFrame) -> list[Setup]:
    """For each row the values of ``HARDWARE``."""
    kind = frame.groupby(list(IN_FRAME), sort=False, dropna=False).ngroup()
    setups = list(map(attrgetter(*HARDWARE), records_of(frame[~kind.duplicated()])))
    return [setups[number] for number in kind]


def mismatch(
    before: Collection[Setup], after: Collection[Setup], fields: Sequence[str] = HARDWARE
) -> str:
    """What differs, in words; blank if the two may be compared.

    Launches of one side that differ among themselves are not to be compared with anything.
    """
    if len({*before, *after}) <= 1:
        return ""  # as nearly always, and much sooner known
    reasons = []
    for i, name in enumerate(fields):
        old, new = ({setup[i] for setup in side if setup[i]} for side in (before, after))
        word = name.replace("_", " ")
        mixed = next((values for values in (new, old) if len(values) > 1), None)
        if mixed:
            reasons.append(f"launches with {word} {_listed(mixed)} in one case")
        elif old and new and old != new:
            reasons.append(f"{word} {_listed(new)}, was {_listed(old)}")
    return "; ".join(reasons)


def _listed(values: set[str]) -> str:
    return " and ".join(sorted(values))


def in_panels(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The frame with the columns ``panel``, a title, and ``panel_number``, in the run's order.

    Panels of one name are told apart by what they differ in.
    """
    effort = frame["effort"].replace("", "full")
    number = frame.groupby([*(frame[name] for name in PANEL), effort], sort=False).ngroup()
    firsts = records_of(frame[~number.duplicated()])
    alike: dict[str, list[Setup]] = {}
    for record in firsts:
        alike.setdefault(panel_title(record), []).append(_apart(record))
    titles = [_title(record, alike[panel_title(record)]) for record in firsts]
    return frame.assign(panel=[titles[i] for i in number], panel_number=number)


def panel_title(record: Record) -> str:
    """Workload, shape and mode in words."""
    axes = re.sub(r"(?<=\d)x", " x ", record.axes).replace("=", " ")
    words = [axes, f"batch {record.batch}", record.dtype, record.mode]
    if record.checkpointing != "none":
        words.append("checkpointed")
    if record.kind != "measured":
        words.append(record.kind.replace("_", " "))
    return f"{record.workload} ({', '.join(words)})"


def _apart(record: Record) -> Setup:
    """What panels of one name may differ in, in words."""
    key = f"workload {record.workload_key}" if record.workload_key else ""
    return key, record.device, "" if record.effort_label == "full" else record.effort


def _title(record: Record, alike: Sequence[Setup]) -> str:
    words = [
        word
        for i, word in enumerate(_apart(record))
        if word and len({other[i] for other in alike}) > 1
    ]
    return " ".join([panel_title(record), ", ".join(words)]).rstrip()
