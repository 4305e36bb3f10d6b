"""The kinds of figures: which rows share a panel, and what mark is made of them.

A kind is an entry of ``KINDS`` with two functions: ``panels`` gives the rows of each panel by its
title, ``sheet`` makes a figure of the panels that stand on one page. A kind of bars needs only the
stack of one case. A new kind is a new entry here, with a new mark in ``draw`` where none is fit;
``spbench plot --kind`` and its help read the entries, and need no edit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from matplotlib.colors import to_rgba

from spbench.analysis.comparable import SHAPE
from spbench.analysis.compare import MARGIN
from spbench.analysis.compare_strategies import ranking_of
from spbench.report import units
from spbench.report.plots.caption import SHORT_COMMIT, sheet_about
from spbench.report.plots.draw import Bars, Curve, Curves, Forest, Map, Stack, Trend, Winner
from spbench.report.plots.figure import PANELS, Mark, Sheet
from spbench.report.plots.frame import (
    AXIS,
    KINDS_OF_POINTS,
    MIB,
    Asked,
    CurveRows,
    Run,
    axes_of,
    curve_panels,
    has_spread,
    label_of,
    spread_of,
    title_of,
    words_of,
)
from spbench.report.plots.iterations import launch_panels, launch_sheet
from spbench.report.plots.style import colour, fill, hatch, lighter, line_look, shade_look
from spbench.results.capacities import BATCH, QUESTION, SizedWork
from spbench.results.provenance import distinct
from spbench.text import counted, grouped

if TYPE_CHECKING:
    import pandas

    from spbench.analysis.compare_strategies import Line
    from spbench.analysis.history import Series


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of figure."""

    about: str
    """What it shows, for the help of ``plot``."""
    panels: Callable[[Run], Mapping[str, Any]]
    """The rows of each panel, by its title; none where the run has nothing of this kind."""
    sheet: Callable[[Mapping[str, Any], Run], Sheet]
    """The figure of some of the panels; its caption says what marks mean."""


# ---- Bars: a stack for each case ----

PHASE_SHADES = {"forward": 1.0, "backward": 0.6, "gradients": 0.3}
SHARES_NOTE = "one gpu share: what one rank computes, without messages, so no step and no ranking"
WHOLE_NOTE = "in a light tone: a step that nothing silenced, so it is not split"
SHARE_HEADING = "What a rank computes, without messages: no step"
"""The heading of the split of a step where all are shares of one GPU."""


def _tokens(line: Line) -> Stack | None:
    """Tokens per second of all ranks together; the whisker is the launches' interval, or range."""
    value, step, whisker = line.tokens_per_s, line.step_ms, None
    if value is None:
        return None
    if step is not None and has_spread(line):
        slow, fast = value * step.mean / step.high, value * step.mean / step.low
        whisker = max(0.0, value - slow), max(0.0, fast - value)  # equal launches: rounding
    bars = [(value, fill(line.strategy, line.kind))]
    return Stack(bars=bars, whisker=whisker, is_noisy=line.is_noisy)


def _peak(line: Line) -> Stack | None:
    """Peak of allocated memory, of the largest rank."""
    if line.peak_allocated_bytes is None:
        return None
    return Stack(bars=[(line.peak_allocated_bytes / MIB, fill(line.strategy, line.kind))])


def _phases(line: Line) -> Stack | None:
    """Counted bytes by phase; a black line is the prediction of the phases up to it."""
    bars, levels, predicted_mib = [], [], 0.0
    for phase, shade in PHASE_SHADES.items():
        sent, predicted = line.sent_bytes[phase], line.predicted_bytes[phase]
        if sent is not None:
            look = {
                "color": to_rgba(colour(line.strategy), shade),
                "hatch": hatch(line.strategy),
                "edgecolor": to_rgba("white", shade),
                "linewidth": 0.5,
            }
            bars.append((sent / MIB, look))
        if predicted:
            predicted_mib += predicted / MIB
            levels.append(predicted_mib)
    return Stack(bars=bars, levels=levels) if bars or levels else None


