"""The strategies of a run side by side, as a table and in words."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from spbench.analysis.compare import Comparison
from spbench.analysis.compare_strategies import Line, Ranking, ranking_of
from spbench.analysis.launches import on_processors
from spbench.report import tables, units
from spbench.report.fit_width import Grid, left_out
from spbench.text import counted, grouped

NOISY = "~"
STEPS = "#"  # marks the spread of the steps of a single launch
STEPS_NOTE = f"{STEPS} one launch: tenth to ninetieth percentile of its steps, no interval"
NOISY_NOTE = f"{NOISY} too few launches were undisturbed: the time is unreliable, and no evidence"
TWO_LAUNCHES = "*"
TWO_LAUNCHES_NOTE = f"{TWO_LAUNCHES} two launches: their range, not a confidence interval"
ONE_LAUNCH = " (no confidence interval: one launch)"
ONE_LAUNCH_EACH = " (no confidence interval: one launch each)"
SHARES_UNRANKED = (
    "no strategy is ranked: shares of one GPU are what a rank computes, without the messages whose "
    "bytes are shown, so not a step; 'spbench project WORKLOAD --cluster NAME --share RUN' adds "
    "what the messages take"
)
BELOW_0 = "?"
BELOW_0_NOTE = (
    f"{BELOW_0} silent steps took longer than real ones: what communication adds is not told apart "
    "from 0"
)
PROJECTED = "^"
PROJECTED_NOTE = f"{PROJECTED} projected, not measured: 90 % interval of the cost model"


def step_cell(line: Line) -> str:
    """Milliseconds of the step, marked where noisy launches count."""
    shown = units.milliseconds(line.step_ms.mean if line.step_ms else None)
    return NOISY + shown if line.is_noisy and line.step_ms else shown


def compute_cell(line: Line) -> str:
    """Milliseconds of computation; of a share of one GPU, which has no step, marked likewise."""
    shown = units.milliseconds(line.compute_ms)
    return NOISY + shown if line.is_share and line.is_noisy and line.compute_ms else shown


def interval_mark(line: Line) -> str:
    """What the figures beside a step are, if not the 95 % interval: a star marks the range of two
    launches, a sharp the spread of the steps of a single one, a hat what is projected."""
    if line.step_ms is None or line.step_ms.is_interval:
        return ""
    if line.only_launch_ms is not None:
        return STEPS
    if line.kind == "projected":
        return PROJECTED
    return TWO_LAUNCHES if line.launches > 1 else ""


def interval_cell(line: Line) -> str:
    """The 95 % interval of the step, or the range that its mark says; blank where there is none."""
    step, mark = line.step_ms, interval_mark(line)
    if step is None or not (step.is_interval or mark):
        return units.BLANK
    low, high = step.low, step.high
    if line.only_launch_ms is not None:
        low, high = line.only_launch_ms
    return f"{units.milliseconds(low)}..{units.milliseconds(high)}{mark}"


def exposed_cell(line: Line) -> str:
    """Milliseconds that communication adds, marked where they are below 0."""
    shown = units.milliseconds(line.exposed_comm_ms)
    return shown + BELOW_0 if _is_below_0(line) else shown


def _is_below_0(line: Line) -> bool:
    return line.exposed_comm_ms is not None and line.exposed_comm_ms < 0


def speedup_cell(line: Line) -> str:
    """1.12x, and its interval where there is one; marked where one of the two is noisy."""
    speedup, other = units.ratio(line.speedup), line.to_reference
    if other is not None and other.is_noisy and line.speedup is not None:
        return NOISY + speedup
    if line.speedup in (None, 1.0) or other is None or not other.low or not other.high:
        return speedup
    return f"{speedup} ({1 / other.high:.2f}..{1 / other.low:.2f})"


def gate_cell(line: Line) -> str:
    """The larger relative error, and whether it passed; or what else of a launch was wrong."""
    if line.wrong:
        return f"{line.wrong} WRONG"
    errors = [e for e in (line.output_error, line.gradient_error) if e is not None]
    largest = units.error(max(errors, default=None))
    return f"{largest} WRONG" if line.gate == "failed" else largest


def sent_cell(line: Line, *phases: str) -> str:
    """What one rank sends in these phases, or in all; where nothing is sent, what it would."""
    sent = line.sent_bytes if line.kind == "measured" else line.predicted_bytes
    counts = [count for phase in phases or sent if (count := sent[phase]) is not None]
    return units.mebibytes(sum(counts) if counts else None)


COLUMNS: dict[str, Callable[[Line], str]] = {
    "strategy": lambda line: line.strategy,
    "ranks": lambda line: str(line.ranks),
    "step ms": step_cell,
    "95 %": interval_cell,
    "speed-up": speedup_cell,
    "tokens/s": lambda line: units.count_of(line.tokens_per_s),
    "mfu": lambda line: units.count_of(line.mfu),
    "compute ms": compute_cell,
    "exposed ms": exposed_cell,
    "bubble ms": lambda line: units.milliseconds(line.bubble_ms),
    "GB/s": lambda line: units.count_of(line.exposed_gb_per_s),
    "peak MiB": lambda line: units.mebibytes(line.peak_allocated_bytes),
    "sent MiB": sent_cell,
    "fwd MiB": lambda line: sent_cell(line, "forward"),
    "bwd MiB": lambda line: sent_cell(line, "backward"),
    "grad MiB": lambda line: sent_cell(line, "gradients"),
    "gate error": gate_cell,
}
RATES = {"mfu": "mfu", "bubble ms": "bubble_ms", "GB/s": "exposed_gb_per_s"}
"""Columns only where there is room and a line has a figure, and the fields that they show."""
FULL = tuple(name for name in COLUMNS if name not in ("sent MiB", *RATES))
COLUMN_SETS = (
    FULL,
    (*FULL[:3], "speed-up", "exposed ms", "peak MiB", "sent MiB", "gate error"),
    (*FULL[:3], "speed-up", "sent MiB", "gate error"),
    ("strategy", "ranks", "step ms", "gate error"),
    ("strategy", "ranks", "step ms"),
)
"""Columns of a table, the first set that fits into a line."""
OF_STEPS = ("step ms", "95 %", "speed-up", "tokens/s", "exposed ms", *RATES)
"""Columns in which a share of one GPU has nothing, since it is no step."""
SHARE_SETS = (
    tuple(name for name in FULL if name not in OF_STEPS),
    ("strategy", "ranks", "compute ms", "peak MiB", "sent MiB", "gate error"),
    ("strategy", "ranks", "compute ms", "gate error"),
    ("strategy", "ranks", "compute ms"),
)
"""Likewise, of a table of shares alone."""


def grids_of(lines: Sequence[Line]) -> list[Grid]:
    """Tables of ever fewer columns, a row for each line; bytes are what a rank sends in a step."""
    are_shares = has_shares_alone(lines)
    heads = [name for name in COLUMNS if not are_shares or name not in OF_STEPS]
    whole = Grid(columns=heads, rows=rows_of(lines, heads))
    if are_shares:
        return [whole.without(*(set(heads) - set(names))) for names in SHARE_SETS]
    good = [line for line in lines if line.status == "ok"]
    measured = [
        name
        for name, field in RATES.items()
        if any(getattr(line, field) is not None for line in good)
    ]
    return [
        whole.without(*(COLUMNS.keys() - set(shown)))
        for shown in ((*FULL, *measured), *COLUMN_SETS)
    ]


def rows_of(lines: Sequence[Line], heads: Sequence[str]) -> list[list[str]]:
    """The cells of each line below ``heads``; one without a figure has its status as its time."""
    return [[cells.get(name, units.BLANK) for name in heads] for cells in map(_cells, lines)]


def has_shares_alone(lines: Sequence[Line]) -> bool:
    """Whether all cases are shares of one GPU, so that no column of steps has a figure."""
    return bool(lines) and all(line.is_share for line in lines)


def _cells(line: Line) -> dict[str, str]:
    if line.status == "ok":
        return {name: cell(line) for name, cell in COLUMNS.items()}
    cells = {name: COLUMNS[name](line) for name in ("strategy", "ranks", "gate error")}
    return cells | {"compute ms" if line.is_share else "step ms": line.status}


def failures(lines: Sequence[Line]) -> list[str]:
    """A sentence for each case of which a launch did not finish, or was disturbed."""
    several = len({line.panel for line in lines}) > 1
    return [
        f"{f'{line.panel}: ' if several else ''}{line.strategy} on {counted(line.ranks, 'rank')}: "
        + (line.reason if line.status == "ok" else f"{line.status}. {line.reason}".rstrip())
        for line in lines
        if line.status != "ok" or line.reason
    ]


def gate_sentences(lines: Sequence[Line]) -> list[str]:
    """What the gate proved of less than the whole workload, and what the whole step agrees with."""
    cases: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        if line.gated_on and line.gate == "passed":
            case = f"{line.strategy} on {counted(line.ranks, 'rank')}"
            agreed_with = "" if line.wrong else line.agreed_with  # else with what it was compared
            cases.setdefault((line.gated_on, agreed_with), []).append(case)
    return [
        f"gate on {gated_on}: {', '.join(names)}"
        + (f"; the whole step agrees with {agreed_with}" if agreed_with else "")
        for (gated_on, agreed_with), names in cases.items()
    ]


def ranking_sentences(lines: Sequence[Line]) -> list[str]:
    """A sentence for each panel and number of ranks: of two or more that were timed who is
    fastest, and of shares of one GPU what they are."""
    several = len({line.panel for line in lines}) > 1
    said = []
    for (panel, ranks), these in grouped(lines, lambda line: (line.panel, line.ranks)).items():
        ranked = ranking_of(these)
        if ranked.shares or len(ranked.timed) + len(ranked.too_large) > 1:
            on = f"{panel}: on" if several else "On"
            said.append(f"{on} {counted(ranks, 'rank')} {ranking_in_words(ranked)}")
    return said


class RankingWords(NamedTuple):
    """Who is fastest, or why none is ranked; and, behind a mark, what the others take."""

    lead: str
    mark: str = ""
    others: str = ""

    def __str__(self) -> str:
        return f"{self.lead}{self.mark} {self.others}" if self.others else self.lead


def ranking_in_words(ranked: Ranking) -> RankingWords:
    """Who is fastest on one number of ranks, and what the others take beside it."""
    if ranked.shares:
        return RankingWords(SHARES_UNRANKED)
    first, is_fastest = ranked.lowest, ranked.fastest is not None
    base = f" as {first.strategy}" if first and not is_fastest else ""
    compared = [(line, line.to_fastest) for line in ranked.others if line.to_fastest is not None]
    singles = [line for line, times in compared if _is_of_one_launch(times)]
    is_said_once = len(singles) > 1
    longer = []
    for line, times in compared:
        one = ONE_LAUNCH if _is_of_one_launch(times) and not is_said_once else ""
        longer.append(f"{line.strategy} {_longer(line, times, base)}{one}")
    if ranked.noisy:
        names = ", ".join(line.strategy for line in ranked.noisy)
        longer.append(f"too few launches of {names} were undisturbed")
    if ranked.too_large:
        names = ", ".join(line.strategy for line in ranked.too_large)
        are = "is" if len(ranked.too_large) == 1 else "are"
        longer.append(f"{names} {are} too large for a device's memory")
    others = ", ".join(longer) + (ONE_LAUNCH_EACH if is_said_once else "")
    if first and is_fastest:
        by_model = " as projected" if first.kind == "projected" else ""
        return RankingWords(f"{first.strategy} is fastest{by_model}", ";", others)
    return RankingWords("no strategy is shown to be fastest", ":", others)


def _is_of_one_launch(times: Comparison) -> bool:
    """Whether there is a ratio, but of a single launch: it has no interval."""
    return times.ratio is not None and times.launches == 1


def _longer(line: Line, times: Comparison, base: str) -> str:
    """How many times as long as the lowest time, the interval, and whether that is significant.

    ``base`` names the strategy with the lowest time where it is not shown to be fastest.
    """
    if times.ratio is None:
        return f"is not comparable ({times.reason})"
    how = on_processors(times.processors)
    takes = f"takes {times.ratio:.2f}x as long{base}{f' {how}' if how else ''}"
    if times.launches == 0:
        share = line.slower_share
        draws = "" if share is None else f", slower in {100 * share:.0f} % of draws"
        return f"{takes} (projected{draws})"
    if times.launches == 1:
        return takes
    notes = [] if times.low is None else [f"{times.low:.2f} to {times.high:.2f}"]
    if times.verdict == "same":
        notes.append("the same within the margin")
    elif times.verdict == "inconclusive":
        would = f", about {counted(times.needs, 'launch')} would show one" if times.needs else ""
        notes.append(f"no significant difference{would}")
    return f"{takes} ({'; '.join(notes)})"


def mark_notes(lines: Sequence[Line], lacks: Sequence[str] = ()) -> list[str]:
    """What the marks beside figures mean, of those that occur in columns that are shown."""
    occur = {
        TWO_LAUNCHES_NOTE: any(interval_mark(line) == TWO_LAUNCHES for line in lines),
        STEPS_NOTE: any(interval_mark(line) == STEPS for line in lines),
        PROJECTED_NOTE: any(interval_mark(line) == PROJECTED for line in lines),
    }
    occur = {note: occurs and "95 %" not in lacks for note, occurs in occur.items()}
    occur[NOISY_NOTE] = any(line.is_noisy for line in lines)
    occur[BELOW_0_NOTE] = "exposed ms" not in lacks and any(map(_is_below_0, lines))
    return [note for note, occurs in occur.items() if occurs]


def show_comparison(lines: Sequence[Line], remarks: Sequence[str] = ()) -> None:
    """Prints the comparison as tables, then in words, with what did not finish and why."""
    out = tables.console()
    shown = tables.show_panels(out, grids_of(lines), [line.panel for line in lines])
    lacks = [name for name in shown if name in FULL]
    sentences = [*ranking_sentences(lines), *remarks, *failures(lines), *gate_sentences(lines)]
    tables.say(out, *sentences, *mark_notes(lines, lacks), *([left_out(lacks)] if lacks else []))
