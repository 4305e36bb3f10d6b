"""From times of collectives to the constants of a level of links: of a calibration, or of logs.

The smallest message gives the latency, and each larger one the rate of what is left. Logs of
nccl-tests replace one level of a cluster; the rest stays as it was.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression

from spbench.errors import Failure
from spbench.projection.calibration_times import Timed, TimedCollective
from spbench.projection.constants import CollectiveRate, Constant, Curve, Level, constant, curve
from spbench.projection.hardware import Cluster, OnRanks
from spbench.projection.message_cost import crossing
from spbench.projection.nccl_tests import NAMES, Log, read_log
from spbench.text import counted
from spbench.workload.traffic import OPS, Op

LEAST_PART = 0.05
"""Part of the latency that a message takes beyond it, at least: less is not told from none."""
LEAST_S = 1e-7
"""A time that is shorter is not told from none."""


def level(name: str, timed: Timed, fewest: Timed | None, nominal: Constant | None = None) -> Level:
    """The links between ranks; ``fewest``: times of two ranks, if ``timed`` is of more;
    ``nominal``: the rate of a rank's link in GB/s by its name, where that is known."""
    rates = {}
    for op in OPS:
        few = None if fewest is None or op == "p2p" else fewest.collective(op)
        rates[op] = collective_rate(timed.collective(op), few)
    return Level(name=name, ranks=timed.plan.ranks, collectives=rates, nominal_gb_per_s=nominal)


def collective_rate(
    timed: TimedCollective, fewest: TimedCollective | None, hop: Constant | None = None
) -> CollectiveRate:
    """Latency and rates; ``fewest``: the same of fewer ranks, from which the time of each further
    rank follows. Without it that is ``hop``, as far as the latency has room for it."""
    latency_s, rates = _latency_and_rates(timed)
    if fewest is not None and fewest.ranks < timed.ranks:
        few_s, _ = _latency_and_rates(fewest)
        each_s = (latency_s - few_s) / (timed.ranks - fewest.ranks)
        hop = constant(1e6 * each_s) if each_s > LEAST_S else None
    hops_s = hop.value / 1e6 * (timed.ranks - 2) if hop else 0.0
    if hops_s >= latency_s - LEAST_S:
        hop, hops_s = None, 0.0
    latency = constant(1e6 * (latency_s - hops_s))
    return CollectiveRate(latency_us=latency, hop_us=hop, gb_per_s=rates)


def _latency_and_rates(timed: TimedCollective) -> tuple[float, Curve]:
    """The smallest message's time, and rates by what all take beyond it, those as fast as it too. A
    message that took longer than a larger one shares its time, as chance moved both: their mean."""
    sizes, taken = zip(*sorted(timed.points), strict=True)
    seconds = isotonic_regression(taken).x
    rates = np.array(sizes) / np.maximum(seconds - seconds[0], LEAST_PART * seconds[0]) / 1e9
    return float(seconds[0]), curve(zip(np.array(sizes) / 1e6, rates, strict=True))


SOURCE = "calibrate"
"""The key of the file's sources that measured constants name."""


def with_logs(name: str, onto: Cluster, files: Sequence[Path], level: str | None) -> Cluster:
    """``onto`` under another name, with the rates and latencies of logs at one of its levels.

    Logs of one host are of the innermost level, those of several of the outermost, or of a new one
    around it if they have more ranks, unless ``level`` names it. Raises Failure for logs that do
    not go together.
    """
    logs = [read_log(path) for path in files]
    at = _place(onto, logs, level)
    block = onto.levels[at - 1].ranks or 1 if at else 1
    by_op: dict[Op, list[Log]] = {}
    for log in sorted(logs, key=lambda log: log.ranks):
        if log.ranks <= block:
            raise Failure(
                f"{log.path} is of {log.ranks} ranks, which level {onto.levels[at - 1].name!r} "
                f"joins; name that with --level"
            )
        by_op.setdefault(log.op, []).append(log)
    is_new = at == len(onto.levels)
    changed = _new(onto, by_op, block) if is_new else _changed(onto.levels[at], by_op, block)
    fewer = tuple(_with_level(part, changed.name, by_op, block) for part in onto.on_ranks)
    what = "; ".join(
        f"{log.op}: {counted(log.ranks, 'rank')} on {counted(log.hosts, 'host')}, {log.path.name}"
        for log in logs
    )
    data = onto.model_dump() | {
        "name": name,
        "source": f"{onto.name}, level {changed.name} by nccl-tests",
        "levels": (*onto.levels[:at], changed, *onto.levels[at + 1 :]),
        "on_ranks": fewer,
        "sources": onto.sources | {SOURCE: f"nccl-tests ({what})"},
    }
    return Cluster.model_validate(data)