def _parts(line: Line) -> Stack | None:
    """A step's computation, and what its communication adds to it; the whole step, in a light
    tone, where nothing silenced it, as in a vendor's code."""
    own = colour(line.strategy)
    if line.compute_ms is None and line.step_ms is not None:
        light = {"color": lighter(own, 0.2), "hatch": hatch(line.strategy), "edgecolor": own}
        step_ms = line.step_ms.mean
        bars = [(step_ms, light | {"linewidth": 0.8})]
        return Stack(bars=bars, levels=[step_ms], is_noisy=line.is_noisy)
    if line.compute_ms is None:
        return None
    look = {"color": "white", "hatch": "////", "edgecolor": own, "linewidth": 0.8}
    exposed_ms = max(line.exposed_comm_ms or 0.0, 0.0)  # hidden behind noise, it is below 0
    return Stack(
        bars=[(line.compute_ms, fill(line.strategy, line.kind)), (exposed_ms, look)],
        levels=[line.step_ms.mean] if line.step_ms else [],
        is_noisy=line.is_noisy,
    )


@dataclass(frozen=True, kw_only=True)
class BarKind:
    """Bars of a panel's cases: a stack for each."""

    stack_of: Callable[[Line], Stack | None]
    """The stack of a case; None: it has no figure."""
    unit: str
    heading: str
    kinds: Sequence[str]
    """Kinds of lines that it is drawn of: a share of one GPU has no step and sends nothing."""
    has_whiskers: bool = False
    has_limit: bool = False
    """Whether the memory of a device is drawn above the bars."""

    def panels(self, run: Run) -> dict[str, list[Line]]:
        return _by_panel(line for line in run.lines if line.kind in self.kinds)

    def sheet(self, panels: Mapping[str, Sequence[Line]], run: Run) -> Sheet:
        lines = [line for of_panel in panels.values() for line in of_panel]
        marks = {title: self.bars(of_panel, run) for title, of_panel in panels.items()}
        splits_steps = self.stack_of is _parts
        notes = _bar_notes(lines, has_whiskers=self.has_whiskers, splits_steps=splits_steps)
        return sheet_about(run, self.title(lines), marks, notes)

    def bars(self, lines: Sequence[Line], run: Run) -> Bars:
        """The bars of a panel."""
        limits = [line.memory_limit_bytes or run.device_bytes for line in lines]
        limits_mib = [limit / MIB for limit in limits if limit]
        return Bars(
            cases=[(x, self.stack_of(x) if x.status == "ok" else None) for x in lines],
            unit=self.unit,
            limit=min(limits_mib, default=None) if self.has_limit else None,
        )

    def title(self, lines: Sequence[Line]) -> str:
        """The heading; a step that only shares of one GPU computed is none."""
        is_share = self.stack_of is _parts and all(line.is_share for line in lines)
        return SHARE_HEADING if is_share else self.heading


EVERY = ("measured", "one_gpu_share", "projected")
BARS = {
    "step_split": BarKind(
        stack_of=_parts,
        unit="ms",
        heading="Compute, exposed communication (striped), the whole step (line)",
        kinds=EVERY,
    ),
    "sent_bytes": BarKind(
        stack_of=_phases,
        unit="MiB",
        heading="Sent by one rank in a step: forward, backward, gradients (dark to light); "
        "predicted (lines)",
        kinds=("measured",),
    ),
    "throughput": BarKind(
        stack_of=_tokens,
        unit="tokens / s, all ranks",
        heading="Throughput",
        kinds=("measured", "projected"),
        has_whiskers=True,
    ),
    "memory": BarKind(
        stack_of=_peak,
        unit="MiB allocated",
        heading="Peak memory of a rank",
        kinds=EVERY,
        has_limit=True,
    ),
}
"""In the order of the overview."""


def _of_bars(name: str, about: str) -> Kind:
    return Kind(about=about, panels=BARS[name].panels, sheet=BARS[name].sheet)


def _by_panel(lines: Iterable[Line]) -> dict[str, list[Line]]:
    return grouped(lines, lambda line: line.panel)


def _bar_notes(lines: Sequence[Line], *, has_whiskers: bool, splits_steps: bool) -> list[str]:
    notes = [whiskers(lines)] if has_whiskers else []
    if splits_steps and any(line.step_ms and line.compute_ms is None for line in lines):
        notes.append(WHOLE_NOTE)
    if any(line.is_share for line in lines):
        notes.append(SHARES_NOTE)
    return notes


