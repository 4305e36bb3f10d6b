"""Which rows of two runs are of one case.

By the key of the case where both sides have it; else by what is computed, on how many ranks and
by which strategy. The device and the seed are then left out: another device is a reason not to
compare a case, and no other case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
