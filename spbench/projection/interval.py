"""The interval of a projected time: terms, the constants that bound them, and draws of both.

Each constant varies by its own spread, as a factor whose logarithm is normal, and so does what no
term holds; ``doubts`` says what varies together. Overlap varies around its middle. The seed is
fixed, so that a projection repeats.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np

from spbench.projection.constants import Constant
from spbench.projection.doubts import DRAWS, Doubt, Drawing, Draws

OVERLAP = 0.7
"""Share of what kernels can hide that is hidden in the middle: kernels and copies slow each other
down, and a wait comes late by a launch."""
LOW, HIGH = 5.0, 95.0
"""Percentiles of the interval."""
SHARE = "share"
"""What a rank does besides messages, measured: it takes the place of ``MODELLED``."""
COMPUTE = ("gemm", "attention", "elementwise", SHARE)
HOST = "host"
"""What the host takes to launch kernels and collectives."""
MODELLED = (*COMPUTE[:3], HOST)
BEYOND = "beyond"
"""A factor of the whole step: what no term holds."""


@final
@dataclass(frozen=True, kw_only=True)
class Cost:
    """A projected time in seconds, its interval, and its terms."""

    step_s: float
    low_s: float
    high_s: float
    no_overlap_s: float
    full_overlap_s: float
    terms: Mapping[str, float]
    """Seconds of products, attention, elementwise, and of the host that launches them, or of the
    measured ``share`` in their place; of each collective by axis, exposed and hidden."""
    draws: Draws = field(repr=False, compare=False)
    """Seconds of each draw; in the same draw a constant is off by the same in every cost, but for
    what the launches of one strategy alone are off by."""


@final
@dataclass(frozen=True)
class Sums:
    """Seconds by term, each beside the doubt about the constant that bounds it."""

    doubts: list[Doubt] = field(default_factory=list)
    parts: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, term: str, seconds: float, doubt: Doubt) -> int:
        """Adds to a term; returns the doubt's place."""
        if doubt not in self.doubts:
            self.doubts.append(doubt)
        place = self.doubts.index(doubt)
        self.parts[term][place] = self.parts[term].get(place, 0.0) + seconds
        return place

    def measured(self, share: Constant, of: str) -> None:
        """Puts a measured share, that of a strategy, in place of the modelled terms."""
        for term in MODELLED:
            self.parts.pop(term, None)
        self.add(SHARE, share.value, Doubt.of(f"share {of}", share))

    def total(self, term: str, factors: Draws) -> Draws:
        """The term's seconds for each draw of factors (draws, doubts)."""
        return _drawn_sum(self.parts.get(term, {}).items(), factors)


@final
@dataclass(frozen=True, kw_only=True)
class Hideable:
    """Messages of a term, each with kernels behind it."""

    term: str
    place: int
    seconds: float
    behind: tuple[tuple[int, float], ...]
    """Seconds of the kernels behind one message, by the constant that bounds them."""
    times: int
    overlap: float = OVERLAP
    """Part that is hidden, in the middle, of what those kernels can hide."""
    hides: float = 1.0
    """Part of the time of kernels, and of backward, that they hide at most."""
    behind_backward: bool = False
    """Whether the rest of backward may hide it: a sum of gradients that does not leave last."""


@final
@dataclass(frozen=True, kw_only=True)
class Step:
    """A step as sums of seconds, ready to be drawn."""

    sums: Sums
    messages: Sequence[Hideable]
    backward: Mapping[int, float]
    """Seconds of backward's kernels, which can hide sums of gradients, by the constant that bounds
    them."""
    own: int
    """Place of what this strategy's launches alone are off by."""
    is_gpu: bool
    """Whether the device computes behind the host's back."""
    drawing: Drawing

    def seconds(self, factors: Draws, share: Draws | float) -> Draws:
        """Seconds for each draw of factors (draws, doubts), with this share of overlap."""
        sums = self.sums
        compute = sum((sums.total(kind, factors) for kind in COMPUTE), np.zeros(len(factors)))
        hidden = self.hidden(factors, share)
        exposed = (np.maximum(sums.total(term, factors) - s, 0.0) for term, s in hidden.items())
        busy = sum(exposed, compute)
        host = sums.total(HOST, factors)
        step = np.maximum(busy, host) if self.is_gpu else busy + host
        return step * sums.total(BEYOND, factors) * factors[:, self.own]

    def hidden(self, factors: Draws, share: Draws | float) -> dict[str, Draws]:
        """Seconds of each collective that are hidden: by kernels behind it, or as a sum of
        gradients by the rest of backward, which all such sums share."""
        hidden = {each.term: np.zeros(len(factors)) for each in self.messages}
        sums = [each for each in self.messages if each.behind_backward]
        whole = _drawn_sum([(each.place, each.seconds * each.times) for each in sums], factors)
        backward = _drawn_sum(self.backward.items(), factors)
        for each in self.messages:
            own = each.seconds * factors[:, each.place]
            beside = _drawn_sum(each.behind, factors)
            if each.behind_backward and self.backward:
                beside = backward * own / whole
            part = np.minimum(share * (each.overlap / OVERLAP), 1.0)  # of what can be hidden
            can = np.minimum(part * np.minimum(own, beside), each.hides * beside)
            hidden[each.term] += each.times * can
        return hidden

    def cost(self, repeats: float, fixed_s: float, fixed_spread: float) -> Cost:
        """The time of so many steps and a fixed time, with its interval and terms."""
        random = np.random.default_rng(0)
        drawn = np.column_stack([self.drawing.factors(doubt) for doubt in self.sums.doubts])
        shares = random.uniform(2 * OVERLAP - 1, 1.0, DRAWS)
        beside = np.exp(random.standard_normal(DRAWS) * np.log(fixed_spread) / 1.96)
        every = self.seconds(drawn, shares) * repeats + fixed_s * beside
        low, high = np.percentile(every, [LOW, HIGH])
        none, full, step = (self.middle_s(share, repeats, fixed_s) for share in (0.0, 1.0, OVERLAP))
        return Cost(
            step_s=step,
            low_s=float(low),
            high_s=float(high),
            no_overlap_s=none,
            full_overlap_s=full,
            terms=self._terms(repeats) | ({"fixed": fixed_s} if fixed_s else {}),
            draws=every,
        )

    def middle_s(self, share: float, repeats: float, fixed_s: float) -> float:
        """Seconds where no constant is off, with this share of overlap."""
        middle = np.ones((1, len(self.sums.doubts)))
        return float(self.seconds(middle, share)[0]) * repeats + fixed_s

    def _terms(self, repeats: float) -> dict[str, float]:
        middle = np.ones((1, len(self.sums.doubts)))
        terms = {
            kind: float(self.sums.total(kind, middle)[0]) * repeats
            for kind in (*COMPUTE, HOST)
            if kind != SHARE or kind in self.sums.parts
        }
        for term, hidden in self.hidden(middle, OVERLAP).items():
            whole, inside = float(self.sums.total(term, middle)[0]), float(hidden[0])
            terms[f"{term} exposed"] = (whole - inside) * repeats
            terms[f"{term} hidden"] = inside * repeats
        return terms


def _drawn_sum(parts: Iterable[tuple[int, float]], factors: Draws) -> Draws:
    """The sum of seconds, each bounded by the constant of its place, for each draw of factors."""
    zero: Draws = np.zeros(len(factors))
    return sum((seconds * factors[:, at] for at, seconds in parts), zero)
