"""The strategies of a run beside each other, case by case.

A launch is the unit: a figure is the median over the launches of a case, its range their
smallest and largest. A ratio is taken between strategies of the same workload and ranks.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spbench.results.record import Record
from spbench.workload.words import counted

Group = tuple[str, str, int, str, str, str, str, str, int]
"""What two cases must share to stand side by side."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Median, smallest and largest over the launches of a case."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Line:
    """One strategy at one number of ranks. None: not measured."""

    workload: str
    panel: str
    """Workload, shape and mode in words: lines of one panel may be compared."""
    kind: str
    ranks: int
    strategy: str
    launches: int
    status: str
    reason: str
    step_ms: Figure | None
    speedup: float | None
    """The reference's step time over this one's: above 1 is faster than the reference."""
    tokens_per_s: float | None
    compute_ms: float | None
    exposed_comm_ms: float | None
    peak_allocated_bytes: float | None
    sent_bytes: dict[str, int | None]
    predicted_bytes: dict[str, int | None]
    output_error: float | None
    gradient_error: float | None
    tolerance: float | None

    @property
    def gate(self) -> str:
        """passed, failed, or not run."""
        if self.tolerance is None:
            return "not run"
        return "failed" if self.status == "wrong_result" else "passed"


PHASES = ("forward", "backward", "gradients")


def side_by_side(records: Iterable[Record], reference: str | None = None) -> list[Line]:
    """A line for each case; the reference is the first strategy that ran unless named.

    Raises ValueError if no case has the strategy that is named as the reference.
    """
    cases: dict[tuple[Group, str], list[Record]] = {}
    ran: list[str] = []
    for record in records:
        ran += [record.strategy] if record.status != "skipped" else []
        cases.setdefault((group_of(record), record.strategy), []).append(record)
    if reference is not None and all(strategy != reference for _, strategy in cases):
        known = ", ".join(dict.fromkeys(strategy for _, strategy in cases))
        raise ValueError(f"no case of strategy {reference!r} to compare with; there are {known}")
    order = list(dict.fromkeys(strategy for _, strategy in cases))
    chosen = reference or next(iter(ran), "")
    titles = _titles([found[-1] for found in cases.values()])
    lines: list[Line] = []
    for group in dict.fromkeys(group for group, _ in cases):
        base = _figure(cases.get((group, chosen), []), "step_ms")
        here = [cases[group, s] for s in order if (group, s) in cases]
        lines += [_line(found, base, titles[_apart(found[-1])]) for found in here]
    return lines


def group_of(record: Record) -> Group:
    return (
        f"{record.workload} {record.workload_key}",
        record.axes,
        record.batch,
        record.dtype,
        record.mode,
        record.checkpointing,
        record.device,
        record.kind,
        record.world_size,
    )


def panel_of(record: Record) -> str:
    """A title for what stands side by side, the number of ranks apart."""
    axes = re.sub(r"(?<=\d)x", " x ", record.axes).replace("=", " ")
    words = [axes, f"batch {record.batch}", record.dtype, record.mode]
    if record.checkpointing != "none":
        words.append("checkpointed")
    if record.kind != "measured":
        words.append(record.kind.replace("_", " "))
    return f"{record.workload} ({', '.join(words)})"


def _apart(record: Record) -> tuple[str, str, str]:
    """What two panels differ in at least."""
    return panel_of(record), record.workload_key, record.device


def _titles(records: Iterable[Record]) -> dict[tuple[str, str, str], str]:
    """A title for each panel; workloads, or devices, of one name are told apart behind it."""
    found: dict[str, set[tuple[str, str]]] = {}
    for panel, *more in map(_apart, records):
        found.setdefault(panel, set()).add((more[0], more[1]))
    titles = {}
    for panel, these in found.items():
        keys, devices = ({one[i] for one in these} for i in (0, 1))
        for key, device in these:
            words = [f"workload {key}"] if key and len(keys) > 1 else []
            words += [device] if len(devices) > 1 else []
            titles[panel, key, device] = " ".join([panel, ", ".join(words)]).rstrip()
    return titles


def _line(records: Sequence[Record], base: Figure | None, panel: str) -> Line:
    good = [record for record in records if record.status == "ok"]
    shown = good or list(records)
    first = shown[-1]
    step = _figure(good, "step_ms")
    return Line(
        workload=first.workload,
        panel=panel,
        kind=first.kind,
        ranks=first.world_size,
        strategy=first.strategy,
        launches=len(good),
        status=first.status,
        reason=_reason(records, good),
        step_ms=step,
        speedup=base.median / step.median if base and step else None,
        tokens_per_s=_median(good, "tokens_per_s"),
        compute_ms=_median(good, "compute_ms"),
        exposed_comm_ms=_median(good, "exposed_comm_ms"),
        peak_allocated_bytes=_median(good, "peak_allocated_bytes"),
        sent_bytes={phase: getattr(first, f"sent_bytes_{phase}") for phase in PHASES},
        predicted_bytes={phase: getattr(first, f"predicted_bytes_{phase}") for phase in PHASES},
        output_error=first.output_error,
        gradient_error=first.gradient_error,
        tolerance=first.tolerance,
    )


def _reason(records: Sequence[Record], good: Sequence[Record]) -> str:
    """Why there are no figures, or that they are not of all launches."""
    failed = [record for record in records if record.status != "ok"]
    if not failed or not good:
        return records[-1].reason
    last = failed[-1]
    return f"{len(failed)} of {len(records)} launches: {last.status}. {last.reason}"


def _figure(records: Sequence[Record], column: str) -> Figure | None:
    good = [record for record in records if record.status == "ok"]
    values = [value for record in good if (value := getattr(record, column)) is not None]
    if not values:
        return None
    return Figure(median=statistics.median(values), low=min(values), high=max(values))


def _median(records: Sequence[Record], column: str) -> float | None:
    figure = _figure(records, column)
    return None if figure is None else figure.median


def in_words(lines: Sequence[Line]) -> list[str]:
    """For each panel and number of ranks: who was fastest, and how much longer others took."""
    said = []
    several = len({line.panel for line in lines}) > 1
    for panel, ranks in dict.fromkeys((line.panel, line.ranks) for line in lines):
        here = [line for line in lines if (line.panel, line.ranks) == (panel, ranks)]
        timed = {
            line.strategy: ms
            for line in here
            if (ms := line.step_ms.median if line.step_ms else line.compute_ms) is not None
        }
        if len(timed) < 2:
            continue
        first, *others = sorted(timed, key=timed.__getitem__)
        longer = ", ".join(f"{name} {timed[name] / timed[first]:.2f}" for name in others)
        what = "took least time" if here[0].kind == "measured" else "computed least"
        launches = min(line.launches for line in here if line.strategy in timed)
        spread = "" if launches > 1 else " (one launch: no spread between launches is known)"
        where = f"{panel}: on" if several else "On"
        said.append(
            f"{where} {counted(ranks, 'rank')} {first} {what}; {longer} times as long{spread}"
        )
    return said
