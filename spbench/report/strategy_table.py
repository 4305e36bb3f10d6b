"""The strategies of a run side by side, as a table and in words."""

from __future__ import annotations

from collections.abc import Sequence

from spbench.analysis.compare import Comparison
from spbench.analysis.compare_strategies import Line
from spbench.report import tables, units
from spbench.report.fit_width import Grid, fitting, left_out
from spbench.text import counted

FULL = (
    "strategy",
    "ranks",
    "step ms",
    "95 %",
    "speed-up",
    "tokens/s",
    "compute ms",
    "exposed ms",
    "peak MiB",
    "fwd MiB",
    "bwd MiB",
    "grad MiB",
    "gate error",
)
COLUMN_SETS = (
    FULL,
    (*FULL[:3], "speed-up", "exposed ms", "peak MiB", "sent MiB", "gate error"),
    (*FULL[:3], "speed-up", "sent MiB", "gate error"),
    ("strategy", "ranks", "step ms", "gate error"),
    ("strategy", "ranks", "step ms"),
)
"""What is shown where not all fits in a line."""


def comparison(
    lines: Sequence[Line], width: int
) -> tuple[tuple[str, ...], dict[str, list[list[str]]]]:
    """Columns, and the rows of each panel; bytes are what one rank sends in a step."""
    known = [_cells(line) for line in lines]
    sets = [
        Grid(columns=names, rows=[[one.get(name, units.BLANK) for name in names] for one in known])
        for names in COLUMN_SETS
    ]
    chosen = fitting(sets, width)
    panels: dict[str, list[list[str]]] = {}
    for line, row in zip(lines, chosen.rows, strict=True):
        panels.setdefault(line.panel, []).append(list(row))
    return tuple(chosen.columns), panels


def _cells(line: Line) -> dict[str, str]:
    known = {"strategy": line.strategy, "ranks": str(line.ranks), "gate error": gate_cell(line)}
    if line.status != "ok":
        return known | {"step ms": line.status}
    step = line.step_ms
    sent = line.sent_bytes if line.kind == "measured" else line.predicted_bytes
    known_bytes = [count for count in sent.values() if count is not None]
    if step is not None and line.launches > 1:
        mark = "" if step.is_interval else "*"
        known["95 %"] = f"{units.milliseconds(step.low)}..{units.milliseconds(step.high)}{mark}"
    return known | {
        "step ms": units.milliseconds(step.median if step else None),
        "speed-up": speedup_cell(line),
        "tokens/s": units.count_of(line.tokens_per_s),
        "compute ms": units.milliseconds(line.compute_ms),
        "exposed ms": units.milliseconds(line.exposed_comm_ms),
        "peak MiB": units.mebibytes(line.peak_allocated_bytes),
        "sent MiB": units.mebibytes(sum(known_bytes) if known_bytes else None),
        "fwd MiB": units.mebibytes(sent["forward"]),
        "bwd MiB": units.mebibytes(sent["backward"]),
        "grad MiB": units.mebibytes(sent["gradients"]),
    }


def speedup_cell(line: Line) -> str:
    """1.12x, and its interval where there is one."""
    shown = units.ratio(line.speedup)
    found = line.to_reference
    if line.speedup in (None, 1.0) or found is None or not found.low or not found.high:
        return shown
    return f"{shown} ({1 / found.high:.2f}..{1 / found.low:.2f})"


def gate_cell(line: Line) -> str:
    """The larger relative error, and whether it passed."""
    found = [e for e in (line.output_error, line.gradient_error) if e is not None]
    shown = units.error(max(found)) if found else units.BLANK
    return f"{shown} WRONG" if line.gate == "failed" else shown


def failures(lines: Sequence[Line]) -> list[str]:
    """A sentence for each case of which a launch did not finish, or was disturbed."""
    several = len({line.panel for line in lines}) > 1
    return [
        f"{f'{line.panel}: ' if several else ''}{line.strategy} on {counted(line.ranks, 'rank')}: "
        + (line.reason if line.status == "ok" else f"{line.status}. {line.reason}".rstrip())
        for line in lines
        if line.status != "ok" or line.reason
    ]


def ranking_sentences(lines: Sequence[Line]) -> list[str]:
    """A sentence for each panel and number of ranks on which two strategies or more were timed."""
    sentences = []
    several = len({line.panel for line in lines}) > 1
    groups: dict[tuple[str, int], list[Line]] = {}
    for line in lines:
        if line.time_ms is not None:
            groups.setdefault((line.panel, line.ranks), []).append(line)
    for (panel, ranks), timed in groups.items():
        if len(timed) > 1:
            where = f"{panel}: on" if several else "On"
            sentences.append(f"{where} {counted(ranks, 'rank')} {_ranking(timed)}")
    return sentences


def _ranking(timed: Sequence[Line]) -> str:
    first, *others = sorted(timed, key=lambda line: (line.to_fastest is not None, line.time_ms))
    compared = [(line.strategy, line.to_fastest) for line in others if line.to_fastest]
    longer = ", ".join(f"{name} {_longer(comparison)}" for name, comparison in compared)
    does = "is fastest" if first.kind == "measured" else "computes fastest"
    is_single = min(comparison.launches for _, comparison in compared) == 1
    note = " (no confidence interval: one launch)" if is_single else ""
    return f"{first.strategy} {does}; {longer}{note}"


def _longer(comparison: Comparison) -> str:
    """How many times as long as the fastest, the interval, and whether that is significant."""
    if comparison.ratio is None:
        return f"is not comparable ({comparison.reason})"
    takes = f"takes {comparison.ratio:.2f}x as long"
    if comparison.launches == 1:
        return takes
    notes = []
    if comparison.low is not None:
        notes.append(f"{comparison.low:.2f} to {comparison.high:.2f}")
    if comparison.verdict == "same":
        notes.append("the same within the margin")
    elif comparison.verdict == "inconclusive":
        needs = comparison.needs
        would = f", about {counted(needs, 'launch')} would show one" if needs else ""
        notes.append(f"no significant difference{would}")
    return f"{takes} ({'; '.join(notes)})"


def show_comparison(lines: Sequence[Line]) -> None:
    """The comparison on stdout; below it in words, and what did not finish and why."""
    out = tables.console()
    columns, panels = comparison(lines, tables.room(out))
    for panel, rows in panels.items():
        tables.show_table(out, panel, Grid(columns=columns, rows=rows))
    lacks = [name for name in FULL if name not in columns]
    ranges = any(one.step_ms and not one.step_ms.is_interval and one.launches > 1 for one in lines)
    note = ["* two launches: their range, not a confidence interval"] if ranges else []
    note += [left_out(lacks)] if lacks else []
    for sentence in [*ranking_sentences(lines), *failures(lines), *note]:
        tables.say(out, sentence)
