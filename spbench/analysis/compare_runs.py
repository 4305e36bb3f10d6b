"""Two runs against each other, case by case and metric by metric.

Times are judged by interval, memory by a margin, bytes and calls exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas

from spbench.analysis.comparable import LIBRARIES, in_panels, matched, mismatch
from spbench.analysis.compare import compare_times
from spbench.analysis.findings import (
    METRICS,
    USUAL,
    Finding,
    Margins,
    Metric,
    compare_status,
    sent_by_both,
    volume_difference,
)
from spbench.analysis.launches import NONE, Launches, launches_by
from spbench.results.iterations import Traces
from spbench.results.reading import records_of
from spbench.results.record import COLUMNS, Record

SAME_LAUNCHES = "both runs hold the same launches"
CASE = ["run", "case"]
BEFORE, AFTER = 0, 1
"""Values of the column ``run``."""


@dataclass(frozen=True, kw_only=True)
class CaseOfRun:
    """What one run has of a case."""

    panel: str
    every: Sequence[Record]
    used: Sequence[Record]
    """Of a run that went on after its baseline was made, what is new since; else all."""
    launches: Launches
    """Those of ``used`` that are ok."""
    is_copy: bool
    """Whether all of it is in the other run, too."""

    @property
    def peak_bytes(self) -> int:
        """The largest of the launches: what one takes, any may take. 0: not measured."""
        peaks = [one.peak_allocated_bytes or 0 for one in self.used if one.status == "ok"]
        return max(peaks, default=0)


def compare_runs(
    before: pandas.DataFrame,
    after: pandas.DataFrame,
    margins: Margins = USUAL,
    *,
    metrics: Sequence[Metric] = METRICS,
    allow_mismatch: bool = False,
    traces: tuple[Traces, Traces] | None = None,
) -> list[Finding]:
    """Findings for each case that either run has, in the order of the second.

    ``traces``: iterations of launches that took turns (see ``paired_steps.py``).
    """
    cases = _cases_of_runs(before, after, traces)
    findings: list[Finding] = []
    for name_before, name_after in matched(before, after):
        old, new = cases.get((BEFORE, name_before)), cases.get((AFTER, name_after))
        known = new or old
        assert known is not None
        of_case = [compare_status(old.every if old else [], new.every if new else [])]
        if old is not None and new is not None:
            of_case += [
                *_time(old, new, margins.time, allow_mismatch),
                *_memory(old, new, margins.memory, allow_mismatch),
                *_volume(old, new),
            ]
        last = known.every[-1]
        findings += [
            replace(
                one,
                case=last.case,
                panel=known.panel,
                strategy=last.strategy,
                ranks=last.world_size,
            )
            for one in of_case
            if one.metric in metrics or one.metric == "status"
        ]
    return findings


def _cases_of_runs(
    before: pandas.DataFrame, after: pandas.DataFrame, traces: tuple[Traces, Traces] | None
) -> dict[tuple[int, str | None], CaseOfRun]:
    """By run and key of the case."""
    both = in_panels(
        pandas.concat([before.assign(run=BEFORE), after.assign(run=AFTER)], ignore_index=True)
    )
    is_skipped = (both["run"] == BEFORE) & (both["status"] == "skipped")
    both = both[~is_skipped & (both["status"] != "interrupted")].reset_index(drop=True)
    is_copy = both.duplicated(list(COLUMNS)) & (both["run"] == AFTER)
    all_copies = is_copy.groupby([both[name] for name in CASE]).transform("all")
    is_used = ~is_copy | all_copies
    used = both[is_used]
    records = records_of(both)
    launches = launches_by(used, CASE, _steps_of_turns(used, records, traces))
    cases: dict[tuple[int, str | None], CaseOfRun] = {}
    by_case: dict[Any, Any] = both.groupby(CASE).indices
    for case, rows in by_case.items():
        cases[case] = CaseOfRun(
            panel=both["panel"][rows[-1]],
            every=[records[row] for row in rows],
            used=[records[row] for row in rows if is_used[row]],
            launches=launches.get(case, NONE),
            is_copy=bool(all_copies[rows[-1]]),
        )
    return cases


def _steps_of_turns(
    frame: pandas.DataFrame, records: Sequence[Record], traces: tuple[Traces, Traces] | None
) -> Mapping[int, Sequence[float]]:
    """The iterations of launches that took turns with the other run's, by the row."""
    if traces is None:
        return {}
    rows = zip(frame.index, frame["run"], strict=True)
    turned = [(row, run) for row, run in rows if records[row].turns]
    return {row: traces[run].steps(records[row]) for row, run in turned}


def _time(
    before: CaseOfRun, after: CaseOfRun, margin: float, allow_mismatch: bool
) -> list[Finding]:
    times = before.launches, after.launches
    comparison = compare_times(*times, margin, allow_mismatch=allow_mismatch)
    if comparison is None:
        return _unless_lost("time", bool(before.launches.ms), after)
    is_itself = comparison.verdict == "same" and after.is_copy
    return [
        Finding(
            metric="time",
            verdict=comparison.verdict,
            before=comparison.before_ms,
            after=comparison.after_ms,
            comparison=comparison,
            reason=SAME_LAUNCHES if is_itself else comparison.reason,
        )
    ]


def _memory(
    before: CaseOfRun, after: CaseOfRun, margin: float, allow_mismatch: bool
) -> list[Finding]:
    was, now = before.peak_bytes, after.peak_bytes
    if not was or not now:
        return _unless_lost("memory", bool(was), after)
    setups = before.launches.setups.values(), after.launches.setups.values()
    why_not = mismatch(*setups, LIBRARIES)
    if why_not and not allow_mismatch:
        return [Finding(metric="memory", verdict="not comparable", reason=why_not)]
    inside = 1 - margin <= now / was <= 1 + margin
    verdict = "not comparable" if why_not else "same" if inside else "changed"
    return [Finding(metric="memory", verdict=verdict, before=was, after=now, reason=why_not)]


def _volume(before: CaseOfRun, after: CaseOfRun) -> list[Finding]:
    """Also of launches that were wrong now, if they were to send something else: it tells why."""
    if not before.launches.setups:
        return []
    was, now = sent_by_both(before.used, after.used)
    if was is None or now is None:
        return _unless_lost("volume", was is not None, after)
    reason = volume_difference(before.used, after.used)
    if not reason and not after.launches.setups:
        return []  # what was to be sent is the same; what was sent is not known to be
    verdict = "changed" if reason else "same"
    return [Finding(metric="volume", verdict=verdict, before=was, after=now, reason=reason)]


def _unless_lost(metric: Metric, was_known: bool, after: CaseOfRun) -> list[Finding]:
    """A figure that was known and is not known any more would pass for want of a figure."""
    if not was_known or not after.launches.setups:
        return []
    return [Finding(metric=metric, verdict="not comparable", reason="it was not measured now")]
