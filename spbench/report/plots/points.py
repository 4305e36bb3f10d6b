"""A run as points: what each strategy computes on a number of ranks, and its figures.

Points of one curve differ in x alone; those of one panel in x and strategy, unless another facet
is asked for. Figures of different kinds, as measured and projected, never share a panel.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas

from spbench.analysis.comparable import SHAPE, in_panels
from spbench.analysis.compare_strategies import Line
from spbench.results.runs_csv import column_types
from spbench.text import counted, did_you_mean

MIB = 2**20
KINDS = ("kind", "device", "cluster", "effort")
"""Columns in which points of one panel agree, whatever it shows."""
NO_FIGURES = ("schema_version", "batch", "world_size", "sp_size", "dp_size", "launch", "warmup")
AXIS = "axes."
FULL = ("effort", "full")
"""What a title need not say."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is drawn over what, in which panels."""

    metric: str = "tokens_per_s"
    x: str = "ranks"
    facet: str = "workload"


def label_of(metric: str) -> str:
    """A metric in words, with its unit."""
    known = {
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
    words = metric.removesuffix("_bytes") + ", MiB" if metric.endswith("_bytes") else metric
    return known.get(metric, words.removeprefix(AXIS).replace("_", " "))


def points(
    lines: Sequence[Line], frame: pandas.DataFrame, names: Sequence[str]
) -> pandas.DataFrame:
    """A row for each line: its case, its status, and the columns ``names``.

    Raises ValueError for a name that is neither a column of the case nor a figure of the run.
    """
    shown = in_panels(frame)
    facts = shown.drop_duplicates("panel").set_index("panel")[["workload", *SHAPE, *KINDS]]
    table = pandas.DataFrame([_row(line) for line in lines]).join(facts, on="panel")
    lengths = list(map(axes_of, table["axes"]))
    axes = pandas.DataFrame(lengths, table.index).astype("Float64").add_prefix(AXIS)
    table = table.join(axes)
    table["tokens"] = axes.prod(axis=1) * table["batch"]
    for name in names:
        if name not in table:
            table = table.join(_medians(shown, name, table), on=["panel", "ranks", "strategy"])
    return table


def axes_of(text: str) -> dict[str, int]:
    """The lengths in a column ``axes``."""
    return {axis: int(length) for axis, length in re.findall(r"([^=]+)=(\d+)(?:x|$)", text)}


def _row(line: Line) -> dict[str, Any]:
    """The line's own figures, with the interval of what follows from its step time."""
    step, rate = line.step_ms, line.tokens_per_s
    has_spread = step is not None and (line.launches >= 2 or line.kind == "projected")
    low, high = (step.low / step.mean, step.high / step.mean) if step and has_spread else (1, 1)
    case = ("panel", "strategy", "ranks", "status", "is_noisy")
    figures = ("compute_ms", "exposed_comm_ms", "peak_allocated_bytes")
    each: dict[str, Any] = {
        **{name: getattr(line, name) for name in case},
        "times": (low, high),
        "step_ms": step.mean if step else None,
        "tokens_per_s": rate,
        "tokens_per_s_per_rank": rate / line.ranks if rate else None,
        **{name: getattr(line, name) for name in figures},
    }
    for name, phases in (("sent", line.sent_bytes), ("predicted", line.predicted_bytes)):
        known = [count for count in phases.values() if count is not None]
        each[f"{name}_bytes"] = sum(known) if known else None
    return {k: float("nan") if v is None else v for k, v in each.items()}


def spread_of(metric: str, times: tuple[float, float]) -> tuple[float, float]:
    """The interval of a metric over its value, from that of the step time."""
    low, high = times
    if metric == "step_ms":
        return low, high
    return (1 / high, 1 / low) if metric.startswith("tokens_per_s") else (1.0, 1.0)


def _medians(shown: pandas.DataFrame, name: str, table: pandas.DataFrame) -> "pandas.Series[Any]":
    """The median of a column over the good launches of each case."""
    figures = [c for c, kind in column_types().items() if kind is not str and c not in NO_FIGURES]
    good = shown[shown["status"] == "ok"].rename(columns={"world_size": "ranks"})
    if name not in figures:
        own = [c for c in table.columns if c.endswith(("_ms", "_bytes", "tokens_per_s"))]
        filled = [c for c in figures if good[c].notna().any()]
        known = [*own, *(c for c in filled if c not in own)]
        raise ValueError(unknown(f"there is no figure {name!r}.", name, known))
    return good.groupby(["panel", "ranks", "strategy"])[name].median().astype(float)


def unknown(problem: str, word: str, known: Sequence[str]) -> str:
    """The problem with a word in a sentence, the one that it may mean, and all that are known."""
    sentences = " ".join(filter(None, [problem, did_you_mean(word, known)]))
    return f"{sentences}\n  There are {', '.join(known)}."


def words_of(column: str, value: Any) -> str:
    """A value of a column for a title or a label; blank where it says nothing."""
    if pandas.isna(value) or value in ("", "none", "measured") or (column, value) == FULL:
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
            return "checkpointed"
        case "cluster":
            return f"on {value}"
        case "kind":
            return str(value).replace("_", " ")
        case "tokens_of_a_rank":
            return f"{int(value):,} tokens a rank"
    return f"{column.removeprefix(AXIS)} {int(value)}" if column.startswith(AXIS) else number


def title_of(values: Mapping[str, Any]) -> str:
    """A title: the workload first, the rest in brackets behind it."""
    if values.get("kind") == "projected":
        on = f"projected on {values.get('cluster')}"
        values = {**values, "kind": on, "cluster": "", "device": ""}
    words = [words_of(column, value) for column, value in values.items() if column != "workload"]
    rest = ", ".join(filter(None, words))
    first = str(values.get("workload", ""))
    return f"{first} ({rest})" if first and rest else first or rest
