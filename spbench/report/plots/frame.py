"""A run as a tidy frame, which figures are drawn from: a row is a case, a column a fact or figure.

Curves are made of its rows. Points of one curve differ in x alone; those of one panel in x and
strategy, unless another facet is asked for. Figures of different kinds, as measured and projected,
never share a panel. Cases of the same work on several numbers of ranks are strong scaling; those on
one number each, whose tokens grow with the ranks, are weak scaling: it is seen in the rows.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas

from spbench.analysis.comparable import SHAPE, in_panels
from spbench.analysis.compare_strategies import Line
from spbench.results.run_json import read_run
from spbench.results.runs_csv import column_types
from spbench.text import counted, did_you_mean

MIB = 2**20
KINDS_OF_POINTS = ("kind", "device", "cluster", "effort")
"""Columns in which points of one panel agree, whatever it shows."""
AXIS = "axes."
"""Before the name of a workload's axis in the name of its column."""
FIGURES = ("_ms", "_bytes", "tokens_per_s")
"""Ends of columns of cases that are figures."""
NO_FIGURES = ("schema_version", "batch", "world_size", "sp_size", "dp_size", "launch", "warmup")
"""Columns of numbers that say what was run."""
LABELS = {
    "step_ms": "step, ms",
    "compute_ms": "compute, ms",
    "exposed_comm_ms": "exposed communication, ms",
    "tokens_per_s": "tokens / s, all ranks",
    "tokens_per_s_per_rank": "tokens / s of a rank",
    "samples_per_s": "samples / s",
    "sent_bytes": "MiB sent by a rank in a step",
    "predicted_bytes": "MiB to send by a rank in a step, predicted",
    "peak_allocated_bytes": "MiB allocated at the peak of a rank",
}
"""Figures in words, with their units."""
IDEAL = {"tokens_per_s": 1.0, "step_ms": -1.0, "tokens_per_s_per_rank": 0.0}
"""Power of the ranks that the figure of an ideal strategy follows at the same work."""
WEAK_IDEAL = {**IDEAL, "step_ms": 0.0}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is drawn over what, in which panels."""

    metric: str = "tokens_per_s"
    x: str = "ranks"
    facet: str = "workload"


@dataclass(frozen=True, kw_only=True)
class Run:
    """All that figures are drawn from: lines of the comparison, launches, and what lies beside."""

    lines: Sequence[Line] = ()
    launches: pandas.DataFrame = field(default_factory=pandas.DataFrame)
    folder: Path
    capacities: pandas.DataFrame | None = None
    """Lines of capacity.csv, where one lies in the folder."""
    asked: Asked = Asked()

    @cached_property
    def device_bytes(self) -> int | None:
        """Memory of the smallest GPU that the rows were measured on; None: not known."""
        gpus = [gpu for gpu in read_run(self.folder).get("gpus") or [] if isinstance(gpu, dict)]
        sizes = [gpu["memory_bytes"] for gpu in gpus if gpu.get("memory_bytes")]
        is_on_gpus = set(self.launches["device"]) == {"cuda"}
        return min(sizes, default=None) if is_on_gpus else None

    @cached_property
    def in_panels(self) -> pandas.DataFrame:
        """The launches, with the panel of each."""
        return in_panels(self.launches)

    @cached_property
    def cases(self) -> pandas.DataFrame:
        """A row for each line, which is its column ``line``; NaN: not measured."""
        of_panel = ["workload", *SHAPE, *KINDS_OF_POINTS]
        facts = self.in_panels.drop_duplicates("panel").set_index("panel")[of_panel]
        table = pandas.DataFrame([_row(line) for line in self.lines]).join(facts, on="panel")
        lengths = pandas.DataFrame([*map(axes_of, table["axes"])], table.index).astype("Float64")
        table = table.join(lengths.add_prefix(AXIS))
        table["tokens"] = lengths.prod(axis=1) * table["batch"]
        table["line"] = pandas.Series([*self.lines], dtype=object)
        return table

    def cases_with(self, *names: str) -> pandas.DataFrame:
        """The cases with these columns, of runs.csv where they are not there: the median over the
        good launches of each case. Raises ValueError for what is no figure of the run."""
        table = self.cases
        for name in names:
            if name not in table:
                table = table.join(self._medians(name), on=["panel", "ranks", "strategy"])
        return table

    def _medians(self, name: str) -> "pandas.Series[Any]":
        types = column_types().items()
        figures = [column for column, kind in types if kind is not str and column not in NO_FIGURES]
        launches = self.in_panels
        good = launches[launches["status"] == "ok"].rename(columns={"world_size": "ranks"})
        if name not in figures:
            there = [c for c in map(str, self.cases) if c.endswith(FIGURES)]
            there += [c for c in figures if c not in there and good[c].notna().any()]
            raise ValueError(unknown(f"there is no figure {name!r}.", name, there))
        return good.groupby(["panel", "ranks", "strategy"])[name].median().astype(float)


def _row(line: Line) -> dict[str, Any]:
    """The line's own figures; ``times``: the interval of its step time over that time."""
    step, rate, times = line.step_ms, line.tokens_per_s, (1.0, 1.0)
    if step and has_spread(line):
        times = step.low / step.mean, step.high / step.mean
    row: dict[str, Any] = {
        "panel": line.panel,
        "strategy": line.strategy,
        "ranks": line.ranks,
        "status": line.status,
        "is_noisy": line.is_noisy,
        "times": times,
        "step_ms": step.mean if step else None,
        "tokens_per_s": rate,
        "tokens_per_s_per_rank": rate / line.ranks if rate else None,
        "compute_ms": line.compute_ms,
        "exposed_comm_ms": line.exposed_comm_ms,
        "peak_allocated_bytes": line.peak_allocated_bytes,
    }
    for name, phases in (("sent", line.sent_bytes), ("predicted", line.predicted_bytes)):
        counts = [count for count in phases.values() if count is not None]
        row[f"{name}_bytes"] = sum(counts) if counts else None
    return {name: float("nan") if value is None else value for name, value in row.items()}


