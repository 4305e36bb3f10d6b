"""Figure 3 of DSP's first version beside its projection, and the rate that would explain it.

The step of Ulysses less that of DSP is what Ulysses sends beyond DSP, over a rate. At the same rate
DSP's own switches take their share of DSP's published step, and what is left has to hold the
computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from markdown import brief, table
from paper_facts import facts
from published_work import ENGINE

from spbench.projection.advise.project import project
from spbench.projection.costmodel.cluster_file import find as find_cluster
from spbench.projection.costmodel.step_time import COMPUTE, Cost, Mode, cost
from spbench.projection.dryrun.rank_work import works
from spbench.projection.dryrun.work import Work
from spbench.workload.catalogue import find, with_settings

FORMS = ("ulysses", "ulysses:every-attention")
"""Ulysses as it is known, and around every attention."""


@final
@dataclass(frozen=True, kw_only=True)
class FigurePoint:
    """One published point, projected."""

    ranks: int
    frames: int
    dsp: float
    ulysses: float
    """Published samples a second."""
    projected: Cost
    """A step of DSP, as ``spbench project`` gives it and ``spbench plot`` draws it."""
    by_engines: Cost
    """The same with what published engines take beyond the terms of the cost model."""
    gains: tuple[float, ...]
    """Projected step of each form of Ulysses over that of DSP, less 1."""
    beyond_bytes: tuple[int, ...]
    """What each form sends in a step beyond DSP."""
    switch_bytes: int
    """What DSP sends in its switches."""

    @property
    def name(self) -> str:
        return f"{self.ranks} GPUs, {self.frames} frames"

    @property
    def step_ms(self) -> float:
        """Published step of DSP."""
        return 1e3 / self.dsp

    @property
    def beyond_s(self) -> float:
        """Published step of Ulysses less that of DSP."""
        return 1 / self.ulysses - 1 / self.dsp

    @property
    def compute_s(self) -> float:
        return sum(self.projected.terms.get(kind, 0.0) for kind in COMPUTE)

    @property
    def rates(self) -> tuple[float, ...]:
        """GB/s at which what each form sends beyond DSP takes the published difference."""
        return tuple(sent / self.beyond_s / 1e9 for sent in self.beyond_bytes)

    @property
    def left_s(self) -> tuple[float, ...]:
        """Left of DSP's published step where its switches go at these rates."""
        return tuple(1 / self.dsp - self.switch_bytes / (rate * 1e9) for rate in self.rates)


def projected_point(point: dict[str, Any]) -> FigurePoint:
    """A point of the facts, projected on their cluster."""
    figure = facts("dsp")["figure"]
    settings = [f"axes.time={point['frames']}", f"axes.space={figure['space']}"]
    workload = with_settings(find(figure["workload"]), settings)
    cluster, ranks = find_cluster(figure["cluster"]), point["ranks"]
    # The figure's whiskers are those of the rows that this function makes: one band for both.
    own, *others = project(
        workload, cluster, ("dsp", *FORMS), [ranks], Mode(), works(cluster.device.runs_on)
    )
    assert own.work is not None
    return FigurePoint(
        ranks=point["ranks"],
        frames=point["frames"],
        dsp=point["dsp"],
        ulysses=point["ulysses"],
        projected=own.took,
        by_engines=cost(own.work, cluster, Mode(beyond=ENGINE), launches_of="dsp"),
        gains=tuple(each.took.step_s / own.took.step_s - 1 for each in others),
        beyond_bytes=tuple(_exchanged(each.work) - _exchanged(own.work) for each in others),
        switch_bytes=_exchanged(own.work),
    )


def holds(interval: Cost, step_ms: float) -> bool:
    """Whether a step lies in a projection's interval."""
    return interval.low_s <= step_ms / 1e3 <= interval.high_s


def _exchanged(done: Work | None) -> int:
    assert done is not None
    return round(sum(x.sent_bytes * n for x, n in done.messages.items() if x.op == "all_to_all"))


def constant_ms(points: Sequence[FigurePoint], ranks: int) -> float:
    """The constant part of a line through DSP's published steps of the fewest and most frames."""
    steps = sorted((each.frames, 1e3 / each.dsp) for each in points if each.ranks == ranks)
    (few, short), (many, long) = steps[0], steps[-1]
    return short - (long - short) / (many - few) * few


def figure_table(points: Sequence[FigurePoint]) -> str:
    """Rates and gains, published and projected."""
    head = ("", "DSP, samples/s", "projected", "Ulysses, samples/s", "DSP over Ulysses")
    head += ("projected, best known", "projected, in every attention")
    rows = [
        [
            each.name,
            f"{each.dsp:.3g}",
            f"{1 / each.projected.step_s:.3g} ({1 / each.projected.high_s:.3g} to "
            f"{1 / each.projected.low_s:.3g})",
            f"{each.ulysses:.3g}",
            f"{100 * (each.dsp / each.ulysses - 1):.0f} %",
            *(f"{100 * gain:.0f} %" for gain in each.gains),
        ]
        for each in points
    ]
    return table(head, rows)


def rates_table(points: Sequence[FigurePoint]) -> str:
    """The rate that would explain each difference, and what it leaves of DSP's step."""
    head = ("", "Ulysses less DSP, ms", "best known: GB/s", "left of DSP's step, ms")
    head += ("every attention: GB/s", "left, ms", "computation, projected, ms")
    rows = []
    for each in points:
        pairs = zip(each.rates, each.left_s, strict=True)
        explained = [text for rate, left in pairs for text in (f"{rate:.1f}", brief(1e3 * left))]
        rows.append(
            [each.name, brief(1e3 * each.beyond_s), *explained, brief(1e3 * each.compute_s)]
        )
    return table(head, rows)
