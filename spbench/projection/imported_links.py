"""A level of a cluster by what logs of nccl-tests hold; the rest stays that of another cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spbench.errors import Failure
from spbench.projection.calibration_fit import constant
from spbench.projection.hardware import Cluster, Level
from spbench.projection.link_fit import TimedCollective, collective_rate
from spbench.projection.message_cost import crossing
from spbench.projection.nccl_tests import Log, read_log
from spbench.text import counted
from spbench.workload.traffic import Op

SOURCE = "calibrate"
"""The key of the file's sources that measured constants name."""


def with_logs(name: str, onto: Cluster, files: Sequence[Path], level: str | None) -> Cluster:
    """``onto`` under another name, with the rates and latencies of logs at one of its levels.

    Logs of one host are of the innermost level, those of several of the outermost, unless
    ``level`` names it. Raises Failure for logs that do not go together.
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
    changed = _changed(onto.levels[at], by_op, block)
    what = "; ".join(
        f"{log.op}: {counted(log.ranks, 'rank')} on {counted(log.hosts, 'host')}, {log.path.name}"
        for log in logs
    )
    levels = (*onto.levels[:at], changed, *onto.levels[at + 1 :])
    data = onto.model_dump() | {
        "name": name,
        "source": f"{onto.name}, level {changed.name} by nccl-tests",
        "levels": levels,
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
    return places.pop()


def _changed(old: Level, by_op: Mapping[Op, Sequence[Log]], block: int) -> Level:
    """The level with each operation that has a log. Bytes that stay inside a block of the level
    before do not count in a rate, as in the cost of a message."""
    rates = dict(old.collectives)
    together = 0.0
    for op, logs in by_op.items():
        fewest, most = (_timed(logs, ranks, block) for ranks in (logs[0].ranks, logs[-1].ranks))
        rates[op] = collective_rate(most, fewest, old.collectives[op].hop_us)
        of_rank, of_block = crossing((tuple(range(most.ranks)),), op, block)
        together = max(together, max(rates[op].gb_per_s.values) * of_block / of_rank)
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
