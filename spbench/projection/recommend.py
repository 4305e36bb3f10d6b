"""Which strategy is the fastest on a cluster: by how much, how sure that is, and on what it hinges.

Strategies are compared draw by draw: a rate that is off is off for all of them. What is slower in
fewer than ``SURE`` of the draws is not told apart from the fastest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import final

import numpy as np

from spbench.analysis.compare_strategies import SURE, USABLE
from spbench.errors import Failure
from spbench.projection.cost import Mode, middle_s
from spbench.projection.hardware import Cluster
from spbench.projection.project import Projection
from spbench.projection.scaled import WHATS, scaled

STEPS, MOST_STEPS = (2**-0.5, 2**0.5), 12
"""Steps of the square root of 2 in which a flip is looked for, and their number: 1/64 to 64."""


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
    """For each kind of constant the nearest factor, up and down, at which another wins."""
    same: Mapping[str, Sequence[str]]
    """By the strategy that is kept, others that do the same work: they count once."""
    too_large: Sequence[Projection]
    """Strategies that do not fit into memory, the fastest first."""


def recommend(projected: Sequence[Projection], cluster: Cluster, mode: Mode) -> Recommendation:
    """The fastest of those that fit into a device's memory. Raises Failure where none does."""
    runs = sorted((x for x in projected if x.cost is not None), key=lambda x: x.took.step_s)
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
    found = (_flip(fit, what, step, cluster, mode) for what, step in product(WHATS, STEPS))
    ratio, low, high = _ratio(best, others[0]) if others else (None, None, None)
    return Recommendation(
        best=best,
        others=others,
        cannot=cannot,
        alike=[x.strategy for x in others if _share_of_wins(best, [x]) < SURE],
        ratio=ratio,
        ratio_low=low,
        ratio_high=high,
        sure=_share_of_wins(best, others),
        flips=[each for each in found if each is not None],
        same=same,
        too_large=[x for x in runs if (x.peak_bytes or 0) > room],
    )


def _different(runs: Sequence[Projection]) -> tuple[list[Projection], Mapping[str, Sequence[str]]]:
    """Without those whose kernels and messages are all another's, as of options that mean the same;
    and the names of these by the other's."""
    groups: dict[object, list[Projection]] = {}
    for each in runs:
        assert each.work is not None
        sent = {(m.op, m.phase, m.sent_bytes, m.behind): n for m, n in each.work.messages.items()}
        does = frozenset(each.work.kernels.items()), frozenset(sent.items()), each.work.calls
        groups.setdefault(does, []).append(each)
    same = {kept.strategy: [x.strategy for x in rest] for kept, *rest in groups.values() if rest}
    return [kept for kept, *_ in groups.values()], same


def _share_of_wins(best: Projection, others: Sequence[Projection]) -> float:
    slower = [other.took.draws > best.took.draws for other in others]
    return float(np.mean(np.all(slower, axis=0))) if slower else 1.0


def _ratio(best: Projection, other: Projection) -> tuple[float, float, float]:
    low, high = np.percentile(other.took.draws / best.took.draws, [5.0, 95.0])
    return other.took.step_s / best.took.step_s, float(low), float(high)


def _flip(
    rivals: Sequence[Projection], what: str, step: float, cluster: Cluster, mode: Mode
) -> Flip | None:
    """The factor at which another than the first wins: looked for in steps, then to a few percent;
    None where it is out of reach."""

    def winner(factor: float) -> str:
        on = scaled(cluster, what, factor)
        took_s = {x.strategy: middle_s(x.work, on, mode, x.share) for x in rivals if x.work}
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
