"""A cluster with links by logs of nccl-tests: what was replaced, and what stays assumed.

Each run goes to the level that joins its ranks, and replaces there its operation's latency and
rates. What a block shares, and the rates of levels inside, are raised where the runs show them to
be too low; all else stays as it was, and is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from spbench.errors import Failure
from spbench.projection.costmodel.constants import (
    CollectiveRate,
    Curve,
    Level,
    Sourced,
    Together,
    constant,
    rounded,
)
from spbench.projection.costmodel.hardware import NETWORK, Cluster, OnRanks
from spbench.projection.microbench.nccl_logs import NAMES, Run, read_runs
from spbench.projection.microbench.run_fit import (
    SOURCE,
    Fit,
    PlacedRun,
    extended,
    fitted,
    placed,
    sourced,
)
from spbench.text import counted, grouped, listed, short
from spbench.workload.traffic import OPS, Op

TIMED = ("calibrate", SOURCE)
"""Sources of constants that were timed on the machine itself."""
HIGHER = 1.02
"""Factor from which on a rate is raised: less is the error of a line between two sizes."""
Fits = Mapping[Op, Fit]


@final
@dataclass(frozen=True, kw_only=True)
class Change:
    """One constant that is another now."""

    level: str
    what: str
    was: float | None
    """None: there was none."""
    now: float | None
    """None: there is none any more."""
    unit: str
    why: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Imported:
    """The cluster with the links of logs, and how it came about."""

    onto: Cluster
    cluster: Cluster
    by_level: Mapping[int, Fits]
    changes: Sequence[Change]


def with_logs(name: str, onto: Cluster, files: Sequence[Path]) -> Imported:
    """``onto`` under another name, with the links of all runs in these files. Raises Failure for
    files that are no logs, and for runs that no level of the cluster can know."""
    runs = [placed(run, onto) for path in files for run in read_runs(path)]
    by_level = _fits(onto, runs)
    levels, changes = _levels(onto, by_level)
    by_name = {levels[at].name: fits for at, fits in by_level.items()}
    what = "; ".join(
        f"{each.run.op}: {counted(each.run.ranks, 'rank')} on "
        f"{counted(len(each.run.hosts), 'host')}, {each.run.path.name}"
        for each in runs
    )
    known = [text for text in (onto.sources.get(SOURCE), f"nccl-tests ({what})") if text]
    data = onto.model_dump() | {
        "name": name,
        "drawn_as": onto.drawn_as or onto.name,  # the same machine: the rest is off as it was
        "drawn_together": _still_together(onto, by_name),
        "source": f"{onto.name}, links of level {listed([*by_name])} by nccl-tests",
        "levels": levels,
        "on_ranks": tuple(_with_levels(part, by_name) for part in onto.on_ranks),
        "sources": onto.sources | {SOURCE: "; ".join(known)},
    }
    cluster = Cluster.model_validate(data)
    return Imported(onto=onto, cluster=cluster, by_level=by_level, changes=changes)


def with_run(onto: Cluster, run: Run) -> Cluster:
    """The cluster with the links that a log of one run would give it, under its own name and with
    all else as it is: what it would say if that had been measured. Raises Failure as ``with_logs``
    does."""
    levels, _ = _levels(onto, _fits(onto, [placed(run, onto)]))
    return onto.model_copy(update={"levels": tuple(levels)})


def _fits(onto: Cluster, runs: Sequence[PlacedRun]) -> dict[int, Fits]:
    """Each operation at each level by its runs."""
    by_level: dict[int, Fits] = {}
    for at, of_level in sorted(grouped(runs, lambda each: each.at).items()):
        old = onto.levels[at].collectives if at < len(onto.levels) else {}
        by_op = grouped(of_level, lambda each: each.run.op)
        by_level[at] = {op: fitted(of_op, old.get(op)) for op, of_op in by_op.items()}
    return by_level


def _levels(onto: Cluster, by_level: Mapping[int, Fits]) -> tuple[list[Level], list[Change]]:
    """All levels with what the runs tell, and what changed."""
    levels, changes = list(onto.levels), list[Change]()
    for at, fits in by_level.items():
        if at == len(levels):
            levels.append(_network(onto, fits))
            changes += _replacements(levels[at].name, {}, fits)
        else:
            changes += _replacements(levels[at].name, levels[at].collectives, fits)
            levels[at], more = _with_shared(_with_fits(levels[at], fits), fits)
            changes += more
    for at, fits in by_level.items():
        block = 1
        for inner in range(at):
            unknown = {op: fit for op, fit in fits.items() if op not in by_level.get(inner, {})}
            levels[inner], more = _at_least(levels[inner], block, unknown, levels[at].name)
            changes += more
            block = levels[inner].ranks or 1
    return levels, changes


def _network(onto: Cluster, fits: Fits) -> Level:
    """A network that joins any number of hosts. Raises Failure where an operation has no log."""
    if lacking := [name for name, op in NAMES.items() if op not in fits]:
        joined = counted(onto.most_ranks or 1, "rank")
        raise Failure(
            f"{onto.name} joins {joined}, and a network around them takes logs of "
            f"{listed(lacking)}, too"
        )
    return Level(name=NETWORK, collectives={op: fit.rate for op, fit in fits.items()})


def _with_fits(level: Level, fits: Fits) -> Level:
    rates = level.collectives | {op: fit.rate for op, fit in fits.items()}
    return level.model_copy(update={"collectives": rates})


def _with_levels(part: OnRanks, by_name: Mapping[str, Fits]) -> OnRanks:
    """What fewer ranks have, with the logs at its levels of these names: it was timed as well, and
    would else hide what was imported."""
    levels = (_with_fits(level, by_name.get(level.name, {})) for level in part.levels)
    return part.model_copy(update={"levels": tuple(levels)})


def _replacements(level: str, old: Mapping[Op, CollectiveRate], fits: Fits) -> Iterator[Change]:
    """Rates at the largest message that was timed, and latencies on as many ranks."""
    for op, fit in fits.items():
        run = max((each.run for each in fit.runs), key=lambda run: run.largest)
        mb = run.largest[0] / 1e6
        was, ranks = old.get(op), run.ranks
        yield Change(
            level=level,
            what=f"{op} at {short(mb)} MB",
            was=None if was is None else was.gb_per_s(mb),
            now=fit.rate.gb_per_s(mb),
            unit="GB/s",
        )
        if fit.is_latency_told:
            yield Change(
                level=level,
                what=f"latency of {op} on {counted(ranks, 'rank')}",
                was=None if was is None else 1e6 * was.latency_s(ranks, ranks),
                now=1e6 * fit.rate.latency_s(ranks, ranks),
                unit="us",
            )


def _with_shared(level: Level, fits: Fits) -> tuple[Level, list[Change]]:
    """The level, where what a block shares is at least what was seen; what an all-to-all leaves of
    it is in that operation's own rate."""
    changes, shared, scattered = list[Change](), level.shared_gb_per_s, level.scattered
    if shared is None:
        return level, changes
    seen = [
        sent * each.shares[1] / seconds / 1e9
        for fit in fits.values()
        for each, sent, seconds in fit.beyond
    ]
    most = max(seen, default=0.0)
    if most > HIGHER * shared.value:
        why = "the ranks of a block send that together"
        what = {"level": level.name, "what": "shared_gb_per_s", "unit": "GB/s", "why": why}
        changes.append(Change(**what, was=shared.value, now=most))
        shared = sourced(constant(most))
    if "all_to_all" in fits and scattered is not None:
        why = "the rate of all_to_all has it"
        what = {"level": level.name, "what": "scattered", "unit": "of it", "why": why}
        changes.append(Change(**what, was=scattered.value, now=None))
        scattered = None
    return level.model_copy(update={"shared_gb_per_s": shared, "scattered": scattered}), changes


