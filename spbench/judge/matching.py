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
    for key in [*new]:
        twin = key if key in old else next((k for k in old if _alike(old[k], new[key])), None)
        is_idle = twin is None and all(one.status == "skipped" for one in new[key])
        rows = new.pop(key)
        if not is_idle:
            yield old.pop(twin) if twin is not None else [], rows
    for rows in old.values():
        yield rows, []


def _by_case(records: Iterable[Record]) -> dict[str, Rows]:
    cases: dict[str, Rows] = {}
    for record in records:
        cases.setdefault(record.case, []).append(record)
    return cases


def _alike(old: Rows, new: Rows) -> bool:
    """Rows of before there were keys of workloads are known by its name."""
    keys = {old[-1].workload_key, new[-1].workload_key}
    return _computes(old[-1]) == _computes(new[-1]) and (len(keys) == 1 or "" in keys)


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
