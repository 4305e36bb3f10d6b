"""The largest batch, or the longest axis, of which a step fits into a rank's memory.

Peak memory is asked for size by size: of a dry run, or of ranks that try. It grows with size, and
nearly as a polynomial, so that a line through the two nearest sizes finds the limit in a few tries.
The answer was tried, and so was the next size, which does not fit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

MOST = 2**24
"""Sizes beyond are not asked for: their indices would not fit into 32 bits."""
FIRST_TRIES = 64
"""Steps of the smallest size, at most, that may not run before one does."""
LEAP = 16
"""The largest ratio of one try to the one before it, while everything fits."""


@final
@dataclass(frozen=True, kw_only=True)
class Peak:
    """A step of one size: the bytes of its busiest rank; None, and why not, where none can run."""

    held_bytes: int | None
    why_not: str = ""
    is_starved: bool = False
    """Whether it ran out of memory, so that its bytes are not known."""
    is_end: bool = False
    """Whether no larger size can run either."""


@final
@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What a strategy holds on some ranks within a budget."""

    strategy: str
    ranks: int
    grows: str
    """``batch``, or the name of an axis."""
    largest: int | None
    """None: not even the smallest fits, or it cannot run at all."""
    peak_bytes: int | None
    """At the largest size; of the smallest one where that does not fit."""
    next_bytes: int | None
    """At the next size, which does not fit; None where sizes end before memory does."""
    why_not: str = ""
    """Why it is no larger: blank where the next size, or the smallest, does not fit."""
    tries: int = 0
    """Sizes that were asked for."""


PeakOf = Callable[[int], Peak]


def capacity_of(peak_of: PeakOf, budget_bytes: float, *, step: int, **asked: Any) -> Capacity:
    """The largest multiple of ``step`` that runs and fits, by tries of ``peak_of``; ``asked``: of
    which strategy, ranks and size."""
    search = _Search(peak_of, budget_bytes, step)
    largest, at, why_not = search.run()
    after = None if largest is None else search.tried.get(largest + step)
    return Capacity(
        **asked,
        largest=largest,
        peak_bytes=at.held_bytes,
        next_bytes=None if after is None else after.held_bytes,
        why_not=why_not,
        tries=len(search.tried),
    )


@final
class _Search:
    """Brackets the limit from below and above, and narrows the bracket."""

    def __init__(self, peak_of: PeakOf, budget_bytes: float, step: int) -> None:
        self._peak_of, self._budget, self._step = peak_of, budget_bytes, step
        self.tried: dict[int, Peak] = {}

    def run(self) -> tuple[int | None, Peak, str]:
        """The largest size that fits, its peak, and why it is no larger where memory is not why."""
        low = self._first()
        if low is None:
            last = self.tried[max(self.tried)]
            why = last if last.is_end else self.tried[self._step]
            return None, last, "" if last.is_starved else why.why_not
        if not self._fits(low):
            return None, self.tried[low], ""
        high = self._above(low)
        low = max(size for size in self.tried if self._fits(size) and size < high)
        while high - low > self._step:
            size = self._between(low, high)
            low, high = (size, high) if self._fits(size) else (low, size)
        return low, self.tried[low], self.tried[high].why_not

    def _first(self) -> int | None:
        """The smallest size that can run; None where none of the first can, or memory ends."""
        for n in range(1, FIRST_TRIES + 1):
            peak = self._try(self._step * n)
            if peak.held_bytes is not None:
                return self._step * n
            if peak.is_starved or peak.is_end:
                return None
        return None

    def _above(self, low: int) -> int:
        """A size that does not fit, or that cannot run."""
        size, last = low, MOST // self._step * self._step
        while self._fits(size):
            size = min(self._guess(low, size), last if size < last else last + self._step)
        return size

    def _guess(self, low: int, size: int) -> int:
        """Where a line through two sizes that fit reaches the budget, and a little further."""
        known = sorted(each for each in self.tried if low <= each <= size and self._fits(each))
        if len(known) < 2:
            return 2 * size
        limit = self._crossing(*known[-2:])
        return self._rounded(min(LEAP * size, max(size + self._step, limit + self._step)))

    def _between(self, low: int, high: int) -> int:
        """A size inside the bracket: on the line where both peaks are known, else the middle. The
        line is not trusted twice for the same end: every second try is the middle."""
        middle = self._rounded((low + high) / 2)
        is_known = self.tried[high].held_bytes is not None
        size = self._rounded(self._crossing(low, high)) if is_known else middle
        if len(self.tried) % 3 == 0:
            size = middle
        return min(high - self._step, max(low + self._step, size))

    def _crossing(self, low: int, high: int) -> float:
        held, more = (float(self.tried[size].held_bytes or 0) for size in (low, high))
        if more <= held:
            return float(LEAP * high)
        return low + (self._budget - held) * (high - low) / (more - held)

    def _rounded(self, size: float) -> int:
        return max(self._step, int(size // self._step) * self._step)

    def _fits(self, size: int) -> bool:
        held = self._try(size).held_bytes
        return held is not None and held <= self._budget

    def _try(self, size: int) -> Peak:
        if size not in self.tried:
            end = Peak(held_bytes=None, why_not=f"sizes end at {MOST:,}")
            self.tried[size] = end if size > MOST else self._peak_of(size)
        return self.tried[size]
