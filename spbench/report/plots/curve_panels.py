"""Which curves share a panel: scaling, strong and weak, any metric over any x, memory's price.

Cases of the same work on several numbers of ranks are strong scaling. Those on one number each,
whose tokens grow with the ranks, are weak scaling: it is seen in the rows, nobody says it.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial

import pandas

from spbench.analysis.comparable import SHAPE
from spbench.analysis.compare_strategies import Line
from spbench.report.plots import looks
from spbench.report.plots import points as of
from spbench.report.plots.curve import Curve, CurvePanel
from spbench.report.plots.points import AXIS, KINDS, MIB, Asked
from spbench.text import counted

PARETO = Asked(metric="tokens_per_s_per_rank", x="peak_allocated_bytes")
MOST_TICKS = 7
IDEAL = {"tokens_per_s": 1.0, "step_ms": -1.0, "tokens_per_s_per_rank": 0.0}
"""Power of the ranks that the metric of an ideal strategy follows at the same work."""
WEAK_IDEAL = {**IDEAL, "step_ms": 0.0}
Ideals = Mapping[str, float]
OfPanel = tuple[pandas.DataFrame, list[str], Ideals]
"""Rows of a panel, columns that tell its curves apart, and the ideal powers by metric."""
CASE = ("workload", "batch", *SHAPE[2:], *KINDS)


def curve_panels(
    lines: Sequence[Line], frame: pandas.DataFrame, asked: Asked
) -> dict[str, Callable[[], CurvePanel]]:
    """Functions that make the panels, by their titles: a page has few of them. Raises ValueError
    for a metric, x or facet that is not known."""
    table = of.points(lines, frame, [asked.metric])
    axes = [name for name in map(str, table) if name.startswith(AXIS)]
    case = [CASE[0], *axes, *CASE[1:]]
    x, facet = (AXIS + n if AXIS + n in table else n for n in (asked.x, asked.facet))
    offered = ["ranks", "tokens", "batch", *axes]
    if x not in offered and x not in table:
        try:
            table = of.points(lines, frame, [asked.metric, x])
        except ValueError:
            words = ", ".join(name.removeprefix(AXIS) for name in offered)
            raise ValueError(f"--x {x}: use {words}, or a figure such as step_ms") from None
    if facet not in (known := [*case, "strategy", "ranks", "tokens"]):
        words = ", ".join(name.removeprefix(AXIS) for name in known)
        raise ValueError(f"--facet {facet}: use {words}")
    bound = {"tokens": [*axes, "batch", "tokens"]}.get(x, [x])
    moves = x if x in offered else "ranks"
    fixed = [name for name in (*case, "ranks") if name not in (*bound, moves)]

    def panel(rows: pandas.DataFrame, own: Sequence[str], ideals: Ideals) -> CurvePanel:
        curves = list(_curves(rows, own, x, asked.metric))
        return CurvePanel(
            curves=curves,
            x=of.label_of(x),
            y=of.label_of(asked.metric),
            has_ticks_at_points=x in offered and rows[x].nunique() <= MOST_TICKS,
            ideal=ideals.get(asked.metric) if x == "ranks" and facet == "workload" else None,
            missing="" if any(curve.x for curve in curves) else _missing(rows, x, asked.metric),
        )

    grouped = _grouped(table, fixed, x, facet)
    return {title: cache(partial(panel, *of_panel)) for title, of_panel in grouped}


def _grouped(
    table: pandas.DataFrame, fixed: Sequence[str], x: str, facet: str
) -> Iterator[tuple[str, OfPanel]]:
    """The title of each panel, and what it shows."""
    if facet != "workload":
        key = list(dict.fromkeys([facet, *KINDS]))
        yield from _panels(table, key, ["strategy", *fixed], "", IDEAL)
    elif x != "ranks":
        yield from _panels(table, fixed, ["strategy"], "", IDEAL)
    else:
        is_alone = table.groupby("panel")["ranks"].transform("nunique") == 1
        weak = table[is_alone].assign(tokens_of_a_rank=table["tokens"] / table["ranks"])
        key = [name for name in fixed if name != "batch" and not name.startswith(AXIS)]
        grown = weak.groupby([*key, "tokens_of_a_rank"], dropna=False)["ranks"].transform("nunique")
        is_weak = (grown > 1).reindex(table.index, fill_value=False)
        strong = table[~is_alone] if (~is_alone).any() or is_weak.any() else table
        for panel, rows in strong.groupby("panel", sort=False):
            yield f"same work: {panel}", (rows, ["strategy"], IDEAL)
        yield from _panels(
            weak[grown > 1],
            [key[0], "tokens_of_a_rank", *key[1:]],
            ["strategy"],
            "work grows with the ranks: ",
            WEAK_IDEAL,
        )


def _panels(
    table: pandas.DataFrame, key: Sequence[str], own: Sequence[str], before: str, ideals: Ideals
) -> Iterator[tuple[str, OfPanel]]:
    for values, rows in table.groupby(list(key), sort=False, dropna=False):
        title = of.title_of(dict(zip(key, values, strict=True)))
        yield before + title, (rows, [name for name in own if name not in key], ideals)


def _curves(rows: pandas.DataFrame, own: Sequence[str], x: str, metric: str) -> Iterator[Curve]:
    """A curve for each combination of the columns ``own`` that differ in the panel."""
    varying = [c for c in own if rows[c].nunique(dropna=False) > 1] or [own[0]]
    further = [c for c in varying if c != "strategy"] if "strategy" in own else varying
    scales = [MIB if name.endswith("_bytes") else 1 for name in (x, metric)]
    groups = rows.groupby(varying, sort=False, dropna=False)
    numbers: dict[str, int] = {}
    along = "ranks" if x.endswith(("_bytes", "_ms")) or "_per_" in x else x
    for number, (_, group) in enumerate(groups):
        these = group.sort_values(along)
        first = these.iloc[0]
        strategy, said = first["strategy"], (of.words_of(each, first[each]) for each in further)
        words = ", ".join(filter(None, said))
        if "strategy" in own:
            look = looks.line_look(strategy, numbers.setdefault(words, len(numbers)))
        else:
            look = looks.shade_look(strategy, number, len(groups))
        ys = these[metric].astype(float) / scales[1]
        xs = these[x].astype(float) / scales[0]
        is_good = ys.notna() & xs.notna()
        spreads = [of.spread_of(metric, times) for times in these["times"][is_good]]
        good = ys[is_good].tolist()
        yield Curve(
            label=", ".join(filter(None, [strategy if "strategy" in own else "", words]))
            or first["workload"],
            look=look,
            is_projected=first["kind"] == "projected",
            x=xs[is_good].tolist(),
            y=good,
            low=[max(0.0, y - y * low) for y, (low, _) in zip(good, spreads, strict=True)],
            high=[max(0.0, y * high - y) for y, (_, high) in zip(good, spreads, strict=True)],
            noisy=these["is_noisy"][is_good].tolist(),
            texts=[f"{n}" for n in these["ranks"][is_good]] if along != x and number == 0 else (),
            failed=[
                (at, "not measured" if status == "ok" else status)
                for at, status in zip(xs[~is_good], these["status"][~is_good], strict=True)
                if not math.isnan(at)
            ],
        )


def _missing(rows: pandas.DataFrame, x: str, metric: str) -> str:
    """What no case of a panel has, and how its cases ended."""
    figures = [of.label_of(name) for name in (metric, x) if rows[name].isna().any()]
    statuses = rows["status"].replace("ok", "not measured").value_counts(sort=False)
    ended = ", ".join(f"{status} {count}" for status, count in statuses.items())
    return f"no case has {' and '.join(figures)}\n{counted(len(rows), 'case')}: {ended}"
