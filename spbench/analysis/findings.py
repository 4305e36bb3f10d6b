"""What is found of one metric of one case, before and after: status, time, memory or volume."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from spbench.analysis.compare import MARGIN, Comparison
from spbench.results.record import Record
from spbench.workload.traffic import OPS, PHASES

Metric = Literal["status", "time", "memory", "volume"]
METRICS: tuple[Metric, ...] = ("status", "time", "memory", "volume")


@dataclass(frozen=True, kw_only=True)
class Margins:
    """How much more is still the same."""

    time: float = MARGIN
    memory: float = 0.01


USUAL = Margins()


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One metric of one case, before and after."""

    case: str = ""
    """Its key on the side that has it; the second's where both have."""
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
    """Of times."""
    reason: str = ""

    @property
    def ratio(self) -> float | None:
        """After over before."""
        if self.comparison is not None:
            return self.comparison.ratio
        if isinstance(self.before, str) or isinstance(self.after, str):
            return None
        return self.after / self.before if self.before and self.after is not None else None


def compare_status(before: Sequence[Record], after: Sequence[Record]) -> Finding:
    """A launch that failed is the case's status: nobody can rely on the others. An earlier failure
    excuses none of another kind."""
    if not after:
        return Finding(metric="status", verdict="missing", reason="this case was not measured now")
    if not before:
        return _status_of_new(_worst(after))
    known = {record.status for record in before}
    old, new = _worst(before), _worst(after, but=known)
    good = [any(record.status == "ok" for record in side) for side in (before, after)]
    if new.status == "ok":
        verdict = "same" if old.status == "ok" else "fixed"
    elif new.status in known and good[0] <= good[1]:
        verdict = "same"
    else:
        verdict = "broke" if good[0] else "changed"
    if verdict == "fixed":
        reason = f"it was {old.status}. {old.reason}"
    else:
        reason = _of_failing(new, after, as_before=verdict == "same")
    return Finding(
        metric="status", verdict=verdict, before=old.status, after=new.status, reason=reason
    )


def _of_failing(worst: Record, records: Sequence[Record], *, as_before: bool) -> str:
    """How many launches ended like ``worst``, of all, and why it did; blank if it is ok."""
    if worst.status == "ok":
        return ""
    alone = all(one.status == worst.status for one in records)
    said = worst.status if alone else failed_launches(worst.status, records)
    return f"{said}{', as before' if as_before else ''}. {worst.reason}"


def failed_launches(status: str, records: Sequence[Record]) -> str:
    """How many launches did so, and how many otherwise than ok: 1 of 5 launches: hang, 2 crash."""
    counts = Counter[str](record.status for record in records if record.status != "ok")
    share = f"{counts.pop(status)} of {len(records)} launches: {status}"
    return share + "".join(f", {count} {other}" for other, count in counts.items())


def _status_of_new(record: Record) -> Finding:
    """What was not there, or not to be run, and fails now: no earlier failure excuses it."""
    none_before = "this case was not measured before"
    if record.status in ("ok", "skipped"):
        return Finding(metric="status", verdict="new", reason=none_before)
    reason = f"{record.status}, and {none_before}. {record.reason}"
    return Finding(metric="status", verdict="broke", after=record.status, reason=reason)


def _worst(records: Sequence[Record], but: Collection[str] = ()) -> Record:
    """One that failed, otherwise than ``but`` if there is such a one; else one that is ok."""
    failed = [record for record in records if record.status != "ok"]
    otherwise = [record for record in failed if record.status not in but]
    return (otherwise or failed or records[-1:])[0]


Counts = dict[str, int]


def sent_by_both(
    before: Sequence[Record], after: Sequence[Record]
) -> tuple[int | None, int | None]:
    """Bytes of a rank in a step."""
    old, new = (
        sum(side[phase] for phase in PHASES if phase in side) if side else None
        for side in _counts(before, after)
    )
    return old, new


def volume_difference(before: Sequence[Record], after: Sequence[Record]) -> str:
    """Each phase and operation that sends more or less than before, of any launch, in words."""
    return next((said for one in after if (said := _of_launch(before, [one]))), "")


def _of_launch(before: Sequence[Record], after: Sequence[Record]) -> str:
    old, new = _counts(before, after)
    shared = [name for name in old if name in new]
    said = [*_differences({n: old[n] for n in shared}, {n: new[n] for n in shared}, "bytes")]
    was, now = _calls(before), _calls(after)
    if was and now:
        said += _differences(was, now, "calls")
    return "; ".join(said)


def _differences(old: Counts, new: Counts, unit: str) -> Iterator[str]:
    for name in dict.fromkeys([*old, *new]):
        was, now = old.get(name, 0), new.get(name, 0)
        if was != now:
            yield f"{name} {now:,} {unit}, was {was:,} ({now - was:+,})"


def _counts(before: Sequence[Record], after: Sequence[Record]) -> tuple[Counts, Counts]:
    """What was sent, if it is known of both; else what was to be sent, as of a share, which sends
    nothing, or of a launch that was wrong before anything was counted. Never the one against the
    other: a call too many is in the first alone."""
    sent, predicted = ((kind(before), kind(after)) for kind in (_sent, _predicted))
    return predicted if all(predicted) and not all(sent) else sent


def _sent(records: Sequence[Record]) -> Counts:
    """By phase and by operation, of the last launch that knows."""
    found = _known(records, {f"sent_bytes_{phase}": phase for phase in PHASES})
    return found and found | _known(records, {f"{op}_bytes": op for op in OPS})


def _predicted(records: Sequence[Record]) -> Counts:
    return _known(records, {f"predicted_bytes_{phase}": phase for phase in PHASES})


def _known(records: Sequence[Record], columns: Mapping[str, str]) -> Counts:
    """Of the last launch that has any of the columns."""
    for record in reversed(records):
        every = {name: getattr(record, column) for column, name in columns.items()}
        if found := {name: count for name, count in every.items() if count is not None}:
            return found
    return {}


def _calls(records: Sequence[Record]) -> Counts:
    """Calls by phase and operation, as ``forward.all_to_all=55`` says them."""
    for record in reversed(records):
        words = [word.partition("=") for word in record.collectives.split()]
        if words:
            return {name.replace(".", " "): int(n) for name, _, n in words if n.isdecimal()}
    return {}
