"""The kinds of figures: which a run has most to say with, and the sheets of those that are bars.

Bars and ratios have a sheet for a kind, and the overview has several kinds on one page.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pandas
from matplotlib.axes import Axes

from spbench.analysis.comparable import PANEL
from spbench.analysis.compare import MARGIN
from spbench.analysis.compare_strategies import Line
from spbench.analysis.launches import SPEEDS_ALIKE
from spbench.report.plots.figure import Sheet
from spbench.report.plots.panels import label, memory, ratios, sent_bytes, step_split, throughput
from spbench.report.plots.points import unknown
from spbench.results.provenance import distinct
from spbench.text import counted

KINDS = {
    "overview": "step, bytes, throughput and memory of one workload on a page",
    "scaling": "throughput over ranks with the ideal line, strong and weak",
    "throughput": "tokens a second as bars",
    "ratios": "how much longer than the reference, with intervals",
    "step_split": "compute and exposed communication",
    "sent_bytes": "bytes by phase against the formula",
    "memory": "peak memory of a rank, against the limit",
    "pareto": "throughput against memory",
    "winners": "the fastest strategy by size and ranks",
    "capacity": "the largest batch and the longest axis that fit, of 'capacity --out'",
    "launches": "every iteration of every launch",
}
USUAL = ("memory", "sent_bytes", "step_split", "ratios", "capacity", "launches")
"""Figures that are drawn unasked, besides the overview of one panel, and throughput or scaling."""


def known(kind: str) -> str:
    """The kind, if there is one of this name. Raises ValueError."""
    if kind in KINDS:
        return kind
    raise ValueError(unknown(f"--kind {kind}: no such figure.", kind, [*KINDS]))


def usual(lines: Sequence[Line]) -> list[str]:
    """An overview where one panel is all; curves in place of bars where ranks grow."""
    panels = {line.panel for line in lines}
    first = ["overview"] * (len(panels) == 1)
    grows = len({(line.panel, line.ranks) for line in lines}) > len(panels)
    return [*first, "scaling" if grows else "throughput", *USUAL]


DRAWINGS: dict[str, tuple[Callable[..., None], str, tuple[str, ...]]] = {
    "step_split": (
        step_split,
        "Compute, exposed communication (striped), the whole step (line)",
        ("measured", "one_gpu_share", "projected"),
    ),
    "sent_bytes": (
        sent_bytes,
        "Sent by one rank in a step: forward, backward, gradients (dark to light); "
        "predicted (lines)",
        ("measured",),
    ),
    "throughput": (throughput, "Throughput", ("measured", "projected")),
    "memory": (memory, "Peak memory of a rank", ("measured", "one_gpu_share", "projected")),
}
"""In the order of the overview, what draws the cases of a panel into axes, the heading of its
figure, and the kinds that it is drawn of: a share of one GPU has no step and sends nothing."""
SHARE_HEADING = "What a rank computes, without messages: no step"
"""The heading of the split of a step where all are shares of one GPU."""
SHARE_BACKEND = "fake"
SHARES_NOTE = "one gpu share: what one rank computes, without messages, so no step and no ranking"
SHORT_COMMIT = 9


def bar_sheet(panels: Mapping[str, Sequence[Line]], about: str, name: str) -> Sheet:
    """One figure of ``DRAWINGS``."""
    drawing, _, _ = DRAWINGS[name]
    every = [line for lines in panels.values() for line in lines]
    return _sheet(
        every,
        {title: partial(drawing, lines=lines) for title, lines in panels.items()},
        _heading(name, every),
        about,
        has_whiskers=name == "throughput",
    )


def overview_sheet(panels: Mapping[str, Sequence[Line]], about: str) -> Sheet:
    """Every figure of the only panel."""
    ((title, lines),) = panels.items()
    drawn = {
        _heading(name, lines): partial(drawing, lines=lines)
        for name, (drawing, _, kinds) in DRAWINGS.items()
        if lines[0].kind in kinds
    }
    return _sheet(lines, drawn, title, about, has_whiskers=True)


def _heading(name: str, lines: Sequence[Line]) -> str:
    """The heading of one figure of ``DRAWINGS``."""
    is_share = name == "step_split" and all(line.is_share for line in lines)
    return SHARE_HEADING if is_share else DRAWINGS[name][1]


def _sheet(
    lines: Sequence[Line],
    panels: Mapping[str, Callable[[Axes], None]],
    heading: str,
    about: str,
    *,
    has_whiskers: bool,
) -> Sheet:
    notes = [whiskers(lines)] if has_whiskers else []
    if any(line.is_share for line in lines):
        notes.append(SHARES_NOTE)
    return Sheet(
        heading=heading,
        panels=panels,
        strategies=list(dict.fromkeys(line.strategy for line in lines)),
        has_projected=any(line.kind == "projected" for line in lines),
        caption=" · ".join([about, *notes]),
    )


def ratio_sheet(panels: Mapping[str, Sequence[Line]], about: str) -> Sheet:
    """The forest plot of lines that have a ratio."""
    lines = [line for lines in panels.values() for line in lines]
    are_open = all(not line.to_reference or line.to_reference.low is None for line in lines)
    spread = "" if are_open else " · lines: 95 % intervals"
    return Sheet(
        heading=f"Against {lines[0].reference}: {_kind_of_ratios(lines)}",
        panels={title: partial(ratios, lines=lines) for title, lines in panels.items()},
        caption=f"{about}{spread} · band: within {MARGIN:.0%}; hollow: not shown to differ",
        has_projected=any(line.kind == "projected" for line in lines),
        label_width=0.3 + 0.066 * max(len(label(line)) for line in lines),
        rows=max(map(len, panels.values())) + 1,
    )


def _kind_of_ratios(lines: Sequence[Line]) -> str:
    """Times of launches that ran in one round have a ratio of their own."""
    if all(line.kind == "projected" for line in lines):
        return "ratios of projected steps"
    paired = {line.to_reference.paired for line in lines if line.to_reference is not None}
    if paired == {True}:
        return "ratios of the launches of each round"
    return "ratios of mean step times" if paired == {False} else "ratios of rounds, or of means"


def whiskers(lines: Sequence[Line]) -> str:
    """Meaning of the whiskers, which cases of one launch lack."""
    projected = ["of projected steps 90 % intervals"] * any(x.kind == "projected" for x in lines)
    if max((line.launches for line in lines), default=0) < 2:
        return "".join(f"whiskers: {each}" for each in projected) or (
            "one launch: no confidence interval"
        )
    measured = "95 % intervals of the launches; of two launches their range"
    return "; ".join([f"whiskers: {measured}", *projected])


def caption(frame: pandas.DataFrame) -> str:
    """Run, device, torch, dtype and commit of what is drawn, whether it was quick or noisy, or on
    processors of several speeds, and what of it was not measured."""
    is_projected = frame["kind"] == "projected"
    real, projected = frame[~is_projected], frame[is_projected]

    def each(name: str, rows: pandas.DataFrame = frame) -> str:
        return ", ".join(distinct(rows, name))

    backend = each("backend").replace(SHARE_BACKEND, "nothing sent")
    machine = [each("gpu", real) or each("device", real), backend, f"torch {each('torch')}"]
    noisy = int((frame["noisy"] != "").sum())
    commits = dict.fromkeys(commit[:SHORT_COMMIT] for commit in distinct(frame, "git_commit"))
    made = [f"commit {', '.join(commits)}"] if commits else []
    doubts = [f"projected on {each('cluster', projected)}: not measured"] * bool(len(projected))
    doubts += [f"{noisy} of {counted(len(frame), 'launch')} noisy"] if noisy else []
    case = frame.groupby([*PANEL, "world_size", "strategy"], sort=False)["cpu_gflop_per_s"].mean()
    apart = case.groupby(level=[*PANEL, "world_size"]).agg(lambda x: x.max() / x.min()).max()
    doubts += [f"processors up to {apart:.2f}x apart in speed"] * bool(apart > 1 + SPEEDS_ALIKE)
    doubts += ["quick"] if (frame["effort"] == "quick").any() else []
    parts = [
        f"run {frame.iloc[0]['run_id']}",
        *machine,
        each("dtype"),
        each("mode"),
        *made,
        *doubts,
    ]
    return " · ".join(filter(None, parts))
