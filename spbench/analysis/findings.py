"""One metric of one case, before and after: its status, time, memory or volume."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from spbench.analysis.case_figures import failed_launches
from spbench.analysis.compare import MARGIN, Comparison
from spbench.analysis.rows import LaunchRow, LaunchRows
from spbench.workload.traffic import OPS, PHASES

Metric = Literal["status", "time", "memory", "volume"]
METRICS: tuple[Metric, ...] = ("status", "time", "memory", "volume")


@dataclass(frozen=True, kw_only=True)
class Margins:
    """Relative differences that count as none: 0.02 is 2 %."""

    time: float = MARGIN
    memory: float = 0.01


USUAL = Margins()


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One metric of one case, before and after."""

    case: str = ""
    """The case's key; the second run's where both have the case."""
    panel: str = ""
    """Workload, shape and mode in words."""
    strategy: str = ""
    ranks: int = 0
    metric: Metric
    verdict: str
    """faster, same, slower, inconclusive, broke, fixed, changed, new, missing, not comparable."""
    before: float | str | None = None
    """Milliseconds, bytes or a status."""
    after: float | str | None = None
    comparison: Comparison | None = None
    """The comparison of the times, where the metric is time."""
    reason: str = ""
    changed_unit: Literal["", "bytes", "calls"] = ""
    """What of the volume changed; blank of other metrics, and where nothing did."""
    culprit: str = ""
    """What explains the change of a time: compute, exposed, bytes or memory, and by how much."""
    gate_error: float | None = None
    """The largest relative error of the gate after, in the finding of the status."""
    tolerance: float | None = None
    """The largest error that the gate lets pass."""
    kind: str = ""
    """How the figures of the case came about, as the column of a record says."""

    @property
    def is_share(self) -> bool:
        """Whether one GPU computed a rank's share, without messages: its time is no step's."""
        return self.kind == "one_gpu_share"

    @property
    def what(self) -> str:
        """The metric in words: the time of a share of one GPU is of what a rank computes."""
        return "compute share" if self.is_share and self.metric == "time" else self.metric

    @property
    def ratio(self) -> float | None:
        """After over before."""
        if self.comparison is not None:
            return self.comparison.ratio
        if isinstance(self.before, str) or isinstance(self.after, str):
            return None
        return self.after / self.before if self.before and self.after is not None else None


def compare_status(before: LaunchRows | None, after: LaunchRows | None) -> Finding:
    """A launch that failed gives its case its status, as the other launches cannot be relied on.

    An earlier failure excuses no failure of another kind. None: a run does not have the case.
    """
    if not after:
        return Finding(metric="status", verdict="missing", reason="this case was not measured now")
    if not before:
        return _status_of_new(_worst(after))
    earlier = {*before["status"]}
    old, new = _worst(before), _worst(after, but=earlier)
    had_good, has_good = ("ok" in rows["status"] for rows in (before, after))
    if new["status"] == "ok":
        verdict = "same" if old["status"] == "ok" else "fixed"
    else:
        # A case that had good launches before and has none now broke, whatever failed then.
        is_as_before = new["status"] in earlier and (has_good or not had_good)
        verdict = "same" if is_as_before else "broke" if had_good else "changed"
    was = f"it was {old['status']}. {old['reason']}"
    reason = was if verdict == "fixed" else _why(new, after, as_before=verdict == "same")
    return Finding(
        metric="status", verdict=verdict, before=old["status"], after=new["status"], reason=reason
    )


def _why(worst: LaunchRow, rows: LaunchRows, *, as_before: bool) -> str:
    """How many of the launches ended like ``worst``, and why it did; blank if it is ok."""
    status = worst["status"]
    if status == "ok":
        return ""
    share = status if {*rows["status"]} == {status} else failed_launches(status, rows)
    return f"{share}{', as before' if as_before else ''}. {worst['reason']}"


def _status_of_new(row: LaunchRow) -> Finding:
    """A case that was not measured before, or was skipped: no earlier failure excuses it."""
    none_before = "this case was not measured before"
    if row["status"] in ("ok", "skipped"):
        return Finding(metric="status", verdict="new", reason=none_before)
    reason = f"{row['status']}, and {none_before}. {row['reason']}"
    return Finding(metric="status", verdict="broke", after=row["status"], reason=reason)


