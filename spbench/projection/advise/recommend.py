"""Which strategy is the fastest on a cluster: by how much, how sure that is, and on what it hinges.

Strategies are compared draw by draw: a rate that is off is off for all of them, and what each alone
is off by is drawn as wide as published measurements show. The fastest is named if it is that in
nine of ten draws (``SURE``, the same for all that is projected), against all others together; else
those that keep it from that are not told apart from it: as good, as far as is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from spbench.errors import Failure
from spbench.projection.advise.candidates import COMPILED, decisive_command, what_would_decide
from spbench.projection.advise.measurements import (
    Measurement,
    measured_data,
    measurements,
    what_changes,
    what_decides,
)
from spbench.projection.advise.project import Projection
from spbench.projection.advise.published import (
    comparison,
    comparison_text,
    not_told_apart,
    share_of_wins,
)
from spbench.projection.advise.search import Searched
from spbench.projection.costmodel.hardware import Cluster
from spbench.projection.costmodel.step_time import COMPUTE, HOST, Mode
from spbench.report import tables, units
from spbench.report.fit_width import Grid, fewer
from spbench.report.projection_table import memory, span
from spbench.results.record import SURE, USABLE
from spbench.text import counted, listed
from spbench.workload.mesh import CaseMesh


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
    measurements: Sequence[Measurement]
    """What would make another the fastest, the most telling first."""
    same: Mapping[str, Sequence[str]]
    """By the strategy that is kept, others that do the same work: they count once."""
    too_large: Sequence[Projection]
    """Strategies that do not fit into memory, the fastest first."""
    searched: Searched | None = None
    """The search among meshes, and what ranks share out and compute again; None: there was none."""


def recommend(
    projected: Sequence[Projection], cluster: Cluster, mode: Mode, searched: Searched | None = None
) -> Recommendation:
    """The fastest of those that fit into a device's memory; of a strategy in a mesh the fastest
    form. Raises Failure where none fits."""
    runs = sorted((x for x in projected if x.cost is not None), key=lambda x: x.took.step_s)
    room = USABLE * min((each.limit_bytes for each in runs), default=0.0)
    fitting = _first_of_each(x for x in runs if (x.peak_bytes or 0) <= room)
    fit, same = _different(fitting)
    cannot = [each for each in projected if each.cost is None]
    if not fit:
        raise Failure(_why_none(runs, cannot, cluster, searched))
    best, *others = fit
    ratio, low, high = _ratio(best, others[0]) if others else (None, None, None)
    return Recommendation(
        best=best,
        others=others,
        cannot=cannot,
        alike=not_told_apart(best, others),
        ratio=ratio,
        ratio_low=low,
        ratio_high=high,
        sure=share_of_wins(best, others),
        measurements=measurements(fit, cluster, mode),
        same=same,
        too_large=_too_large(runs, fitting, room),
        searched=searched,
    )


def _first_of_each(runs: Iterable[Projection]) -> list[Projection]:
    """The first of each strategy in its mesh."""
    first: dict[str, Projection] = {}
    for each in runs:
        first.setdefault(each.strategy, each)
    return [*first.values()]


def _too_large(
    runs: Sequence[Projection], fitting: Sequence[Projection], room: float
) -> list[Projection]:
    """The first of each strategy that holds too much in every form that ran, or would be the
    fastest of all."""
    fit = {each.strategy for each in fitting}
    large = _first_of_each(x for x in runs if (x.peak_bytes or 0) > room)
    best_s = fitting[0].took.step_s
    return [x for x in large if x.strategy not in fit or x.took.step_s < best_s]


def _why_none(
    runs: Sequence[Projection],
    cannot: Sequence[Projection],
    cluster: Cluster,
    searched: Searched | None,
) -> str:
    held = [x.peak_bytes or 0 for x in runs] + ([searched.least_bytes] if searched else [])
    if needs := min(filter(None, held), default=0.0):
        ranks = searched.ranks if searched else runs[0].ranks
        room = USABLE * cluster.used_by(ranks).device.memory_gb.value
        again = "" if searched else " or checkpointing=full"
        return (
            f"no strategy fits {cluster.name}: the least needs {needs / 1e9:.3g} GB of {room:.3g}; "
            f"use more ranks{again}"
        )
    is_one = len(cannot) > len({x.why_not for x in cannot}) == 1
    every = [x.why_not if is_one else f"{x.strategy}: {x.why_not}" for x in cannot]
    return f"no strategy can run: {'; '.join(every[: 1 if is_one else 3])}"


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


def _ratio(best: Projection, other: Projection) -> tuple[float, float, float]:
    low, high = np.percentile(other.took.draws / best.took.draws, [5.0, 95.0])
    return other.took.step_s / best.took.step_s, float(low), float(high)


# A recommendation in sentences, a table, and as data.

COLUMNS = (
    *("strategy", "zero", "checkpointing", "step ms", "90 % interval", "slower", "samples/s"),
    *("exposed ms", "host ms", "memory GB"),
)
SPARE = ("host ms", "exposed ms", "samples/s", "memory GB")
"""Columns left out where not all fit, in this order."""
SHARED = ("zero", "checkpointing")
"""Columns left out where all rows have the same."""
SHOWN = 10
"""Rows of the table, or more where more are not told apart."""
NAMED = 3
"""Groups of strategies that do the same which have a line each."""


def show_advice(advice: Recommendation, asked: Sequence[str]) -> None:
    """Prints the answer, the fastest strategies, and what the answer hinges on. ``asked``: the
    words that name the workload to ``spbench run``; None: the models are compiled."""
    out = tables.console()
    about = filter(None, (*how_sure(advice), comparison_text(advice.best)))
    tables.say(out, answer(advice), *about, title(advice))
    rows = [plan_row(each, advice.best) for each in (advice.best, *advice.others)]
    alike = (row for row, each in enumerate(advice.others, 2) if each.strategy in advice.alike)
    shown = max([SHOWN, *alike])
    tables.show_fitting(out, fewer(plan_table(COLUMNS, rows[:shown]), SPARE))
    if len(rows) > shown:
        tables.say(out, f"{counted(len(rows) - shown, 'slower one')} left out: --json has all")
    tables.say(out, *remarks(advice, asked))


def answer(advice: Recommendation) -> str:
    """One sentence of 35 words at most: which strategy, for what, and its time. Where others are
    not told apart from it, it begins with that."""
    best, name = advice.best, plan_name(advice)
    # Settings of --set stand behind a workload's name; the line above the table has them.
    where = (
        f"{best.workload.name.split()[0]} on {counted(best.ranks, 'rank')} of {best.cluster.name}"
    )
    took = f"{units.milliseconds(1e3 * best.took.step_s)} ms a step, projected"
    if advice.alike:
        none = f"no strategy is shown to be the fastest for {where}"
        return f"{none}: {name} has the lowest time, {took}"
    if advice.others:
        return f"{name} is the fastest for {where}: {took}"
    is_fit = bool(advice.too_large)
    if others := len(advice.same.get(best.strategy, ())):
        what = "fit into memory" if is_fit else "can be projected"
        alone = f"and {counted(others, 'other')} of the same work are all that {what}"
    else:
        what = "fits into memory" if is_fit else "can be projected"
        alone = f"is the only strategy that {what}"
    return f"{name} {alone} for {where}: {took}"


def how_sure(advice: Recommendation) -> Iterator[str]:
    """A sentence on the next strategy, and on how often the best is the fastest."""
    if advice.others:
        yield (
            f"{advice.others[0].strategy} takes {advice.ratio:.2f}x as long "
            f"({advice.ratio_low:.2f} to {advice.ratio_high:.2f}); {advice.best.strategy} is the "
            f"fastest in {units.percent(advice.sure)} of draws of what the cluster's constants may "
            "be"
        )


def title(advice: Recommendation) -> str:
    """The line above the table, without what its rows say."""
    best = advice.best
    if advice.searched is None:
        return best.title
    plain = best.workload.model_copy(update={"checkpointing": "none"})
    return replace(best, workload=plain).title


def plan_name(advice: Recommendation, each: Projection | None = None) -> str:
    """The fastest, or another, with what was searched for beside its strategy and mesh."""
    named = each or advice.best
    if advice.searched is None or named.workload.mode != "train":
        return named.strategy
    return f"{named.strategy} ({', '.join(f'{x} {getattr(named.workload, x)}' for x in SHARED)})"


def remarks(advice: Recommendation, asked: Sequence[str]) -> Iterator[str]:
    """What is not told apart, which measurement would change that, and which run would decide."""
    if advice.alike:
        yield (
            f"not told apart from {advice.best.strategy} (faster in more than "
            f"{units.percent(1 - SURE)} of draws, each or together): {', '.join(advice.alike)}"
        )
    yield from which_measurement(advice, asked)
    terms_s = advice.best.took.terms
    busy_s = sum(terms_s[term] for term in terms_s if term in COMPUTE or term.endswith(" exposed"))
    if advice.best.cluster.device.kind == "gpu" and terms_s.get(HOST, 0.0) > busy_s:
        also = "" if COMPILED in asked else f" or {COMPILED}"
        yield (
            f"the host decides: to issue the operations of {advice.best.strategy} takes it longer "
            f"than a GPU needs for them; a larger batch{also} "
            "would change that"
        )
    for kept, same in [*advice.same.items()][:NAMED]:
        yield f"{listed([kept, *same])} do the same work, which counts once"
    for each in advice.too_large:
        is_faster = each.took.step_s < advice.best.took.step_s
        if advice.searched and (not is_faster or each is not advice.too_large[0]):
            continue  # the search counts them
        yield (
            f"{plan_name(advice, each)} {'would be faster, and ' * is_faster}does not fit: it "
            f"holds {(each.peak_bytes or 0) / 1e9:.1f} of {each.limit_bytes / 1e9:.0f} GB a rank"
        )
    if advice.searched:
        yield from left_out(advice.searched, advice.best)
    for each in advice.cannot:
        yield f"{each.strategy} cannot run: {each.why_not}"
    yield from which_run(advice, asked)


def which_measurement(advice: Recommendation, asked: Sequence[str]) -> Iterator[str]:
    """The measurement that would decide, or that would change an answer that is not open."""
    if advice.alike:
        yield from what_decides(advice.measurements, asked)
    elif advice.others:
        yield from what_changes(advice.measurements, asked)


def which_run(advice: Recommendation, asked: Sequence[str]) -> Iterator[str]:
    """The run that would decide between those that are not told apart."""
    if not advice.alike:
        return
    best, names, open_ = advice.best, rivals(advice), 1 + len(advice.alike)
    settings = settings_of(advice)
    decides = what_would_decide(names, best.ranks, best.cluster, asked, settings)
    few = f"; these are {len(names)} of the {open_}" if len(names) < open_ else ""
    differ = len({tuple(settings.get(name, ())) for name in names}) > 1
    apart = "; compare shows a table for each zero and checkpointing: hold steps side by side"
    yield f"{decides}{few}{apart if differ else ''}"


def left_out(searched: Searched, best: Projection) -> Iterator[str]:
    """What the search did not run, and why."""
    if searched.too_large:
        room, limit = (f"{x * best.limit_bytes / 1e9:.3g}" for x in (USABLE, 1))
        holds = "holds" if searched.too_large == 1 else "hold"
        yield (
            f"{counted(searched.too_large, 'plan')} {holds} more than {room} of {limit} GB a rank, "
            "whatever ranks share out and compute again"
            if best.workload.mode == "train"
            else f"{counted(searched.too_large, 'plan')} {holds} more than {room} of {limit} GB"
        )
    none_with = ""
    if axes := searched.axes_apart:
        none_with = f"; none with {' or '.join(axes)} ran, which --fixed {axes[0]}=2 asks for"
    if searched.slower and searched.at_least < 1:
        yield (
            f"{counted(searched.slower, 'plan')} did not run, after the {len(searched.projected)} "
            f"most promising; --fixed or --strategy narrows the search{none_with}"
        )
    elif searched.slower:
        yield (
            f"{counted(searched.slower, 'plan')} did not run: by what is computed and sent, each "
            f"takes at least {searched.at_least:.2f} times as long as {best.strategy}{none_with}"
        )


def settings_of(advice: Recommendation) -> dict[str, list[str]]:
    """By a strategy with its mesh, in what its workload differs from the one that was asked for."""
    if advice.searched is None:
        return {}
    asked = advice.searched.workload
    return {
        each.strategy: [
            f"{name}={getattr(each.workload, name)}"
            for name in SHARED
            if getattr(each.workload, name) != getattr(asked, name)
        ]
        for each in (advice.best, *advice.others)
    }


def as_data(advice: Recommendation, asked: Sequence[str]) -> dict[str, Any]:
    """The recommendation for ``--json``; times in seconds. ``asked``: as ``show_advice`` has it."""
    best = advice.best
    command = decisive_command(rivals(advice), best.ranks, best.cluster, asked, settings_of(advice))
    return {
        "kind": "projected",
        "workload": best.workload.name,
        "cluster": best.cluster.name,
        "ranks": best.ranks,
        "answer": answer(advice),
        "best": best.strategy,
        "plan": _plan(best),
        **{name: getattr(advice, name) for name in ("sure", "ratio", "ratio_low", "ratio_high")},
        "alike": list(advice.alike),
        "published": comparison(best),
        "decides": command if advice.alike else None,
        "measurements": measured_data(advice.measurements, asked),
        "projected": [_data(each) for each in (best, *advice.others)],
        "same_work": {kept: list(same) for kept, same in advice.same.items()},
        "too_large": [_data(each) for each in advice.too_large],
        "cannot": {each.strategy: each.why_not for each in advice.cannot},
    }


def _data(each: Projection) -> dict[str, Any]:
    times = {name: getattr(each.took, name) for name in ("step_s", "low_s", "high_s")}
    more = {"terms_s": dict(each.took.terms), "peak_bytes": each.peak_bytes}
    samples = {"samples_per_s": each.data["samples_per_s"]}
    return {"strategy": each.strategy, **_plan(each), **times, **samples, **more}


def _plan(each: Projection) -> dict[str, Any]:
    """What a run of it is given beside the workload."""
    strategy, mesh = CaseMesh.split(each.strategy)
    of_training = {name: getattr(each.workload, name) for name in SHARED}
    return {"strategy": each.strategy, "name": strategy, "mesh": dict(mesh.axes), **of_training}


def plan_row(each: Projection, best: Projection) -> list[str]:
    row = each.data
    exposed_ms = sum(ms for term, ms in row["terms_ms"].items() if term.endswith(" exposed"))
    return [
        each.strategy,
        *(str(getattr(each.workload, name)) for name in SHARED),
        units.milliseconds(row["step_ms"]),
        span(row["step_ms_low"], row["step_ms_high"]),
        units.ratio(each.took.step_s / best.took.step_s),
        f"{row['samples_per_s']:.3g}",
        units.milliseconds(exposed_ms),
        units.milliseconds(row["terms_ms"]["host"]),
        memory(row),
    ]


def plan_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Grid:
    """The table without what all rows share."""
    words = [at for at, name in enumerate(columns) if name in ("strategy", "checkpointing")]
    alike = [name for name in SHARED if len({row[columns.index(name)] for row in rows}) == 1]
    return replace(Grid(columns=columns, rows=rows, words=words).without(*alike), lacks=())


def rivals(advice: Recommendation, most: int = 3) -> Sequence[str]:
    """The fastest and those that are not told apart from it: first the next, then those that would
    be the fastest at another value of the most telling measurement, then the faster ones."""
    named = (name for each in advice.measurements for name in each.winners)
    near = (name for name in named if name in advice.alike)
    return [*dict.fromkeys([advice.best.strategy, *advice.alike[:1], *near, *advice.alike])][:most]
