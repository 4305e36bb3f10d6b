"""A case over commits, and the first commit where it got worse.

Each point is compared with the one before it, as ``compare A B`` would. It is the first bad one if
it is worse and every later point is still worse than what came before it: a run that was disturbed
for once is no regression. Points of other hardware or libraries make a series of their own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas

from spbench.analysis.case_figures import Figure, figure
from spbench.analysis.comparable import COMPUTES, in_panels, mismatch, setups_of
from spbench.analysis.compare_runs import compare_runs
from spbench.analysis.findings import Finding, Margins, Metric
from spbench.analysis.rows import rows_of
from spbench.analysis.verdict import ALPHA
from spbench.workload.traffic import PHASES

WORSE = {"time": "slower", "memory": "changed", "volume": "changed", "status": "broke"}
"""The verdicts that are worse, by metric."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A case at one commit."""

    commit: str
    """The commit, with ``+`` where its tree was changed; else the name of the run."""
    since: str
    runs: Sequence[str]
    launches: int
    step_ms: Figure | None
    peak_bytes: int | None
    sent_bytes: int | None
    findings: Sequence[Finding]
    """What changed from the point before; none at the first point."""

    @property
    def time(self) -> Finding | None:
        return next((f for f in self.findings if f.metric == "time"), None)


@dataclass(frozen=True, kw_only=True)
class Series:
    """A case in one environment, by commit."""

    panel: str
    strategy: str
    ranks: int
    environment: str
    is_share: bool
    """Times of a share of one GPU are what a rank computes, without messages, and no steps."""
    points: Sequence[Point]
    worse: Mapping[Metric, int]
    """The number of the first bad point of each metric that got worse."""


def histories(rows: pandas.DataFrame, margins: Margins) -> list[Series]:
    """A series for each case and environment of these rows, which have ``point`` and ``since``."""
    rows = in_panels(rows[~rows["status"].isin(["skipped", "interrupted"])].reset_index(drop=True))
    return [
        _series(frames, margins)
        for _, of_case in rows.groupby([*COMPUTES, "workload_key"], sort=False, dropna=False)
        for frames in _by_environment(of_case.sort_values("since", kind="stable"))
    ]


def _by_environment(rows: pandas.DataFrame) -> list[list[pandas.DataFrame]]:
    """The frames of the points, in series that may be compared: the first that a point fits."""
    series: list[list[pandas.DataFrame]] = []
    for _, point in rows.groupby("point", sort=False):
        setups = setups_of(point)
        place = next((s for s in series if not mismatch(setups_of(s[-1]), setups)), None)
        if place is None:
            series.append([point])
        else:
            place.append(point)
    return series


def _series(frames: Sequence[pandas.DataFrame], margins: Margins) -> Series:
    points = [
        _point(frame, [] if old is None else compare_runs(old, frame, margins))
        for old, frame in zip([None, *frames[:-1]], frames, strict=True)
    ]
    worse: dict[Metric, int] = {}
    for i in range(1, len(frames)):
        for finding in points[i].findings:
            is_first = finding.metric not in worse and _is_worse(finding, len(frames) - 1)
            if is_first and _lasts(finding, frames[i - 1], frames[i + 1 :], margins):
                worse[finding.metric] = i
    last = rows_of(frames[-1]).row(-1)
    machine = last["hardware"] or last["gpu"] or last["device"]
    libraries = last["torch"] and f"torch {last['torch']}"
    return Series(
        panel=last["panel"],
        strategy=last["strategy"],
        ranks=last["world_size"],
        environment=", ".join(filter(None, (machine, libraries))),
        is_share=last["kind"] == "one_gpu_share",
        points=points,
        worse=worse,
    )


def _is_worse(finding: Finding, looks: int) -> bool:
    """Whether it is worse: a time at a level that all points share."""
    if finding.verdict != WORSE[finding.metric]:
        return False
    if finding.comparison is not None:
        return finding.comparison.p_slower <= ALPHA / looks
    return (finding.ratio or 1.0) > 1.0 or finding.metric in ("status", "volume")


def _lasts(
    finding: Finding, before: pandas.DataFrame, later: Sequence[pandas.DataFrame], margins: Margins
) -> bool:
    """Whether every later point is worse than ``before`` in the same metric."""
    return all(
        any(
            other.metric == finding.metric and other.verdict == WORSE[other.metric]
            for other in compare_runs(before, frame, margins)
        )
        for frame in later
    )


def _point(frame: pandas.DataFrame, findings: Sequence[Finding]) -> Point:
    good = rows_of(frame).having("status", "ok")
    quiet = good.having("noisy", "") or good
    times = [row.compared_ms for row in quiet if row.compared_ms]
    by_launch = zip(*(good[f"sent_bytes_{phase}"] for phase in PHASES), strict=True)
    sent = [sum(counts) for counts in by_launch if None not in counts]
    peaks = good.measured("peak_allocated_bytes")
    return Point(
        commit=str(frame["point"].iloc[0]),
        since=str(frame["since"].iloc[0]),
        runs=list(frame["kept"].unique()),
        launches=len(times),
        step_ms=figure(times),
        peak_bytes=int(max(peaks)) if peaks else None,
        sent_bytes=sent[-1] if sent else None,
        findings=findings,
    )
