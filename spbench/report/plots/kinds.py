"""The kinds of figures: which rows share a panel, and what mark is made of them.

A kind is an entry of ``KINDS`` with two functions: ``panels`` gives what each panel shows by its
title, ``sheet`` makes a figure of those that stand on one page. A kind of bars is an entry of
``BARS`` with the stack of one case. A new kind is a new entry, with a new mark in ``draw`` where
none of those there is fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from matplotlib.colors import to_rgba

from spbench.analysis.comparable import PANEL, SHAPE
from spbench.analysis.compare import MARGIN
from spbench.analysis.compare_strategies import ranking_of
from spbench.analysis.launches import SPEEDS_ALIKE
from spbench.report import units
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
    unknown,
    words_of,
)
from spbench.report.plots.iterations import launch_panels, launch_sheet
from spbench.report.plots.style import colour, fill, hatch, line_look, shade_look
from spbench.results.capacities import BATCH, QUESTION, SizedWork
from spbench.results.provenance import distinct
from spbench.results.run_json import read_run
from spbench.text import counted, grouped

if TYPE_CHECKING:
    import pandas

    from spbench.analysis.compare_strategies import Line
    from spbench.analysis.history import Series

SHORT_COMMIT = 9


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of figure."""

    about: str
    panels: Callable[[Run], Mapping[str, Any]]
    """What each panel shows, by its title; none where the run has nothing of this kind."""
    sheet: Callable[[Mapping[str, Any], Run], Sheet]
    """The figure of some of the panels; its caption says what marks mean."""
    is_about_run: bool = True
    """Whether the caption begins with the run."""


# ---- Bars: a stack for each case ----

PHASE_SHADES = {"forward": 1.0, "backward": 0.6, "gradients": 0.3}
SHARES_NOTE = "one gpu share: what one rank computes, without messages, so no step and no ranking"
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
    """A step's computation, and what its communication adds to it."""
    if line.compute_ms is None:
        return None
    look = {"color": "white", "hatch": "////", "edgecolor": colour(line.strategy), "linewidth": 0.8}
    exposed_ms = max(line.exposed_comm_ms or 0.0, 0.0)  # hidden behind noise, it is below 0
    return Stack(
        bars=[(line.compute_ms, fill(line.strategy, line.kind)), (exposed_ms, look)],
        levels=[line.step_ms.mean] if line.step_ms else [],
        is_noisy=line.is_noisy,
    )


class BarKind(NamedTuple):
    """Bars of a panel's cases."""

    stack_of: Callable[[Line], Stack | None]
    """The stack of a case; None: it has no figure."""
    unit: str
    heading: str
    kinds: Sequence[str]
    """Kinds of lines that it is drawn of: a share of one GPU has no step and sends nothing."""

    def drawn(self, run: Run) -> list[Line]:
        return [line for line in run.lines if line.kind in self.kinds]


EVERY = ("measured", "one_gpu_share", "projected")
BARS = {
    "step_split": BarKind(
        _parts, "ms", "Compute, exposed communication (striped), the whole step (line)", EVERY
    ),
    "sent_bytes": BarKind(
        _phases,
        "MiB",
        "Sent by one rank in a step: forward, backward, gradients (dark to light); "
        "predicted (lines)",
        ("measured",),
    ),
    "throughput": BarKind(
        _tokens, "tokens / s, all ranks", "Throughput", ("measured", "projected")
    ),
    "memory": BarKind(_peak, "MiB allocated", "Peak memory of a rank", EVERY),
}
"""In the order of the overview."""


def bars(name: str, lines: Sequence[Line]) -> Bars:
    """The bars of a panel; those of memory know what a device has, if the rows do."""
    kind = BARS[name]
    limits = [line.memory_limit_bytes / MIB for line in lines if line.memory_limit_bytes]
    return Bars(
        cases=[(x, kind.stack_of(x) if x.status == "ok" else None) for x in lines],
        unit=kind.unit,
        limit=min(limits, default=None) if name == "memory" else None,
    )