def _at_least(level: Level, block: int, fits: Fits, outer: str) -> tuple[Level, list[Change]]:
    """An inner level whose links carried at least what ranks sent over the ``outer`` one;
    ``block``: ranks that the level before it joins."""
    rates, changes = dict(level.collectives), list[Change]()
    for op, fit in fits.items():
        old = rates[op].gb_per_s
        needed: dict[float, float] = {}
        for each, sent, seconds in fit.beyond:
            rate = sent * each.crossing(block)[0] / seconds / 1e9
            needed[sent / 1e6] = max(needed.get(sent / 1e6, 0.0), rate)
        # A message's time is on a line between two sizes, and its rate is not.
        has = {size: size / rates[op].seconds(size) / 1e3 for size in needed}
        if all(rate <= HIGHER * has[size] for size, rate in needed.items()):
            continue
        sizes, mb = tuple(sorted(needed)), max(needed)
        why = f"ranks send that on their way over {outer}"
        higher = Curve(
            at=tuple(map(rounded, sizes)),
            values=tuple(rounded(max(has[size], needed[size])) for size in sizes),
            source=f"at least what ranks send over {outer} by nccl-tests; was: {old.source}",
            kind="inferred",
            spread=old.factor,
        )
        raised = extended(higher, old)
        rates[op] = rates[op].model_copy(update={"gb_per_s": raised})
        what = {"level": level.name, "what": f"{op} at {short(mb)} MB", "unit": "GB/s", "why": why}
        changes.append(Change(**what, was=old(mb), now=raised(mb)))
    return level.model_copy(update={"collectives": rates}), changes


