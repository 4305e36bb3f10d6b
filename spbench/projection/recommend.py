"""Which strategy is the fastest on a cluster: by how much, how sure that is, and on what it hinges.

Strategies are compared draw by draw: a rate that is off is off for all of them. What is slower in
fewer than ``SURE`` of the draws is not told apart from the fastest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from spbench.analysis.strategy_line import SURE, USABLE
from spbench.errors import Failure
from spbench.projection.cost import Mode, middle_s
from spbench.projection.hardware import Cluster
from spbench.projection.project import Projection
from spbench.projection.scaled import WHATS, scaled

MOST_STEPS = 12
"""Steps of the square root of 2, up and down, in which a flip is looked for: from 1/64 to 64."""


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
    same: Mapping[str, Sequence[str]]
    """By the strategy that is kept, others that do the same work: they count once."""
    too_large: Sequence[Projection]
    """Strategies that do not fit into memory, the fastest first."""


def recommend(projected: Sequence[Projection], cluster: Cluster, mode: Mode) -> Recommendation:
    """The fastest of those that fit into a device's memory. Raises Failure where none does."""
    runs = sorted((each for each in projected if each.cost is not None), key=_seconds)
    room = USABLE * min((each.limit_bytes for each in runs), default=0.0)
    fit, same = _different([x for x in runs if (x.peak_bytes or 0) <= room])
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
        flips=flips(fit, cluster, mode),
        same=same,
        too_large=[x for x in runs if (x.peak_bytes or 0) > room],
    )


def _different(runs: Sequence[Projection]) -> tuple[list[Projection], Mapping[str, Sequence[str]]]:
    """Without those whose kernels and messages are all another's, as of options that mean the same;
    and the names of these by the other's."""
    kept: list[Projection] = []
    same: dict[str, list[str]] = {}
    for each in runs:
        other = next((other for other in kept if _does_the_same(each, other)), None)
        if other is None:
            kept.append(each)
        else:
            same.setdefault(other.strategy, []).append(each.strategy)
    return kept, same


def _does_the_same(one: Projection, other: Projection) -> bool:
    works = [each.work for each in (one, other) if each.work is not None]
    sent = [
        {(m.op, m.phase, m.sent_bytes, m.behind): n for m, n in work.messages.items()}
        for work in works
    ]
    return works[0].kernels == works[1].kernels and sent[0] == sent[1]


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
    every = (
        _flip(rivals, what, step, cluster, mode) for what in WHATS for step in (2**-0.5, 2**0.5)
    )
    return [each for each in every if each is not None]


def _flip(
    rivals: Sequence[Projection], what: str, step: float, cluster: Cluster, mode: Mode
) -> Flip | None:
    """The factor at which another than the first wins: looked for in steps, then to a few percent;
    None where it is out of reach."""
    runs = [(each, each.work) for each in rivals if each.work is not None]

    def winner(factor: float) -> str:
        on = scaled(cluster, what, factor)
        took_s = {each.strategy: middle_s(work, on, mode, each.share) for each, work in runs}
        return min(took_s, key=lambda name: took_s[name])

    best = rivals[0].strategy
    for n in range(1, MOST_STEPS + 1):
        far = step**n
        if (other := winner(far)) != best:
            break
    else:
        return None
    near = far / step
    for _ in range(4):
        middle = (near * far) ** 0.5
        if (wins := winner(middle)) == best:
            near = middle
        else:
            far, other = middle, wins
    return Flip(what=what, factor=far, strategy=other)