def _bar_kind(name: str, about: str) -> Kind:
    def sheet(panels: Mapping[str, Sequence[Line]], _: Run) -> Sheet:
        lines = [line for of_panel in panels.values() for line in of_panel]
        return Sheet(
            heading=_bar_heading(name, lines),
            panels={title: bars(name, of_panel) for title, of_panel in panels.items()},
            caption=_bar_notes(lines, has_whiskers=name == "throughput"),
        )

    return Kind(about=about, panels=lambda run: _by_panel(BARS[name].drawn(run)), sheet=sheet)


def _by_panel(lines: Iterable[Line]) -> dict[str, list[Line]]:
    return grouped(lines, lambda line: line.panel)


def _bar_heading(name: str, lines: Sequence[Line]) -> str:
    is_share = name == "step_split" and all(line.is_share for line in lines)
    return SHARE_HEADING if is_share else BARS[name].heading


def _bar_notes(lines: Sequence[Line], *, has_whiskers: bool) -> str:
    notes = [whiskers(lines)] if has_whiskers else []
    if any(line.is_share for line in lines):
        notes.append(SHARES_NOTE)
    return " · ".join(notes)


def whiskers(lines: Sequence[Line]) -> str:
    """Meaning of the whiskers, which cases of one launch lack."""
    meanings = []
    if any(line.launches >= 2 for line in lines):
        meanings.append("95 % intervals of the launches; of two launches their range")
    if any(line.kind == "projected" for line in lines):
        meanings.append("of projected steps 90 % intervals")
    words = "; ".join(meanings)
    return f"whiskers: {words}" if words else "one launch: no confidence interval"


def _overview_panels(run: Run) -> dict[str, tuple[str, list[Line]]]:
    """Every kind of bars of the first panel, by its heading."""
    lines = next(iter(_by_panel(run.lines).values()), [])
    names = [name for name, kind in BARS.items() if lines and lines[0].kind in kind.kinds]
    return {_bar_heading(name, lines): (name, lines) for name in names}


def _overview_sheet(panels: Mapping[str, tuple[str, Sequence[Line]]], _: Run) -> Sheet:
    lines = [line for _, of_kind in panels.values() for line in of_kind]
    return Sheet(
        heading=lines[0].panel,
        panels={title: bars(*of_panel) for title, of_panel in panels.items()},
        caption=_bar_notes(lines, has_whiskers=True),
    )


# ---- Ratios to the reference ----


def _ratio_panels(run: Run) -> dict[str, list[Line]]:
    """The lines that have a ratio to another strategy."""
    compared = [x for x in run.lines if x.to_reference and x.to_reference.ratio is not None]
    return _by_panel(line for line in compared if line.strategy != line.reference)


def _ratio_sheet(panels: Mapping[str, Sequence[Line]], _: Run) -> Sheet:
    lines = [line for of_panel in panels.values() for line in of_panel]
    ratios = [line.to_reference for line in lines if line.to_reference]
    paired = {ratio.paired for ratio in ratios}
    what = "ratios of rounds, or of means"
    if all(line.kind == "projected" for line in lines):
        what = "ratios of projected steps"
    elif len(paired) == 1:  # launches that ran in one round have a ratio of their own
        what = (
            "ratios of the launches of each round"
            if paired == {True}
            else ("ratios of mean step times")
        )
    notes = ["lines: 95 % intervals"] if any(ratio.low is not None for ratio in ratios) else []
    notes.append(f"band: within {MARGIN:.0%}; hollow: not shown to differ")
    return Sheet(
        heading=f"Against {lines[0].reference}: {what}",
        panels={title: Forest(lines=of_panel) for title, of_panel in panels.items()},
        caption=" · ".join(notes),
    )


# ---- Curves ----

PARETO = Asked(metric="tokens_per_s_per_rank", x="peak_allocated_bytes")
PARETO_HEADING = "Throughput of a rank against its memory; numbers: ranks along the first line"
SCALING_HEADING = "Throughput over ranks, and the ideal of the best (dotted)"
MOST_TICKS = 7
MOST_NAMES = 14
"""Curves that are named at their ends; more have a legend."""
WIDE = 4
"""Panels that have room for names at their right."""


