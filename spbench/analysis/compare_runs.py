"""One run against another, case by case and metric by metric.

Times are judged by interval, memory by a margin, bytes and calls exactly.
"""

from collections.abc import Sequence
from dataclasses import replace

import pandas

from spbench.analysis.case_figures import culprit_of, gate_error
from spbench.analysis.comparable import LIBRARIES, between_kinds, in_panels, matched, mismatch
from spbench.analysis.compare import compare_times
from spbench.analysis.findings import (
    METRICS,
    USUAL,
    Finding,
    Margins,
    Metric,
    both_sent,
    compare_status,
    volume_change,
)
from spbench.analysis.launches import CaseRows, cases_by, launches_by
from spbench.analysis.rows import LaunchRows
from spbench.results.record import COLUMNS

SAME_LAUNCHES = "both runs hold the same launches"
CASE = ["run", "case"]
BEFORE, AFTER = 0, 1
"""Values of the column ``run``."""


def compare_runs(
    before: pandas.DataFrame,
    after: pandas.DataFrame,
    margins: Margins = USUAL,
    *,
    metrics: Sequence[Metric] = METRICS,
    allow_mismatch: bool = False,
) -> list[Finding]:
    """Findings for each case that either run has, in the order of the second."""
    cases = _cases_of_runs(before, after)
    findings: list[Finding] = []
    for name_before, name_after in matched(before, after):
        old, new = cases.get((BEFORE, name_before)), cases.get((AFTER, name_after))
        case = new or old
        assert case is not None
        status = _status(old.every if old else None, new.every if new else None)
        error, tolerance = _gate(new)
        of_case = [replace(status, gate_error=error, tolerance=tolerance)]
        if old is not None and new is not None:
            of_case += [
                *_time(old, new, margins.time, allow_mismatch),
                *_memory(old, new, margins.memory, allow_mismatch),
                *_volume(old, new),
            ]
        last = case.every.row(-1)
        findings += [
            replace(
                finding,
                case=last["case"],
                panel=case.panel,
                strategy=last["strategy"],
                ranks=last["world_size"],
                kind=last["kind"],
            )
            for finding in of_case
            if finding.metric in metrics or finding.metric == "status"
        ]
    return findings


def _cases_of_runs(
    before: pandas.DataFrame, after: pandas.DataFrame
) -> dict[tuple[int, str | None], CaseRows]:
    """The cases of both runs, by the values of ``CASE``."""
    both = in_panels(
        pandas.concat([before.assign(run=BEFORE), after.assign(run=AFTER)], ignore_index=True)
    )
    is_skipped = (both["run"] == BEFORE) & (both["status"] == "skipped")
    both = both[~is_skipped & (both["status"] != "interrupted")].reset_index(drop=True)
    is_copy = both.duplicated(list(COLUMNS)) & (both["run"] == AFTER)
    is_used = ~is_copy | is_copy.groupby([both[name] for name in CASE]).transform("all")
    used = both[is_used]
    return cases_by(both, CASE, is_used, launches_by(used, CASE))


def _time(before: CaseRows, after: CaseRows, margin: float, allow_mismatch: bool) -> list[Finding]:
    old, new = before.launches, after.launches
    comparison = compare_times(old, new, margin, allow_mismatch=allow_mismatch)
    if comparison is None:
        return _lost("time", bool(old.ms), after)
    is_same = comparison.verdict == "same"
    is_copy = is_same and _are_copies(before.every, after.every)
    return [
        Finding(
            metric="time",
            verdict=comparison.verdict,
            before=comparison.before_ms,
            after=comparison.after_ms,
            comparison=comparison,
            reason=SAME_LAUNCHES if is_copy else comparison.reason,
            culprit=culprit_of(before, after, bool(volume_change(before.used, after.used).unit)),
        )
    ]


def _are_copies(before: LaunchRows, after: LaunchRows) -> bool:
    """Whether each row after is one of those before, in all columns."""
    old, new = ([tuple(row[name] for name in COLUMNS) for row in rows] for rows in (before, after))
    return all(row in old for row in new)


def _status(before: LaunchRows | None, after: LaunchRows | None) -> Finding:
    """How the case ended. What was projected did not end, and broke nothing."""
    if not before or not after:
        return compare_status(before, after)
    old, new = before.row(-1), after.row(-1)
    if old["kind"] == new["kind"]:
        return compare_status(before, after)
    return Finding(
        metric="status",
        verdict="not comparable",
        before=old["status"],
        after=new["status"],
        reason=between_kinds([old["kind"]], [new["kind"]]),
    )


def _gate(after: CaseRows | None) -> tuple[float | None, float | None]:
    """The largest error of the gate in any launch, and the tolerance of that launch."""
    launches = [(gate_error(row), row["tolerance"]) for row in after.every] if after else []
    gated = [(error, tolerance) for error, tolerance in launches if error is not None]
    return max(gated, key=lambda launch: launch[0], default=(None, None))


def _memory(
    before: CaseRows, after: CaseRows, margin: float, allow_mismatch: bool
) -> list[Finding]:
    was, now = _peak_bytes(before), _peak_bytes(after)
    if not was or not now:
        return _lost("memory", bool(was), after)
    setups = before.launches.setups.values(), after.launches.setups.values()
    why_not = mismatch(*setups, LIBRARIES)
    if why_not and not allow_mismatch:
        return [Finding(metric="memory", verdict="not comparable", reason=why_not)]
    inside = 1 - margin <= now / was <= 1 + margin
    verdict = "not comparable" if why_not else "same" if inside else "changed"
    return [Finding(metric="memory", verdict=verdict, before=was, after=now, reason=why_not)]


def _peak_bytes(case: CaseRows) -> float:
    """The largest peak, since any launch may take as much; 0: not measured."""
    return max(case.used.having("status", "ok").measured("peak_allocated_bytes"), default=0)


def _volume(before: CaseRows, after: CaseRows) -> list[Finding]:
    """Compares wrong launches, too, if their prediction changed: that explains them."""
    if not before.launches.setups:
        return []
    if before.used and after.used and before.used["kind"][-1] != after.used["kind"][-1]:
        return []  # the status says so
    was, now = both_sent(before.used, after.used)
    if was is None or now is None:
        return _lost("volume", was is not None, after)
    change = volume_change(before.used, after.used)
    if not change.unit and not after.launches.setups:
        return []  # the prediction is the same; the bytes that were sent are not known
    return [
        Finding(
            metric="volume",
            verdict="changed" if change.unit else "same",
            before=was,
            after=now,
            reason=str(change),
            changed_unit=change.unit,
        )
    ]


def _lost(metric: Metric, was_known: bool, after: CaseRows) -> list[Finding]:
    """A finding if the figure was known before: without it, a lost figure would pass a check."""
    if not was_known or not after.launches.setups:
        return []
    return [Finding(metric=metric, verdict="not comparable", reason="it was not measured now")]