def whiskers(lines: Sequence[Line]) -> str:
    """Meaning of the whiskers, which cases of one launch lack."""
    meanings = []
    if any(line.launches >= 2 for line in lines):
        meanings.append("95 % intervals of the launches; of two launches their range")
    if any(line.kind == "projected" for line in lines):
        meanings.append("of projected steps 90 % intervals")
    words = "; ".join(meanings)
    return f"whiskers: {words}" if words else "one launch: no confidence interval"


def _overview_panels(run: Run) -> dict[str, tuple[BarKind, list[Line]]]:
    """Every kind of bars of the first panel, by its heading."""
    lines = next(iter(_by_panel(run.lines).values()), [])
    kinds = [kind for kind in BARS.values() if lines and lines[0].kind in kind.kinds]
    return {kind.title(lines): (kind, lines) for kind in kinds}


def _overview_sheet(panels: Mapping[str, tuple[BarKind, Sequence[Line]]], run: Run) -> Sheet:
    lines = [line for _, of_kind in panels.values() for line in of_kind]
    marks = {title: kind.bars(of_kind, run) for title, (kind, of_kind) in panels.items()}
    return sheet_about(
        run, lines[0].panel, marks, _bar_notes(lines, has_whiskers=True, splits_steps=True)
    )


# ---- Ratios to the reference ----


def _ratio_panels(run: Run) -> dict[str, list[Line]]:
    """The lines that have a ratio to another strategy."""
    compared = [x for x in run.lines if x.to_reference and x.to_reference.ratio is not None]
    return _by_panel(line for line in compared if line.strategy != line.reference)


def _ratio_sheet(panels: Mapping[str, Sequence[Line]], run: Run) -> Sheet:
    lines = [line for of_panel in panels.values() for line in of_panel]
    ratios = [line.to_reference for line in lines if line.to_reference]
    paired = {ratio.paired for ratio in ratios}
    if all(line.kind == "projected" for line in lines):
        what = "ratios of projected steps"
    elif paired == {True}:  # launches that ran in one round have a ratio of their own
        what = "ratios of the launches of each round"
    else:
        what = "ratios of mean step times" if paired == {False} else "ratios of rounds, or of means"
    notes = ["lines: 95 % intervals"] if any(ratio.low is not None for ratio in ratios) else []
    notes.append(f"band: within {MARGIN:.0%}; hollow: not shown to differ")
    marks = {title: Forest(lines=of_panel) for title, of_panel in panels.items()}
    return sheet_about(run, f"Against {lines[0].reference}: {what}", marks, notes)


# ---- Curves ----

PARETO = Asked(metric="tokens_per_s_per_rank", x="peak_allocated_bytes")
PARETO_HEADING = "Throughput of a rank against its memory; numbers: ranks along the first line"
SCALING_HEADING = "Throughput over ranks, and the ideal of the best (dotted)"
MOST_TICKS = 7
MOST_NAMES = 14
"""Curves that are named at their ends; more have a legend."""
WIDE = 4
"""Panels that have room for names at their right."""


def curves(panel: CurveRows) -> list[Curve]:
    """A curve for each combination of the columns in which it may differ and does."""
    rows = panel.rows
    varying = [c for c in panel.apart if rows[c].nunique(dropna=False) > 1] or [*panel.apart[:1]]
    groups = rows.groupby(varying, sort=False, dropna=False)
    drawn: list[Curve] = []
    numbers: dict[str, int] = {}
    for number, (_, group) in enumerate(groups):
        first = group.iloc[0]
        further = [words_of(c, first[c]) for c in varying if c != "strategy"]
        words = ", ".join(filter(None, further))
        strategy = str(first["strategy"])
        if "strategy" in panel.apart:
            # Options and meshes have looks of their own; what else differs has other dashes.
            look = line_look(strategy, numbers.setdefault(words, len(numbers)))
            label = f"{strategy}, {words}" if words else strategy
        else:
            look = shade_look(strategy, number, len(groups))
            label = words or str(first["workload"])
        # Ranks stand at the points of the first curve alone, where they are not on the x axis.
        drawn.append(_curve(group, panel, is_first=number == 0, label=label, look=look))
    return drawn