def curves(panel: CurveRows) -> Curves:
    """A curve for each combination of the columns in which it may differ and does."""
    rows, x, metric = panel.rows, panel.x, panel.metric
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
        curve = _curve(group, panel, label=label, look=look)
        # Ranks stand at the points of the first curve alone, where they are not on the x axis.
        drawn.append(replace(curve, texts=()) if number else curve)
    return Curves(
        curves=drawn,
        x=label_of(x),
        y=label_of(metric),
        has_ticks_at_points=panel.is_chosen and rows[x].nunique() <= MOST_TICKS,
        ideal=panel.ideal,
        missing="" if any(curve.x for curve in drawn) else _missing(rows, x, metric),
    )


def _curve(rows: pandas.DataFrame, panel: CurveRows, **look: Any) -> Curve:
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
        texts=[f"{n}" for n in rows["ranks"][is_good]] if is_figure else (),
        failed=[(at, status) for at, status in missing if not math.isnan(at)],
        **look,
    )


def _scale(column: str) -> int:
    return MIB if column.endswith("_bytes") else 1


def _missing(rows: pandas.DataFrame, x: str, metric: str) -> str:
    """What no case of a panel has, and how its cases ended."""
    figures = [label_of(name) for name in (metric, x) if rows[name].isna().any()]
    statuses = rows["status"].replace("ok", "not measured").value_counts(sort=False)
    ended = ", ".join(f"{status} {count}" for status, count in statuses.items())
    return f"no case has {' and '.join(figures)}\n{counted(len(rows), 'case')}: {ended}"


def _curve_sheet(heading: str, panels: Mapping[str, Curves], *, before: str = "") -> Sheet:
    """Panels of curves, named at their ends where there is room, else by a legend."""
    every = [curve for mark in panels.values() for curve in mark.curves]
    is_small = max(len(mark.curves) for mark in panels.values()) <= MOST_NAMES
    has_names = len(panels) <= WIDE and is_small
    notes = [before] if before else []
    if any(any(curve.low) or any(curve.high) for curve in every if not curve.is_projected):
        notes.append("bars: 95 % intervals, or ranges of fewer than three launches")
    if any(any(curve.low) for curve in every if curve.is_projected):
        notes.append("of projected steps 90 % intervals")
    if any(any(curve.noisy) for curve in every):
        notes.append("circled: noisy launches, which are not ranked; no ideal line begins there")
    if any(curve.failed for curve in every):
        notes.append("cross: no figure, and why")
    return Sheet(
        heading=heading,
        panels={title: replace(mark, has_names=has_names) for title, mark in panels.items()},
        caption=" · ".join(notes),
    )


def _sheet_of_curves(heading: str, panels: Mapping[str, CurveRows], _: Run) -> Sheet:
    return _curve_sheet(heading, {title: curves(panel) for title, panel in panels.items()})


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


def _winner_sheet(panels: Mapping[str, pandas.DataFrame], _: Run) -> Sheet:
    maps = {title: _map(rows) for title, rows in panels.items()}
    notes = ["light: not told apart from the second", "grey: all are equal, or none has a time"]
    if not all(cell.is_ranked for one in maps.values() for cell in one.winners.values()):
        notes.append("crossed: not ranked, since launches of a strategy were noisy")
    heading = "The fastest strategy, and how much longer the second takes"
    return Sheet(heading=heading, panels=maps, caption=" · ".join(notes))


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


def capacity_curves(rows: pandas.DataFrame) -> Curves:
    """The largest sizes over ranks, and those of as many times as ranks from the best."""
    made = []
    for strategy, of_strategy in rows.groupby("strategy", sort=False):
        group = of_strategy.sort_values("ranks")
        fits = group["largest"].notna()
        sizes = group["largest"][fits].astype(float).tolist()
        why = ["cannot run" if text else "too large" for text in group["why_not"][~fits]]
        made.append(
            Curve(
                label=str(strategy),
                look=line_look(str(strategy)),
                is_projected=group["kind"].iloc[0] == "dry_run",
                x=group["ranks"][fits].astype(float).tolist(),
                y=sizes,
                noisy=[False] * len(sizes),
                failed=[*zip(group["ranks"][~fits].astype(float), why, strict=True)],
            )
        )
    return Curves(
        curves=made,
        x="ranks",
        y=_grows(_work(rows)),
        has_ticks_at_points=True,
        ideal=1.0,
        ideal_name="as many times as ranks",
    )