def has_spread(line: Line) -> bool:
    """Whether the time of a line has an interval or a range, as of two launches or a projection."""
    return line.launches >= 2 or line.kind == "projected"


def spread_of(metric: str, times: tuple[float, float]) -> tuple[float, float]:
    """The interval of a metric over its value, from that of the step time."""
    low, high = times
    if metric == "step_ms":
        return low, high
    # The longest step is the lowest rate; what is no time and no rate has no interval here.
    return (1 / high, 1 / low) if metric.startswith("tokens_per_s") else (1.0, 1.0)


class CurveRows(NamedTuple):
    """The rows of a panel of curves, and what is drawn of them."""

    rows: pandas.DataFrame
    apart: Sequence[str]
    """Columns of which each combination of values is a curve."""
    x: str
    metric: str
    is_chosen: bool
    """Whether x was chosen before a case ran, as ranks or lengths, and is no figure of it."""
    ideal: float | None
    """Power of x that the metric ideally follows; None: no ideal is known."""


def curve_panels(run: Run, asked: Asked) -> dict[str, CurveRows]:
    """The rows of each panel by its title; shares of one GPU are no steps, and in none.

    Raises ValueError for a metric, x or facet that is not known.
    """
    table = run.cases_with(asked.metric)
    axes = [name for name in map(str, table) if name.startswith(AXIS)]
    case = ["workload", *axes, "batch", *SHAPE[2:], *KINDS_OF_POINTS]
    x, facet = (AXIS + name if AXIS + name in table else name for name in (asked.x, asked.facet))
    chosen = ["ranks", "tokens", "batch", *axes]
    if x not in chosen and x not in table:
        try:
            table = run.cases_with(asked.metric, x)
        except ValueError:
            words = f"{_listed(chosen)}, or a figure such as step_ms"
            raise ValueError(f"--x {x}: use {words}") from None
    if facet not in (facets := [*case, "strategy", "ranks", "tokens"]):
        raise ValueError(f"--facet {facet}: use {_listed(facets)}")
    # Along a curve x moves, or the ranks where x is a figure; all else stays.
    moving = [*axes, "batch", x] if x == "tokens" else [x if x in chosen else "ranks"]
    fixed = [name for name in (*case, "ranks") if name not in moving]
    steps = table[table["kind"] != "one_gpu_share"]
    has_ideal = x == "ranks" and facet == "workload"
    if facet != "workload":
        key = [*dict.fromkeys([facet, *KINDS_OF_POINTS])]
        panels = _titled(steps, key, ["strategy", *fixed])
    elif x != "ranks":
        panels = _titled(steps, fixed, ["strategy"])
    else:
        panels = _scaling(steps, fixed)
    return {
        title: CurveRows(
            rows=rows,
            apart=apart,
            x=x,
            metric=asked.metric,
            is_chosen=x in chosen,
            ideal=ideals.get(asked.metric) if has_ideal else None,
        )
        for title, rows, apart, ideals in panels
    }