def _curve(rows: pandas.DataFrame, panel: CurveRows, *, is_first: bool, **look: Any) -> Curve:
    """The points of rows that have both figures, with their intervals, and why others have none."""
    x, metric = panel.x, panel.metric
    is_figure = x.endswith(("_bytes", "_ms")) or "_per_" in x
    rows = rows.sort_values("ranks" if is_figure else x)
    xs, ys = (rows[name].astype(float) / _scale(name) for name in (x, metric))
    is_good = ys.notna() & xs.notna()
    good = ys[is_good].tolist()
    spreads = [spread_of(metric, times) for times in rows["times"][is_good]]
    why = rows["status"].replace("ok", "not measured")
    missing = zip(xs[~is_good], why[~is_good], strict=True)
    return Curve(
        is_projected=rows["kind"].iloc[0] == "projected",
        x=xs[is_good].tolist(),
        y=good,
        low=[max(0.0, y - y * low) for y, (low, _) in zip(good, spreads, strict=True)],
        high=[max(0.0, y * high - y) for y, (_, high) in zip(good, spreads, strict=True)],
        noisy=rows["is_noisy"][is_good].tolist(),
        texts=[f"{n}" for n in rows["ranks"][is_good]] if is_figure and is_first else (),
        failed=[(at, status) for at, status in missing if not math.isnan(at)],
        **look,
    )


def _scale(column: str) -> int:
    return MIB if column.endswith("_bytes") else 1


def missing_from(panel: CurveRows) -> str:
    """What no case of a panel has, and how its cases ended."""
    rows = panel.rows
    figures = [label_of(name) for name in (panel.metric, panel.x) if rows[name].isna().any()]
    statuses = rows["status"].replace("ok", "not measured").value_counts(sort=False)
    ended = ", ".join(f"{status} {count}" for status, count in statuses.items())
    return f"no case has {' and '.join(figures)}\n{counted(len(rows), 'case')}: {ended}"


def _curve_notes(drawn: Iterable[Sequence[Curve]]) -> list[str]:
    """What stands at the points of curves, of all panels of a sheet."""
    every = [curve for of_panel in drawn for curve in of_panel]
    notes = []
    if any(any(curve.low) or any(curve.high) for curve in every if not curve.is_projected):
        notes.append("bars: 95 % intervals, or ranges of fewer than three launches")
    if any(any(curve.low) for curve in every if curve.is_projected):
        notes.append("of projected steps 90 % intervals")
    if any(any(curve.noisy) for curve in every):
        notes.append("circled: noisy launches, which are not ranked; no ideal line begins there")
    if any(curve.failed for curve in every):
        notes.append("cross: no figure, and why")
    return notes


def _has_names(drawn: Mapping[str, Sequence[Curve]]) -> bool:
    """Whether there is room for the names of curves at their ends, so that no legend is needed."""
    return len(drawn) <= WIDE and max(map(len, drawn.values())) <= MOST_NAMES


def _sheet_of_curves(heading: str, panels: Mapping[str, CurveRows], run: Run) -> Sheet:
    drawn = {title: curves(panel) for title, panel in panels.items()}
    has_names = _has_names(drawn)
    marks = {
        title: Curves(
            curves=drawn[title],
            x=label_of(panel.x),
            y=label_of(panel.metric),
            has_ticks_at_points=panel.is_chosen and panel.rows[panel.x].nunique() <= MOST_TICKS,
            ideal=panel.ideal,
            missing="" if any(curve.x for curve in drawn[title]) else missing_from(panel),
            has_names=has_names,
        )
        for title, panel in panels.items()
    }
    return sheet_about(run, heading, marks, _curve_notes(drawn.values()))


def _scaling_sheet(panels: Mapping[str, CurveRows], run: Run) -> Sheet:
    heading = SCALING_HEADING
    if run.asked != Asked():
        y, x = label_of(run.asked.metric), label_of(run.asked.x)
        heading = f"{y[0].upper()}{y[1:]}, over {x}"
    return _sheet_of_curves(heading, panels, run)


# ---- The map of winners ----


def _winner_panels(run: Run) -> dict[str, pandas.DataFrame]:
    """The cases of each workload; a share of one GPU is no step, and wins nothing."""
    cases = run.cases
    key = ["workload", *SHAPE[2:], *KINDS_OF_POINTS]
    groups = cases[cases["kind"] != "one_gpu_share"].groupby(key, sort=False, dropna=False)
    return {title_of(dict(zip(key, values, strict=True))): rows for values, rows in groups}