def _capacity_sheet(panels: Mapping[str, pandas.DataFrame], run: Run) -> Sheet:
    """The caption says how the sizes were found, by which versions."""
    table = run.capacities
    assert table is not None
    kinds = distinct(table, "kind")
    how = ["dry runs"] if "dry_run" in kinds else []
    if "measured" in kinds:
        how.append(f"ranks that tried on {', '.join(distinct(table, 'gpu'))}")
    commits = [name[:SHORT_COMMIT] for name in distinct(table, "git_commit")]
    made = {"torch": distinct(table, "torch"), "commit": commits}
    about = [
        f"capacity, by {' and '.join(how)}",
        *(f"{name} {', '.join(versions)}" for name, versions in made.items() if versions),
        "the next size does not fit, unless sizes end",
    ]
    return _curve_sheet(
        "The largest batch and the longest axis that fit into a rank's memory",
        {title: capacity_curves(rows) for title, rows in panels.items()},
        before=" · ".join(about),
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


# ---- All kinds, and the figures of a run ----

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
    "throughput": _bar_kind("throughput", "tokens a second as bars"),
    "ratios": Kind(
        about="how much longer than the reference, with intervals",
        panels=_ratio_panels,
        sheet=_ratio_sheet,
    ),
    "step_split": _bar_kind("step_split", "compute and exposed communication"),
    "sent_bytes": _bar_kind("sent_bytes", "bytes by phase against the formula"),
    "memory": _bar_kind("memory", "peak memory of a rank, against the limit"),
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
        is_about_run=False,
    ),
    "launches": Kind(
        about="every iteration of every launch", panels=launch_panels, sheet=launch_sheet
    ),
}
USUAL = ("memory", "sent_bytes", "step_split", "ratios", "capacity", "launches")
"""Figures that are drawn unasked, besides the overview of one panel, and throughput or scaling."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """Sheets by the names of their files, and remarks on panels that are not drawn."""

    sheets: Mapping[str, Sheet]
    remarks: Sequence[str]


def page_of(run: Run, number: int = 1, kinds: Sequence[str] = ()) -> Page:
    """The figures of ``kinds``, or those that the run has most to say with.

    A figure is one page of its panels; a run of many workloads has several pages. Raises
    ValueError if it has fewer, and for a kind, metric, x or facet that is not known.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(unknown(f"--kind {kind}: no such figure.", kind, [*KINDS]))
    if run.asked != Asked() and "scaling" not in kinds:
        if kinds:
            raise ValueError("--metric, --x and --facet are of the kind scaling")
        kinds = ["scaling"]
    run = _with_limits(run)
    panels = {kind: KINDS[kind].panels(run) for kind in kinds or usual(run.lines)}
    if not any(panels.values()):
        raise ValueError(_nothing(run.lines, kinds))
    pages = max(math.ceil(len(of_kind) / PANELS) for of_kind in panels.values())
    if number > pages:
        raise ValueError(f"--page {number}: the last page is {pages}")
    remarks = [_left_out(panels, number, pages)] if pages > 1 else []
    sheets: dict[str, Sheet] = {}
    for kind, of_kind in panels.items():
        shown = dict([*of_kind.items()][PANELS * (number - 1) : PANELS * number])
        if shown:
            sheet = KINDS[kind].sheet(shown, run)
            remarks += sheet.remarks
            about = caption(run, sheet) if KINDS[kind].is_about_run else ""
            whole = " · ".join(filter(None, [about, sheet.caption]))
            sheets[_name(kind, run.asked, number)] = replace(sheet, caption=whole)
    return Page(sheets=sheets, remarks=remarks)


def usual(lines: Sequence[Line]) -> list[str]:
    """An overview where one panel is all; curves in place of bars where ranks grow."""
    panels = {line.panel for line in lines}
    grows = len({(line.panel, line.ranks) for line in lines}) > len(panels)
    first = ["overview"] if len(panels) == 1 else []
    return [*first, "scaling" if grows else "throughput", *USUAL]


