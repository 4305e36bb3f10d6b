"""The strategies of a run side by side, case by case.

A launch is the unit: a time is the geometric mean over the launches of a case that count, and a
ratio that of two such times. Strategies of the same workload and ranks are compared round by
round, each with the reference and with the fastest.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import pandas

from spbench.analysis.case_figures import (
    cause_of,
    known,
    split_of,
    step_figure,
    why_incomplete,
    wrong_besides_gate,
)
from spbench.analysis.compare import MARGIN, Comparison, compare_side_by_side
from spbench.analysis.intervals import geometric_mean
from spbench.analysis.launches import NONE, CaseRows, Cases, cases_of
from spbench.analysis.ranking import ranking_of
from spbench.analysis.strategy_line import Line
from spbench.results.record import Record
from spbench.workload.traffic import PHASES


def compare_strategies(
    frame: pandas.DataFrame,
    reference: str | None = None,
    margin: float = MARGIN,
    cases: Cases | None = None,
) -> list[Line]:
    """A line for each case; the default reference is the first strategy that ran.

    ``cases``: those of the frame, where the caller has them.

    Panels and strategies are in the order of the run, numbers of ranks ascend. Raises ValueError
    if no case has the strategy that is named as the reference.
    """
    names = frame["strategy"].unique().tolist()
    if reference is not None and reference not in names:
        there = ", ".join(names)
        raise ValueError(f"no case of strategy {reference!r} to compare with; there are {there}")
    reference = reference or next(iter(frame.loc[frame["status"] != "skipped", "strategy"]), "")
    cases = cases_of(frame) if cases is None else cases
    lines = []
    for _, of_group in groupby(sorted(cases), key=lambda case: case[:2]):
        lines += _lines({names[case[2]]: cases[case] for case in of_group}, reference, margin)
    return lines


def _lines(group: Mapping[str, CaseRows], reference: str, margin: float) -> list[Line]:
    """The lines of one panel on one number of ranks, with their ratios; shares have none."""
    alone = {name: _line(case, reference) for name, case in group.items()}
    lowest = _lowest([*alone.values()])

    def against(base: str, name: str) -> Comparison | None:
        if alone[name].is_share:
            return None
        launches = group[base].launches if base in group else NONE
        return compare_side_by_side(launches, group[name].launches, margin)

    to_reference = {name: against(reference, name) for name in group}
    to_lowest = to_reference if lowest == reference else {n: against(lowest, n) for n in group}
    return [
        replace(
            line,
            to_reference=to_reference[name],
            to_fastest=None if name == lowest else to_lowest[name],
        )
        for name, line in alone.items()
    ]


def _lowest(lines: Sequence[Line]) -> str:
    """The strategy that the others are compared with: the lowest time that can be ranked; if none
    can be, the lowest of all, so that ratios are known though no verdict is."""
    ranking = ranking_of(lines)
    unranked = sorted([*ranking.noisy, *ranking.too_large], key=lambda line: line.time_ms or 0.0)
    candidates = [ranking.lowest] if ranking.lowest else unranked
    return candidates[0].strategy if candidates else ""


def _line(case: CaseRows, reference: str) -> Line:
    """The case by itself, without its ratios to others."""
    good = case.used
    first = (good or [cause_of(case.every)])[-1]
    wrong = [record for record in case.every if record.status == "wrong_result"]
    proved = max(wrong, key=lambda record: record.gate_error or 0.0, default=first)
    besides = wrong_besides_gate(proved) if wrong else ""
    passed = "passed" if proved.tolerance is not None else "not run"
    step = step_figure(good)
    compute_ms, exposed_ms = split_of(step.mean if step else None, good)
    peaks = known(good, "peak_allocated_bytes")
    rates = {name: known(good, name) for name in ("tokens_per_s", "mfu", "exposed_gb_per_s")}
    return Line(
        workload=first.workload,
        panel=case.panel,
        kind=first.kind,
        ranks=first.world_size,
        strategy=first.strategy,
        launches=0 if first.kind == "projected" else len(good),
        status=first.status,
        reason=why_incomplete(case.every, good),
        is_noisy=any(record.noisy for record in good),
        step_ms=step,
        only_launch_ms=_scatter(good),
        reference=reference,
        to_reference=None,
        to_fastest=None,
        **{name: geometric_mean(each) if each else None for name, each in rates.items()},
        compute_ms=compute_ms,
        exposed_comm_ms=exposed_ms,
        peak_allocated_bytes=statistics.median(peaks) if peaks else None,
        sent_bytes={phase: getattr(first, f"sent_bytes_{phase}") for phase in PHASES},
        predicted_bytes={phase: getattr(first, f"predicted_bytes_{phase}") for phase in PHASES},
        output_error=proved.output_error,
        gradient_error=proved.gradient_error,
        tolerance=proved.tolerance,
        gate="failed" if wrong and not besides else passed,
        wrong=besides,
        gated_on=first.gated_on if first.is_gate_reduced else "",
        agreed_with=first.agreed_with,
        memory_limit_bytes=first.memory_limit_bytes,
        slower_share=first.slower_share,
    )


def _scatter(records: Sequence[Record]) -> tuple[float, float] | None:
    ends = [(record.step_ms_p10, record.step_ms_p90) for record in records]
    if len(ends) != 1 or ends[0][0] is None or ends[0][1] is None:
        return None
    return ends[0][0], ends[0][1]