def _map(rows: pandas.DataFrame) -> Map:
    axes = [name for name in map(str, rows) if name.startswith(AXIS)]
    varying = [c for c in [*axes, "batch"] if rows[c].nunique(dropna=False) > 1]
    sized = rows.sort_values(["tokens", *varying], kind="stable")
    sized["size"] = [_size(row, varying) for row in sized.to_dict("records")]  # type: ignore[arg-type]
    sizes, ranks = sized["size"].unique().tolist(), sorted(rows["ranks"].unique())
    return Map(
        winners={
            (sizes.index(size), ranks.index(count)): winner(group["line"].tolist())
            for (size, count), group in sized.groupby(["size", "ranks"], sort=False)
        },
        sizes=sizes,
        ranks=ranks,
        kind=rows["kind"].iloc[0],
    )


def _size(row: Mapping[str, Any], varying: Sequence[str]) -> str:
    words = (words_of(column, row[column]) for column in varying)
    return ", ".join(filter(None, words)) or f"{int(row['tokens']):,} tokens"


def winner(lines: Sequence[Line]) -> Winner:
    """The fastest, whether it is told apart from all others, and by what factor the second is
    slower; no strategy where noise or memory leaves none to rank."""
    ranked = ranking_of(lines)
    if ranked.noisy:
        names = [line.strategy for line in ranked.noisy]
        more = [f"and {len(names) - 1} more"] if len(names) > 2 else names[1:]
        words = "\n".join(["not ranked,", "noisy:", names[0], *more])
        return Winner("", False, words, is_ranked=False)
    if ranked.lowest is None:
        unfit = {True: "not measured", False: "too large"}
        statuses = {line.status if line.status != "ok" else unfit[line.fits] for line in lines}
        return Winner("", True, "\n".join(sorted(statuses)[:2]))
    best, best_ms = ranked.lowest, ranked.lowest.time_ms or 0.0
    if not ranked.others:
        return Winner(best.strategy, True, "alone")
    # Of strategies that are one on these ranks, projected times differ by rounding alone.
    slower = [x for x in ranked.others if (x.time_ms or 0.0) > best_ms * (1 + 1e-9)]
    if not slower:
        return Winner("", True, "all equal")
    factor = (slower[0].time_ms or 0.0) / best_ms
    return Winner(best.strategy, ranked.fastest is not None, f"{factor:.2f}x")


def _winner_sheet(panels: Mapping[str, pandas.DataFrame], run: Run) -> Sheet:
    maps = {title: _map(rows) for title, rows in panels.items()}
    notes = ["light: not told apart from the second", "grey: all are equal, or none has a time"]
    if not all(cell.is_ranked for one in maps.values() for cell in one.winners.values()):
        notes.append("crossed: not ranked, since launches of a strategy were noisy")
    heading = "The fastest strategy, and how much longer the second takes"
    return sheet_about(run, heading, maps, notes)


# ---- Capacities ----


def capacity_panels(run: Run) -> dict[str, pandas.DataFrame]:
    """The lines of capacity.csv that answer one question, by what grows and within what memory."""
    if run.capacities is None or run.capacities.empty:
        return {}
    questions = run.capacities.groupby([*QUESTION], sort=False, dropna=False)
    return {_question(_work(rows)): rows for _, rows in questions}


def _work(rows: pandas.DataFrame) -> SizedWork:
    return SizedWork(**{name: rows[name].iloc[0] for name in QUESTION})


def _grows(work: SizedWork) -> str:
    return "largest batch" if work.grows == BATCH else f"longest {work.grows}"


def _question(work: SizedWork) -> str:
    """What grows of which workload, and what memory it has."""
    unit = units.size_unit(work.budget_bytes)
    what = {name: getattr(work, name) for name in QUESTION[: QUESTION.index("grows")]}
    what["axes"] = " x ".join(f"{axis} {length}" for axis, length in axes_of(work.axes).items())
    what["batch"] = "" if work.grows == BATCH else work.batch
    tried = f", tried on {work.gpu}" if work.kind == "measured" else ""
    within = f"{units.size_in(unit, work.budget_bytes)} {unit} of a rank{tried}"
    return f"{_grows(work)}: {title_of(what)}, within {within}"


