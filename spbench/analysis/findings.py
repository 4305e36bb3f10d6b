"""What is found of one metric of one case, before and after: status, time, memory or volume."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import pandas

from spbench.analysis.compare import MARGIN, Comparison
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


class Ending(NamedTuple):
    """How a launch ended."""

    status: str
    reason: str = ""


def compare_status(before: Sequence[Ending], after: Sequence[Ending]) -> Finding:
    """A launch that failed gives its case its status: nobody can rely on the others. An earlier
    failure excuses none of another kind."""
    if not after:
        return Finding(metric="status", verdict="missing", reason="this case was not measured now")
    if not before:
        return _status_of_new(_worst(after))
    known = {ending.status for ending in before}
    old, new = _worst(before), _worst(after, but=known)
    good = [any(ending.status == "ok" for ending in run) for run in (before, after)]
    if new.status == "ok":
        verdict = "same" if old.status == "ok" else "fixed"
    elif new.status in known and good[0] <= good[1]:
        verdict = "same"
    else:
        verdict = "broke" if good[0] else "changed"
    if verdict == "fixed":
        reason = f"it was {old.status}. {old.reason}"
    else:
        reason = _why(new, after, as_before=verdict == "same")
    return Finding(
        metric="status", verdict=verdict, before=old.status, after=new.status, reason=reason
    )


def _why(worst: Ending, endings: Sequence[Ending], *, as_before: bool) -> str:
    """How many of the launches ended like ``worst``, and why it did; blank if it is ok."""
    if worst.status == "ok":
        return ""
    statuses = [ending.status for ending in endings]
    share = worst.status if len(set(statuses)) == 1 else failed_launches(worst.status, statuses)
    return f"{share}{', as before' if as_before else ''}. {worst.reason}"


def failed_launches(status: str, statuses: Sequence[str]) -> str:
    """How many launches did so, and how many otherwise than ok: 1 of 5 launches: hang, 2 crash."""
    counts = Counter(other for other in statuses if other != "ok")
    share = f"{counts.pop(status)} of {len(statuses)} launches: {status}"
    return share + "".join(f", {count} {other}" for other, count in counts.items())


def _status_of_new(ending: Ending) -> Finding:
    """A case that was not measured before, or was skipped: no earlier failure excuses it."""
    none_before = "this case was not measured before"
    if ending.status in ("ok", "skipped"):
        return Finding(metric="status", verdict="new", reason=none_before)
    reason = f"{ending.status}, and {none_before}. {ending.reason}"
    return Finding(metric="status", verdict="broke", after=ending.status, reason=reason)


def _worst(endings: Sequence[Ending], but: Collection[str] = ()) -> Ending:
    """A failure, with another status than ``but`` if there is such a failure; else the last."""
    failed = [ending for ending in endings if ending.status != "ok"]
    otherwise = [ending for ending in failed if ending.status not in but]
    return (otherwise or failed or endings[-1:])[0]


Counts = Mapping[str, int]


class Sent(NamedTuple):
    """What a launch sent, or was to send: bytes of one rank in a step, by name, where known."""

    phases: Counts
    ops: Counts
    predicted: Counts
    calls: str
    """As ``forward.all_to_all=55``, a word for each phase and operation."""


def sent_by_launch(frame: pandas.DataFrame) -> list[Sent]:
    """What each row tells of that."""
    kinds = (
        {f"sent_bytes_{phase}": phase for phase in PHASES},
        {f"{op}_bytes": op for op in OPS},
        {f"predicted_bytes_{phase}": phase for phase in PHASES},
    )
    counts = []
    for names in kinds:
        rows = zip(*(frame[column].tolist() for column in names), strict=True)
        counts.append(
            [
                {name: n for name, n in zip(names.values(), row, strict=True) if n is not pandas.NA}
                for row in rows
            ]
        )
    return [Sent(*row) for row in zip(*counts, frame["collectives"], strict=True)]


def sent_by_both(before: Sequence[Sent], after: Sequence[Sent]) -> tuple[int | None, int | None]:
    """Bytes of a rank in a step."""
    old, new = (
        sum(counts[phase] for phase in PHASES if phase in counts) if counts else None
        for counts in _counts(before, after)
    )
    return old, new


def volume_difference(before: Sequence[Sent], after: Sequence[Sent]) -> str:
    """Each phase and operation that sends more or less than before, of any launch, in words."""
    return next((words for sent in after if (words := _of_launch(before, sent))), "")


def _of_launch(before: Sequence[Sent], after: Sent) -> str:
    old, new = _counts(before, [after])
    shared = [name for name in old if name in new]
    words = [*_differences({n: old[n] for n in shared}, {n: new[n] for n in shared}, "bytes")]
    was, now = _calls(before), _calls([after])
    if was and now:
        words += _differences(was, now, "calls")
    return "; ".join(words)


def _differences(old: Counts, new: Counts, unit: str) -> Iterator[str]:
    for name in dict.fromkeys([*old, *new]):
        was, now = old.get(name, 0), new.get(name, 0)
        if was != now:
            yield f"{name} {now:,} {unit}, was {was:,} ({now - was:+,})"


def _counts(before: Sequence[Sent], after: Sequence[Sent]) -> tuple[Counts, Counts]:
    """What was sent, if it is known of both; else what was to be sent, as of a share, which sends
    nothing, or of a launch that was wrong before anything was counted. Never the one against the
    other: a call too many is in the first alone."""
    phases, ops, predicted = (
        [_last(run, kind) for run in (before, after)] for kind in ("phases", "ops", "predicted")
    )
    if all(predicted) and not all(phases):
        return predicted[0], predicted[1]
    old, new = ({**one, **more} if one else {} for one, more in zip(phases, ops, strict=True))
    return old, new


def _last(launches: Sequence[Sent], kind: str) -> Counts:
    """The last counts that are known."""
    return next((known for sent in reversed(launches) if (known := getattr(sent, kind))), {})


def _calls(launches: Sequence[Sent]) -> Counts:
    """Calls by phase and operation."""
    for sent in reversed(launches):
        words = [word.partition("=") for word in sent.calls.split()]
        if words:
            return {name.replace(".", " "): int(n) for name, _, n in words if n.isdecimal()}
    return {}