def _worst(rows: LaunchRows, but: Collection[str] = ()) -> LaunchRow:
    """The first failure, preferably with a status not in ``but``; without any, the last row."""
    failed = rows.only(status != "ok" for status in rows["status"])
    others = failed.only(status not in but for status in failed["status"])
    return (others or failed).row(0) if failed else rows.row(-1)


Counts = dict[str, int]
SENT_BY_PHASE = {f"sent_bytes_{phase}": phase for phase in PHASES}
SENT_BY_OP = {f"{op}_bytes": op for op in OPS}
PREDICTED = {f"predicted_bytes_{phase}": phase for phase in PHASES}
"""Columns of bytes, with the phase or operation that each counts."""


def both_sent(before: LaunchRows, after: LaunchRows) -> tuple[int | None, int | None]:
    """Bytes that a rank sends in a step, before and after."""
    old, new = (
        sum(counts.get(phase, 0) for phase in PHASES) if counts else None
        for counts in _counts(before, after)
    )
    return old, new


@dataclass(frozen=True, kw_only=True)
class VolumeChange:
    """What a launch sends more or less of than before, a phrase for each phase and operation."""

    bytes: Sequence[str]
    calls: Sequence[str]

    @property
    def unit(self) -> Literal["", "bytes", "calls"]:
        """What differs; of fewer or more calls bytes alone are named, where these differ, too."""
        if self.bytes:
            return "bytes"
        return "calls" if self.calls else ""

    def __str__(self) -> str:
        return "; ".join([*self.bytes, *self.calls])


def volume_change(before: LaunchRows, after: LaunchRows) -> VolumeChange:
    """The change of the first launch that sends anything else than before; else no phrases."""
    launches = (LaunchRows(after.columns, [number]) for number in after.numbers)
    changes = (_change(before, launch) for launch in launches)
    return next((change for change in changes if change.unit), VolumeChange(bytes=(), calls=()))


def _change(before: LaunchRows, launch: LaunchRows) -> VolumeChange:
    old, new = _counts(before, launch)
    shared = [name for name in old if name in new]
    sent = _differences({n: old[n] for n in shared}, {n: new[n] for n in shared}, "bytes")
    was, now = _calls(before), _calls(launch)
    calls = _differences(was, now, "calls") if was and now else ()
    return VolumeChange(bytes=[*sent], calls=[*calls])


def _differences(old: Counts, new: Counts, unit: str) -> Iterator[str]:
    for name in dict.fromkeys([*old, *new]):
        was, now = old.get(name, 0), new.get(name, 0)
        if was != now:
            yield f"{name} {now:,} {unit}, was {was:,} ({now - was:+,})"


def _counts(before: LaunchRows, after: LaunchRows) -> tuple[Counts, Counts]:
    """The bytes that were sent, if known before and after; else the predictions.

    A share sends nothing, and a launch may be wrong before anything is counted. A count is never
    compared with a prediction: only the count shows a call too many.
    """
    sent = _sent(before), _sent(after)
    predicted = _last(before, PREDICTED), _last(after, PREDICTED)
    return predicted if all(predicted) and not all(sent) else sent


def _sent(rows: LaunchRows) -> Counts:
    """Bytes by phase and operation; those by operation count only beside those by phase."""
    by_phase = _last(rows, SENT_BY_PHASE)
    return by_phase and by_phase | _last(rows, SENT_BY_OP)


def _last(rows: LaunchRows, columns: Mapping[str, str]) -> Counts:
    """The columns of the last launch that has a value in any of them."""
    for row in reversed([*rows]):
        cells = {name: row[column] for column, name in columns.items()}
        counts = {name: count for name, count in cells.items() if count is not None}
        if counts:
            return counts
    return {}


def _calls(rows: LaunchRows) -> Counts:
    """Calls by phase and operation, which a row has as ``forward.all_to_all=55``."""
    for text in reversed(rows["collectives"]):
        words = [word.partition("=") for word in text.split()]
        if words:
            return {name.replace(".", " "): int(n) for name, _, n in words if n.isdecimal()}
    return {}