def capacity_curves(rows: pandas.DataFrame) -> list[Curve]:
    """The largest sizes over ranks, a curve for each strategy."""
    drawn = []
    for name, of_strategy in rows.groupby("strategy", sort=False):
        group = of_strategy.sort_values("ranks")
        fits = group["largest"].notna()
        sizes = group["largest"][fits].astype(float).tolist()
        why = ["cannot run" if text else "too large" for text in group["why_not"][~fits]]
        drawn.append(
            Curve(
                label=str(name),
                look=line_look(str(name)),
                is_projected=group["kind"].iloc[0] == "dry_run",
                x=group["ranks"][fits].astype(float).tolist(),
                y=sizes,
                noisy=[False] * len(sizes),
                failed=[*zip(group["ranks"][~fits].astype(float), why, strict=True)],
            )
        )
    return drawn


def _capacity_sheet(panels: Mapping[str, pandas.DataFrame], run: Run) -> Sheet:
    """Sizes, and those of as many times as ranks from the best; the caption says how they were
    found, by which versions."""
    table = run.capacities
    assert table is not None
    kinds = distinct(table, "kind")
    how = ["dry runs"] if "dry_run" in kinds else []
    if "measured" in kinds:
        how.append(f"ranks that tried on {', '.join(distinct(table, 'gpu'))}")
    commits = [name[:SHORT_COMMIT] for name in distinct(table, "git_commit")]
    made = {"torch": distinct(table, "torch"), "commit": commits}
    drawn = {title: capacity_curves(rows) for title, rows in panels.items()}
    has_names = _has_names(drawn)
    notes = [
        f"capacity, by {' and '.join(how)}",
        *(f"{name} {', '.join(versions)}" for name, versions in made.items() if versions),
        "the next size does not fit, unless sizes end",
        *_curve_notes(drawn.values()),
    ]
    return Sheet(
        heading="The largest batch and the longest axis that fit into a rank's memory",
        panels={
            title: Curves(
                curves=drawn[title],
                x="ranks",
                y=_grows(_work(rows)),
                has_ticks_at_points=True,
                ideal=1.0,
                ideal_name="as many times as ranks",
                has_names=has_names,
            )
            for title, rows in panels.items()
        },
        caption=" · ".join(notes),
    )


# ---- A case over commits, of ``spbench history`` ----


def history_sheet(series: Sequence[Series]) -> Sheet:
    """A panel for each of the first series that have a time."""
    timed = [one for one in series if any(point.step_ms for point in one.points)]
    timed = [one for one in timed if len(one.points) > 1] or timed
    panels: dict[str, Mark] = {
        f"{one.strategy} on {one.ranks} ranks, {one.panel}\n{one.environment}": Trend(series=one)
        for one in timed[:PANELS]
    }
    caption = (
        "Geometric mean of the launches of each commit; bars are 95 % intervals over launches, or "
        "the range of fewer than three; axes do not begin at 0. Red: the first commit from which "
        "on it was worse than before."
    )
    return Sheet(heading="Step time over commits", panels=panels, caption=caption)


# ---- All kinds ----

KINDS = {
    "overview": Kind(
        about="step, bytes, throughput and memory of one workload on a page",
        panels=_overview_panels,
        sheet=_overview_sheet,
    ),
    "scaling": Kind(
        about="throughput over ranks with the ideal line, strong and weak",
        panels=lambda run: curve_panels(run, run.asked),
        sheet=_scaling_sheet,
    ),
    "throughput": _of_bars("throughput", "tokens a second as bars"),
    "ratios": Kind(
        about="how much longer than the reference, with intervals",
        panels=_ratio_panels,
        sheet=_ratio_sheet,
    ),
    "step_split": _of_bars("step_split", "compute and exposed communication"),
    "sent_bytes": _of_bars("sent_bytes", "bytes by phase against the formula"),
    "memory": _of_bars("memory", "peak memory of a rank, against the limit"),
    "pareto": Kind(
        about="throughput against memory",
        panels=lambda run: curve_panels(run, PARETO),
        sheet=partial(_sheet_of_curves, PARETO_HEADING),
    ),
    "winners": Kind(
        about="the fastest strategy by size and ranks", panels=_winner_panels, sheet=_winner_sheet
    ),
    "capacity": Kind(
        about="the largest batch and the longest axis that fit, of 'capacity --out'",
        panels=capacity_panels,
        sheet=_capacity_sheet,
    ),
    "launches": Kind(
        about="every iteration of every launch", panels=launch_panels, sheet=launch_sheet
    ),
}
