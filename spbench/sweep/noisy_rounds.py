"""Rounds that ``run`` measures again, since too few launches of a strategy were quiet.

A round is measured again whole, so that ratios are still those of launches next to each other, and
as a launch of its own: what was disturbed stays in ``runs.csv``. As many rounds as were planned may
follow, and only while they can still bring enough quiet launches: on a machine that is never quiet
that is a single one (docs/decisions/0016).
"""

from __future__ import annotations

from collections.abc import Sequence

from spbench.analysis.intervals import LEAST_LAUNCHES
from spbench.results.record import Record
from spbench.sweep.plan import in_rounds
from spbench.workload.case import Case, Cell


def noisy_rounds(cells: Sequence[Cell], latest: Sequence[Record], seed: int) -> list[Cell]:
    """One more round of each workload and number of ranks that lacks quiet launches.

    ``cells`` are those that were planned, ``latest`` has a row of each launch so far. Quick
    launches, and fewer than an interval takes, are not measured again.
    """
    groups: dict[tuple[str, int], list[Case]] = {}
    for cell in cells:
        if cell.case.budget.label == "full":
            groups.setdefault((cell.case.workload_key, cell.case.ranks), []).append(cell.case)
    return [cell for cases in groups.values() for cell in _one_more(cases, latest, seed)]


def _one_more(cases: Sequence[Case], latest: Sequence[Record], seed: int) -> list[Cell]:
    planned = 1 + max(case.launch for case in cases)
    by_key = {case.key: case for case in cases}
    rows = [row for row in latest if row.case in by_key and row.effort_label == "full"]
    good = {key: [row for row in rows if (row.case, row.status) == (key, "ok")] for key in by_key}
    again = [key for key in by_key if len(good[key]) >= LEAST_LAUNCHES]
    lacking = [LEAST_LAUNCHES - sum(not row.noisy for row in good[key]) for key in again]
    launch = 1 + max((row.launch for row in rows), default=0)
    if not 0 < max(lacking, default=0) <= 2 * planned - launch:
        return []
    return in_rounds([by_key[key] for key in again], [launch], seed)