def _with_limits(run: Run) -> Run:
    """The run whose lines know the memory of the GPUs that they were measured on."""
    gpus = [gpu for gpu in read_run(run.folder).get("gpus") or [] if isinstance(gpu, dict)]
    sizes = [gpu["memory_bytes"] for gpu in gpus if gpu.get("memory_bytes")]
    if not sizes or not run.lines or set(run.launches["device"]) != {"cuda"}:
        return run
    least = min(sizes)
    return replace(
        run, lines=[replace(x, memory_limit_bytes=x.memory_limit_bytes or least) for x in run.lines]
    )


def _name(kind: str, asked: Asked, number: int) -> str:
    """The name of a figure's file."""
    if kind == "scaling" and asked != Asked():
        by = "" if asked.facet == "workload" else f"-by-{asked.facet}"
        kind = f"{asked.metric}-over-{asked.x}{by}"
    return f"{kind}-page{number}" if number > 1 else kind


def _nothing(lines: Sequence[Line], kinds: Sequence[str]) -> str:
    """Why nothing can be drawn of these kinds; none: of whatever the run has."""
    if not lines:
        return "there is no row to draw; choose others, or measure some with 'spbench run'"
    drawn = f"nothing to draw for {', '.join(kinds)}" if kinds else "nothing to draw"
    if all(line.is_share for line in lines):
        return (
            f"the run has {drawn}: its rows are shares of one GPU, which are no steps and are not "
            "ranked; use memory, step_split or launches"
        )
    return f"the run has {drawn}"


def _left_out(panels: Mapping[str, Mapping[str, Any]], number: int, pages: int) -> str:
    """The panels that are drawn, and how to see others."""
    launches = len(panels.get("launches", ()))
    most = max((len(x) for kind, x in panels.items() if kind != "launches"), default=launches)
    drawn = []
    for of, count in (("panels", most), ("panels of launches", launches)):
        last = min(PANELS * number, count)
        if last > PANELS * (number - 1):
            drawn.append(f"{of} {PANELS * (number - 1) + 1} to {last} of {count}")
    return (
        f"drawn are {', '.join(drawn)}; others with --page (1 to {pages}), "
        "or choose with --workload, --strategy, --gpus"
    )


SHARE_BACKEND = "fake"


def caption(run: Run, sheet: Sheet | None = None) -> str:
    """Run, device, torch, dtype and commit of what is drawn, whether it was quick or noisy, or on
    processors of several speeds, and what of it was not measured.

    ``sheet``: one without projected cases says nothing of them.
    """
    frame = run.launches
    is_projected = frame["kind"] == "projected"
    real, projected = frame[~is_projected], frame[is_projected]
    if sheet is not None and not sheet.has_projected and len(real):
        frame, projected = real, projected[:0]

    def words(name: str, rows: pandas.DataFrame = frame) -> str:
        return ", ".join(distinct(rows, name))

    commits = dict.fromkeys(commit[:SHORT_COMMIT] for commit in distinct(frame, "git_commit"))
    parts = [
        f"run {frame.iloc[0]['run_id']}",
        words("gpu", real) or words("device", real),
        words("backend").replace(SHARE_BACKEND, "nothing sent"),
        f"torch {words('torch')}",
        words("dtype"),
        words("mode"),
        f"commit {', '.join(commits)}" if commits else "",
    ]
    if len(projected):
        parts.append(f"projected on {words('cluster', projected)}: not measured")
    if noisy := int((frame["noisy"] != "").sum()):
        parts.append(f"{noisy} of {counted(len(frame), 'launch')} noisy")
    # Cases that stand side by side: the fastest processor over the slowest.
    speeds = frame.groupby([*PANEL, "world_size", "strategy"], sort=False)["cpu_gflop_per_s"].mean()
    apart = speeds.groupby(level=[*PANEL, "world_size"]).agg(lambda x: x.max() / x.min()).max()
    if apart > 1 + SPEEDS_ALIKE:
        parts.append(f"processors up to {apart:.2f}x apart in speed")
    if (frame["effort"] == "quick").any():
        parts.append("quick")
    return " · ".join(filter(None, parts))
