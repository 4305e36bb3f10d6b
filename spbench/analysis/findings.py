"""What is found of one metric of one case, before and after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spbench.analysis.compare import MARGIN, Comparison

Metric = Literal["status", "time", "memory", "volume"]
METRICS: tuple[Metric, ...] = ("status", "time", "memory", "volume")


@dataclass(frozen=True, kw_only=True)
class Margins:
    """How much more is still the same."""

    time: float = MARGIN
    memory: float = 0.01


USUAL = Margins()


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One metric of one case, before and after."""

    case: str = ""
    """Its key on the side that has it; the second's where both have."""
    panel: str = ""
    """Workload, shape and mode in words."""
    strategy: str = ""
    ranks: int = 0
    metric: Metric
    verdict: str
    """faster, same, slower, inconclusive, broke, fixed, changed, new, missing, not comparable."""
    before: float | str | None = None
    """Milliseconds, bytes or a status."""
    after: float | str | None = None
    comparison: Comparison | None = None
    """Of times."""
    reason: str = ""

    @property
    def ratio(self) -> float | None:
        """After over before."""
        if self.comparison is not None:
            return self.comparison.ratio
        if isinstance(self.before, str) or isinstance(self.after, str):
            return None
        return self.after / self.before if self.before and self.after is not None else None
