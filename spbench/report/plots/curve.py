"""A curve and a panel of curves, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spbench.report.plots.looks import LineLook


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Points of a strategy, in order of x."""

    label: str
    look: LineLook
    is_projected: bool
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float]
    """Lengths of the error bars below the points."""
    high: Sequence[float]
    noisy: Sequence[bool]
    texts: Sequence[str] = ()
    """What stands at the points."""
    failed: Sequence[tuple[float, str]] = ()
    """Places on the x axis without a point, and why."""


@dataclass(frozen=True, kw_only=True)
class PublishedPoint:
    """What a paper published at a place of a panel."""

    x: float
    y: float
    look: LineLook
    source: str


@dataclass(frozen=True, kw_only=True)
class CurvePanel:
    """What a panel shows besides its curves."""

    curves: Sequence[Curve]
    x: str
    """Label of the x axis."""
    y: str
    has_ticks_at_points: bool
    """The x axis is labelled at each x, as of ranks."""
    ideal: float | None = None
    """Power of x that an ideal strategy follows."""
    ideal_name: str = "ideal"
    published: Sequence[PublishedPoint] = ()
    missing: str = ""
    """What stands in place of curves where no case has a point, and why none has."""

    @property
    def is_projected(self) -> bool:
        return any(curve.is_projected for curve in self.curves)