Titled = tuple[str, pandas.DataFrame, Sequence[str], Mapping[str, float]]
"""A panel's title, its rows, what tells its curves apart, and the ideal powers of metrics."""


def _scaling(table: pandas.DataFrame, fixed: Sequence[str]) -> Iterator[Titled]:
    """Panels of strong scaling, then those of weak scaling."""
    is_alone = table.groupby("panel")["ranks"].transform("nunique") == 1
    alone = table[is_alone].assign(tokens_of_a_rank=table["tokens"] / table["ranks"])
    key = [name for name in fixed if name != "batch" and not name.startswith(AXIS)]
    grown = alone.groupby([*key, "tokens_of_a_rank"], dropna=False)["ranks"].transform("nunique")
    is_weak = (grown > 1).reindex(table.index, fill_value=False)
    # A case on one number of ranks is a curve of one point: drawn where there is nothing else.
    strong = table[~is_alone] if (~is_alone).any() or is_weak.any() else table
    for panel, rows in strong.groupby("panel", sort=False):
        yield f"same work: {panel}", rows, ["strategy"], IDEAL
    key.insert(1, "tokens_of_a_rank")
    for title, rows, apart, _ in _titled(alone[grown > 1], key, ["strategy"]):
        yield f"work grows with the ranks: {title}", rows, apart, WEAK_IDEAL


def _titled(table: pandas.DataFrame, key: Sequence[str], apart: Sequence[str]) -> Iterator[Titled]:
    """A panel for each combination of values of the columns ``key``."""
    further = [name for name in apart if name not in key]
    for values, rows in table.groupby([*key], sort=False, dropna=False):
        yield title_of(dict(zip(key, values, strict=True))), rows, further, IDEAL


def axes_of(text: str) -> dict[str, int]:
    """The lengths in a column ``axes``: time=64xspace=4096."""
    return {axis: int(length) for axis, length in re.findall(r"([^=]+)=(\d+)(?:x|$)", text)}


def label_of(metric: str) -> str:
    """A metric in words, with its unit."""
    words = f"{metric.removesuffix('_bytes')}, MiB" if metric.endswith("_bytes") else metric
    return LABELS.get(metric, words.removeprefix(AXIS).replace("_", " "))


def words_of(column: str, value: Any) -> str:
    """A value of a column for a title or a label; blank where it says nothing."""
    if pandas.isna(value) or value in ("", "none", "measured"):
        return ""
    if (column, value) == ("effort", "full"):
        return ""
    number = f"{value:g}" if isinstance(value, float) else str(value)
    match column:
        case "ranks":
            return counted(int(value), "rank")
        case "batch":
            return f"batch {number}"
        case "guidance":
            return f"{number} branches"
        case "checkpointing":
            return "checkpointed" if value == "full" else "attention recomputed"
        case "cluster":
            return f"on {value}"
        case "kind":
            return str(value).replace("_", " ")
        case "tokens_of_a_rank":
            return f"{int(value):,} tokens a rank"
    return f"{column.removeprefix(AXIS)} {int(value)}" if column.startswith(AXIS) else number


def title_of(values: Mapping[str, Any]) -> str:
    """A title of the values by their columns: the workload first, the rest in brackets behind."""
    if values.get("kind") == "projected":
        on = f"projected on {values.get('cluster')}"
        values = {**values, "kind": on, "cluster": "", "device": ""}
    words = [words_of(column, value) for column, value in values.items() if column != "workload"]
    rest = ", ".join(filter(None, words))
    first = str(values.get("workload", ""))
    return f"{first} ({rest})" if first and rest else first or rest


def unknown(problem: str, word: str, there: Sequence[str]) -> str:
    """The problem with a word in a sentence, the one that it may mean, and all that there are."""
    sentences = " ".join(filter(None, [problem, did_you_mean(word, there)]))
    return f"{sentences}\n  There are {', '.join(there)}."


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(name.removeprefix(AXIS) for name in columns)
