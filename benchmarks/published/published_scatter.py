"""The own scatter of strategies: how far projected ratios between them are off, and what is shared.

Of each case the logarithm of projected over published time; what all cases of a cell are off by in
common is their mean, and drops out of every ratio. The rest is what a strategy alone is off by. A
cell of n cases has n - 1 of them free, as its mean is taken from them: squares are divided by that.

Each group, a point of a source, has one variance of all its cells, and weighs the same: a figure of
eight sizes is one engine on one machine. No group counts with more than ``MOST_TIMES`` the spread
of the median group: one driver whose own variants differ threefold, or one doubtful number, would
be half of the sum. Not less than that, and no median: what is left of the factor must hold 95 of
100 cases of groups that it has not seen, and even without a limit it holds 90 to 92.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import mean, median
from typing import Self, final

from spbench.projection.costmodel.scatter import figures, kind_of

FEWEST = 3
"""Groups of a class below which it has the widest scatter of all classes."""
MOST_TIMES = 3.0
"""Times the standard deviation of the median group with which a group counts at most."""
WITHIN = 1.96
"""Standard deviations that hold 95 of 100."""
CellErrors = Sequence[tuple[str, float]]
"""Of each modelled case of a cell: the strategy's name, the logarithm of projected over
published."""


@final
@dataclass(frozen=True, kw_only=True)
class Scatter:
    """Variances of groups by class of machine."""

    variances: Mapping[str, Mapping[int, float]]
    """By a class's name, then by the number of a group."""

    @classmethod
    def of(cls, errors: Iterable[tuple[int, str, CellErrors]]) -> Self:
        """From cells, each with the number of its group and the name of its class."""
        cells: dict[str, dict[int, list[CellErrors]]] = {}
        for number, name, cell in errors:
            if len(cell) > 1:
                cells.setdefault(name, {}).setdefault(number, []).append(cell)
        return cls(
            variances={
                name: {number: variance(own) for number, own in of_class.items()}
                for name, of_class in cells.items()
            }
        )

    def factor(self, name: str, ranks: int, without: int | None = None) -> float:
        """The factor that holds 95 of 100, of all groups but one.

        Parameters
        ----------
        name
            The class of machines whose groups count. Where fewer than ``FEWEST`` are left, the
            widest of all classes; where none has so many, what the package carries, which then is
            of other points.
        ranks
            GPUs that are asked about: the package knows up to how many it holds.
        without
            The number of the group that is left out.
        """
        factors = {
            each: _factor([own for group, own in of_class.items() if group != without])
            for each, of_class in self.variances.items()
            if sum(group != without for group in of_class) >= FEWEST
        }
        if not factors:
            return figures().scatter(name, ranks)
        return factors.get(name, max(factors.values()))


def held(errors: Iterable[tuple[int, CellErrors]], scatter: Scatter, name: str) -> float | None:
    """The share of cases of one class of machines that the factor of the other groups holds, each
    group weighing the same: 0.95 would be as claimed. ``errors``: of cells, each with its group."""
    by_group: dict[int, list[float]] = {}
    for number, cell in errors:
        if len(cell) < 2:
            continue
        most = math.log(scatter.factor(name, 1, without=number))
        middle, n = mean(error for _, error in cell), len(cell)
        # A case is nearer to the mean of its n cases than to the true one, by sqrt((n - 1) / n).
        off = [abs(error - middle) * math.sqrt(n / (n - 1)) for _, error in cell]
        by_group.setdefault(number, []).extend(float(each <= most) for each in off)
    return mean(mean(cases) for cases in by_group.values()) if by_group else None


def _factor(variances: Sequence[float]) -> float:
    """The factor up and down of groups that weigh the same."""
    most = MOST_TIMES**2 * median(variances)
    return math.exp(WITHIN * math.sqrt(mean(min(each, most) for each in variances)))


def variance(cells: Iterable[CellErrors]) -> float:
    """The variance of cases around the mean of their cell, of cells that have two or more."""
    squares, free = 0.0, 0
    for cell in cells:
        errors = [error for _, error in cell]
        squares += sum((error - mean(errors)) ** 2 for error in errors)
        free += len(errors) - 1
    return squares / free


def errors_of(cases: Iterable[tuple[str, float | None, float | None]]) -> CellErrors:
    """Names and errors of the cases of a cell whose published and projected seconds are known."""
    return [
        (name, math.log(projected_s / published_s))
        for name, published_s, projected_s in cases
        if published_s is not None and projected_s is not None
    ]


def shared_part(groups: Iterable[Iterable[CellErrors]]) -> float | None:
    """The part of that variance which variants of one strategy have in common: 1 less what their
    ratios are off by over what ratios of two strategies are, in groups that have both."""
    variants, strategies = list[float](), list[float]()
    for cells in groups:
        by_kind: dict[bool, list[float]] = {True: [], False: []}
        for cell in cells:
            for (one, error), (other, beside) in combinations(cell, 2):
                by_kind[kind_of(one) == kind_of(other)].append((error - beside) ** 2)
        if all(by_kind.values()):
            variants.append(mean(by_kind[True]))
            strategies.append(mean(by_kind[False]))
    return 1 - mean(variants) / mean(strategies) if strategies and mean(strategies) else None