def _place(onto: Cluster, logs: Sequence[Log], level: str | None) -> int:
    names = [each.name for each in onto.levels]
    if level is not None:
        if level not in names:
            raise Failure(f"--level {level}: {onto.name} has {', '.join(names)}")
        return names.index(level)
    places = {0 if log.hosts == 1 else len(names) - 1 for log in logs}
    if len(places) > 1:
        raise Failure(
            "some logs are of one host and some of several; import one level after the other, the "
            "second with --onto the first one's file"
        )
    (at,) = places
    joined = onto.levels[at].ranks if at == len(names) - 1 else None
    return len(names) if joined and max(log.ranks for log in logs) > joined else at


def _new(onto: Cluster, by_op: Mapping[Op, Sequence[Log]], block: int) -> Level:
    """A network that joins any number of blocks. Raises Failure where an operation has no log, and
    for hosts that are not such blocks."""
    lacking = [name for name, op in NAMES.items() if op not in by_op]
    other = [log for logs in by_op.values() for log in logs if log.ranks != log.hosts * block]
    if lacking or other:
        why = f"a log of {', '.join(lacking)}, too" if lacking else f"logs of {block} ranks a host"
        raise Failure(f"{onto.name} joins {block} ranks; a network around them takes {why}")
    rates = {}
    for op, logs in by_op.items():
        fewest, most = (_timed(logs, logs[n].ranks, block) for n in (0, -1))
        rates[op] = collective_rate(most, fewest)
    return Level(name="network", collectives=rates)


def _with_level(part: OnRanks, name: str, by_op: Mapping[Op, Sequence[Log]], block: int) -> OnRanks:
    """What fewer ranks have, with the logs at its level of that name: they were timed as well, and
    would else hide what was imported."""
    levels = (_changed(each, by_op, block) if each.name == name else each for each in part.levels)
    return part.model_copy(update={"levels": tuple(levels)})


def _changed(old: Level, by_op: Mapping[Op, Sequence[Log]], block: int) -> Level:
    """The level with each operation that has a log. Bytes that stay inside a block of the level
    before do not count in a rate, as in the cost of a message."""
    rates = dict(old.collectives)
    together = 0.0
    for op, logs in by_op.items():
        fewest, most = (_timed(logs, ranks, block) for ranks in (logs[0].ranks, logs[-1].ranks))
        rates[op] = collective_rate(most, fewest, old.collectives[op].hop_us)
        of_rank, of_block = crossing((tuple(range(most.ranks)),), op, block)
        fastest = max(sent / seconds / 1e9 for sent, seconds in most.points)
        together = max(together, fastest * of_block / of_rank)
    update: dict[str, Any] = {"collectives": rates}
    if old.shared_gb_per_s is not None:
        if together > old.shared_gb_per_s.value:
            update["shared_gb_per_s"] = constant(together)
        if "all_to_all" in by_op:
            update["scattered"] = None
    return old.model_copy(update=update)


def _timed(logs: Sequence[Log], ranks: int, block: int) -> TimedCollective:
    """All logs of so many ranks, with what the busiest rank sends over the level."""
    of_rank, _ = crossing((tuple(range(ranks)),), logs[0].op, block)
    points = [(sent * of_rank, s) for log in logs if log.ranks == ranks for sent, s in log.points]
    return TimedCollective(ranks=ranks, points=points)
