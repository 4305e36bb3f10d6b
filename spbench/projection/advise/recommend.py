"""Which strategy is the fastest on a cluster: by how much, how sure that is, and on what it hinges.

Strategies are compared draw by draw: a rate that is off is off for all of them. What is slower in
fewer than nine in ten of the draws (``SURE``, the same for all that is projected) is not told apart
from the fastest: as good, as far as is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, final

import numpy as np

from spbench.errors import Failure
from spbench.projection.advise.candidates import COMPILED, decisive_command, what_would_decide
from spbench.projection.advise.project import Projection
from spbench.projection.costmodel.hardware import Cluster
from spbench.projection.costmodel.sensitivity import WHATS, scaled
from spbench.projection.costmodel.step_time import COMPUTE, HOST, Mode, Prices, middle_s
from spbench.report import tables, units
from spbench.report.fit_width import Grid, fewer
from spbench.report.projection_table import memory, span
from spbench.results.record import SURE, USABLE
from spbench.text import counted, listed

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
    prices = Prices()
    found = (_flip(fit, what, step, cluster, mode, prices) for what, step in product(WHATS, STEPS))
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
    rivals: Sequence[Projection],
    what: str,
    step: float,
    cluster: Cluster,
    mode: Mode,
    prices: Prices,
) -> Flip | None:
    """The factor at which another than the first wins: looked for in steps, then to a few percent;
    None where it is out of reach."""

    def winner(factor: float) -> str:
        on = scaled(cluster, what, factor)
        took_s = {x.strategy: middle_s(x.work, on, mode, x.share, prices) for x in rivals if x.work}
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


# A recommendation in sentences, a table, and as data.

COLUMNS = ("strategy", "step ms", "90 % interval", "slower", "exposed ms", "host ms", "memory GB")
SPARE = ("host ms", "memory GB", "exposed ms")
"""Columns left out where not all fit, in this order."""
SHOWN = 10
"""Rows of the table, or more where more are not told apart."""


def show_advice(advice: Recommendation, asked: Sequence[str]) -> None:
    """Prints the answer, the fastest strategies, and what the answer hinges on. ``asked``: the
    words that name the workload to ``spbench run``; None: the models are compiled."""
    out = tables.console()
    tables.say(out, answer(advice), advice.best.title)
    rows = [_row(each, advice.best) for each in (advice.best, *advice.others)]
    alike = (row for row, each in enumerate(advice.others, 2) if each.strategy in advice.alike)
    shown = max([SHOWN, *alike])
    tables.show_fitting(out, fewer(Grid(columns=COLUMNS, rows=rows[:shown]), SPARE))
    if len(rows) > shown:
        tables.say(out, f"{counted(len(rows) - shown, 'slower one')} left out: --json has all")
    tables.say(out, *remarks(advice, asked))


def answer(advice: Recommendation) -> str:
    """One sentence: which strategy, how much faster than the next, and how sure that is. Where
    others are not told apart from it, it begins with that."""
    best = advice.best
    where = f"{best.workload.name} on {counted(best.ranks, 'rank')} of {best.cluster.name}"
    took = f"{units.milliseconds(1e3 * best.took.step_s)} ms a step, projected"
    if not advice.others:
        names = [best.strategy, *advice.same.get(best.strategy, [])]
        only = "is the only strategy" if len(names) == 1 else "do the same work, the only ones"
        within = ", and fits into its memory" if advice.too_large else ""
        return f"{listed(names)} {only} that can be projected for {where}{within}: {took}"
    fastest = f"{best.strategy} is the fastest for {where}: {took}"
    if advice.alike:
        fastest = (
            f"no strategy is shown to be the fastest for {where}: {best.strategy} has the lowest "
            f"time, {took}, and {counted(len(advice.alike), 'other')} may be as fast"
        )
    return (
        f"{fastest}; {advice.others[0].strategy} takes {advice.ratio:.2f}x as long "
        f"({advice.ratio_low:.2f} to {advice.ratio_high:.2f}); {best.strategy} is the fastest in "
        f"{units.percent(advice.sure)} of draws of what the cluster's constants may be"
    )


def remarks(advice: Recommendation, asked: Sequence[str]) -> Iterator[str]:
    """What is not told apart, where the answer flips, and what would decide."""
    if advice.alike:
        yield (
            f"not told apart from {advice.best.strategy} (slower in fewer than "
            f"{units.percent(SURE)} of draws): {', '.join(advice.alike)}"
        )
    for flip in advice.flips:
        yield f"{flip.strategy} would be the fastest at {flip.factor:.2g}x {WHATS[flip.what]}"
    terms_s = advice.best.took.terms
    busy_s = sum(terms_s[term] for term in terms_s if term in COMPUTE or term.endswith(" exposed"))
    if advice.best.cluster.device.kind == "gpu" and terms_s.get(HOST, 0.0) > busy_s:
        also = "" if COMPILED in asked else f" or {COMPILED}"
        yield (
            f"the host decides: to issue the operations of {advice.best.strategy} takes it longer "
            f"than a GPU needs for them; a larger batch{also} "
            "would change that"
        )
    for kept, same in advice.same.items():
        yield f"{listed([kept, *same])} do the same work, which counts once"
    for each in advice.too_large:
        is_faster = each.took.step_s < advice.best.took.step_s
        yield (
            f"{each.strategy} {'would be faster, and ' * is_faster}does not fit: it holds "
            f"{(each.peak_bytes or 0) / 1e9:.1f} of {each.limit_bytes / 1e9:.0f} GB a rank"
        )
    for each in advice.cannot:
        yield f"{each.strategy} cannot run: {each.why_not}"
    if advice.alike:
        best, names, open_ = advice.best, rivals(advice), 1 + len(advice.alike)
        decides = what_would_decide(names, best.ranks, best.cluster, asked)
        yield decides + (len(names) < open_) * f"; these are {len(names)} of the {open_}"


def as_data(advice: Recommendation, asked: Sequence[str]) -> dict[str, Any]:
    """The recommendation for ``--json``; times in seconds. ``asked``: as ``show_advice`` has it."""
    best = advice.best
    command = decisive_command(rivals(advice), best.ranks, best.cluster, asked)
    return {
        "kind": "projected",
        "workload": best.workload.name,
        "cluster": best.cluster.name,
        "ranks": best.ranks,
        "answer": answer(advice),
        "best": best.strategy,
        **{name: getattr(advice, name) for name in ("sure", "ratio", "ratio_low", "ratio_high")},
        "alike": list(advice.alike),
        "decides": command if advice.alike else None,
        "flips": [asdict(each) for each in advice.flips],
        "projected": [_data(each) for each in (best, *advice.others)],
        "same_work": {kept: list(same) for kept, same in advice.same.items()},
        "too_large": [_data(each) for each in advice.too_large],
        "cannot": {each.strategy: each.why_not for each in advice.cannot},
    }


def _data(each: Projection) -> dict[str, Any]:
    times = {name: getattr(each.took, name) for name in ("step_s", "low_s", "high_s")}
    more = {"terms_s": dict(each.took.terms), "peak_bytes": each.peak_bytes}
    return {"strategy": each.strategy, **times, **more}


def _row(each: Projection, best: Projection) -> list[str]:
    row = each.data
    exposed_ms = sum(ms for term, ms in row["terms_ms"].items() if term.endswith(" exposed"))
    return [
        each.strategy,
        units.milliseconds(row["step_ms"]),
        span(row["step_ms_low"], row["step_ms_high"]),
        units.ratio(each.took.step_s / best.took.step_s),
        units.milliseconds(exposed_ms),
        units.milliseconds(row["terms_ms"]["host"]),
        memory(row),
    ]


def rivals(advice: Recommendation, most: int = 3) -> Sequence[str]:
    """The fastest and those that are not told apart from it: first the next, then those that would
    be the fastest at the least change of a constant, then the faster ones."""
    flips = sorted(advice.flips, key=lambda flip: abs(math.log(flip.factor)))
    near = (flip.strategy for flip in flips if flip.strategy in advice.alike)
    return [*dict.fromkeys([advice.best.strategy, *advice.alike[:1], *near, *advice.alike])][:most]