def _still_together(onto: Cluster, by_name: Mapping[str, Fits]) -> tuple[Together, ...]:
    """What is drawn together, without constants of logs, each of which was timed by itself."""
    replaced = {
        f"{level}.{op}.{field}"
        for level, fits in by_name.items()
        for op, fit in fits.items()
        for field in ("gb_per_s", *(["latency_us"] if fit.is_latency_told else []))
    }
    groups = []
    for group in onto.drawn_together:
        held = [name for name in onto.drawn_names() if group.holds(name)]
        left = tuple(name for name in held if name not in replaced)
        if len(left) == len(held):
            groups.append(group)
        elif left:
            groups.append(group.model_copy(update={"constants": left}))
    return tuple(groups)


def said(imported: Imported) -> Iterator[str]:
    """A line for each run, one for each constant that changed, and what stays assumed."""
    levels = imported.cluster.levels
    for at, fits in imported.by_level.items():
        for fit in fits.values():
            yield from (_said_of_run(each, levels[at].name, fit) for each in fit.runs)
    for change in imported.changes:
        was, now = (
            "none" if value is None else f"{short(value)} {change.unit}"
            for value in (change.was, change.now)
        )
        why = f": {change.why}" if change.why else ""
        yield f"level {change.level}: {change.what}: {was} -> {now}{why}"
    assumed = "; ".join(_assumed(imported)) or "nothing, as all else was timed"
    yield f"stays assumed, as {imported.onto.name} has it: {assumed}"


def _said_of_run(placed_run: PlacedRun, level: str, fit: Fit) -> str:
    run = placed_run.run
    latency = f"latency {short(1e6 * fit.rate.latency_s(run.ranks, run.ranks))} us"
    if not fit.is_latency_told:
        smallest = short(min(run.points)[0] / 1e6)
        latency += f" stays assumed, as {smallest} MB from a rank are too many to tell it"
    where = f"{counted(run.ranks, 'rank')} on {counted(len(run.hosts), 'host')}, level {level}"
    rate = f"{short(run.bus_gb_per_s)} GB/s at {short(run.largest[0] / 1e6)} MB"
    return f"{run.op}: {where}, {rate}, {latency} ({run.place})"


def _assumed(imported: Imported) -> Iterator[str]:
    """What no log told: of each level, of all of them, of the device."""
    cluster = imported.cluster
    for at, level in enumerate(cluster.levels):
        fits = imported.by_level.get(at, {})
        rates = {op: level.collectives[op].gb_per_s for op in OPS if op not in fits}
        latencies = {op: level.collectives[op].latency_us for op in fits}
        limits = {"shared_gb_per_s": level.shared_gb_per_s, "scattered": level.scattered}
        names: list[str] = [op for op, rate in rates.items() if _is_assumed(rate)]
        names += [f"latency of {op}" for op, each in latencies.items() if _is_assumed(each)]
        names += [name for name, limit in limits.items() if _is_assumed(limit)]
        if names:
            yield f"level {level.name}: {', '.join(names)}"
    if _is_assumed(cluster.call_us):
        yield f"the host's time of a collective, {cluster.call_us.value:g} us"
    if _is_assumed(cluster.device.memory_gb_per_s):
        yield f"all of the device, {cluster.device.name}"


def _is_assumed(constant: Sourced | None) -> bool:
    """Whether it is there and nothing on the machine itself was timed for it."""
    return constant is not None and constant.source not in TIMED
