"""Which strategy is the fastest on a cluster: by how much, how sure that is, and on what it hinges.

Strategies are compared draw by draw: a rate that is off is off for all of them. What is slower in
fewer than ``SURE`` of the draws is not told apart from the fastest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from spbench.analysis.strategy_line import SURE, USABLE
from spbench.errors import Failure
from spbench.projection.cost import Mode, cost
from spbench.projection.hardware import Cluster
from spbench.projection.project import Projection
from spbench.projection.scaled import WHATS, scaled

FACTORS = tuple(2 ** (n / 2) for n in range(-12, 13))
"""By how much a constant may differ, when a flip is looked for: from 1/64 to 64."""
RIVALS = 5
"""The fastest, among which a flip is looked for."""


@final
@dataclass(frozen=True, kw_only=True)
class Flip:
    """Where another strategy becomes the fastest as one kind of constant changes."""

    what: str
    factor: float
    """What the constant is multiplied by."""
    strategy: str


@final
@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The fastest, and how it stands to the others."""

    best: Projection
    others: Sequence[Projection]
    """The other strategies that can run, the fastest first."""
    cannot: Sequence[Projection]
    alike: Sequence[str]
    """Those that are not told apart from the best."""
    ratio: float | None
    """Time of the next over the best's; None where there is no other."""
    ratio_low: float | None
    ratio_high: float | None
    sure: float
    """Share of draws in which the best is the fastest."""
    flips: Sequence[Flip]
    too_large: Sequence[Projection]
    """Strategies that would be faster, and do not fit into memory."""


def recommend(projected: Sequence[Projection], cluster: Cluster, mode: Mode) -> Recommendation:
    """The fastest of those that fit into a device's memory. Raises Failure where none does."""
    runs = _different([each for each in projected if each.cost is not None])
    room = USABLE * min((each.limit_bytes for each in runs), default=0.0)
    fit = sorted((x for x in runs if (x.peak_bytes or 0) <= room), key=_seconds)
    cannot = [each for each in projected if each.cost is None]
    if not fit:
        is_one = len(cannot) > len({x.why_not for x in cannot}) == 1
        every = [x.why_not if is_one else f"{x.strategy}: {x.why_not}" for x in cannot]
        why = "; ".join(every[: 1 if is_one else 3])
        needs = min((x.peak_bytes or 0 for x in runs), default=0) / 1e9
        raise Failure(
            f"no strategy fits {cluster.name}: the least needs {needs:.3g} GB of "
            f"{room / 1e9:.3g}; use more ranks or checkpointing=full"
            if runs
            else f"no strategy can run: {why}"
        )
    best, *others = fit
    wins = _share_of_wins(best, others)
    ratio = _ratio(best, others[0]) if others else (None, None, None)
    return Recommendation(
        best=best,
        others=others,
        cannot=cannot,
        alike=[x.strategy for x in others if _share_of_wins(best, [x]) < SURE],
        ratio=ratio[0],
        ratio_low=ratio[1],
        ratio_high=ratio[2],
        sure=wins,
        flips=flips(fit[:RIVALS], cluster, mode),
        too_large=[x for x in runs if x not in fit and _seconds(x) < _seconds(best)],
    )


def _different(runs: Sequence[Projection]) -> list[Projection]:
    """Without those whose kernels and messages are all another's: options that mean the same."""
    kept: list[Projection] = []
    for each in runs:
        if not any(_does_the_same(each, other) for other in kept):
            kept.append(each)
    return kept


def _does_the_same(one: Projection, other: Projection) -> bool:
    assert one.work is not None and other.work is not None
    kinds = [
        {(m.op, m.phase, m.sent_bytes, m.behind): n for m, n in x.work.messages.items()}
        for x in (one, other)
        if x.work is not None
    ]
    return one.work.kernels == other.work.kernels and kinds[0] == kinds[1]


def _seconds(each: Projection) -> float:
    assert each.cost is not None
    return each.cost.step_s


def _share_of_wins(best: Projection, others: Sequence[Projection]) -> float:
    assert best.cost is not None
    slower = [other.cost.draws > best.cost.draws for other in others if other.cost is not None]
    return float(np.mean(np.all(slower, axis=0))) if slower else 1.0


def _ratio(best: Projection, other: Projection) -> tuple[float, float, float]:
    assert best.cost is not None and other.cost is not None
    low, high = np.percentile(other.cost.draws / best.cost.draws, [5.0, 95.0])
    return _seconds(other) / _seconds(best), float(low), float(high)


def flips(rivals: Sequence[Projection], cluster: Cluster, mode: Mode) -> list[Flip]:
    """For each kind of constant the nearest factor, up and down, at which another rival wins."""
    found = []
    for what in WHATS:
        up = [factor for factor in FACTORS if factor > 1]
        down = [factor for factor in reversed(FACTORS) if factor < 1]
        for factors in (down, up):
            flip = _first_flip(what, factors, rivals, cluster, mode)
            if flip is not None:
                found.append(flip)
    return found


def _first_flip(
    what: str,
    factors: Sequence[float],
    rivals: Sequence[Projection],
    cluster: Cluster,
    mode: Mode,
) -> Flip | None:
    before = 1.0
    for factor in factors:
        winner = _winner(rivals, scaled(cluster, what, factor), mode)
        if winner != rivals[0].strategy:
            return _narrowed(what, before, factor, rivals, cluster, mode)
        before = factor
    return None


def _narrowed(
    what: str,
    near: float,
    far: float,
    rivals: Sequence[Projection],
    cluster: Cluster,
    mode: Mode,
) -> Flip:
    """The factor between the two, to a few percent."""
    winner = ""
    for _ in range(4):
        middle = (near * far) ** 0.5
        winner = _winner(rivals, scaled(cluster, what, middle), mode)
        near, far = (middle, far) if winner == rivals[0].strategy else (near, middle)
    return Flip(what=what, factor=far, strategy=_winner(rivals, scaled(cluster, what, far), mode))


def _winner(rivals: Sequence[Projection], cluster: Cluster, mode: Mode) -> str:
    times = {
        each.strategy: cost(each.work, cluster, mode, each.share).step_s
        for each in rivals
        if each.work
    }
    return min(times, key=lambda name: times[name])
