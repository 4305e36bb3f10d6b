"""Times kernels and collectives of this machine, and writes them down as a cluster.

Ranks of one CPU share its cores and its memory, and those of several GPUs their links, so that each
number of ranks is timed by itself.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import psutil
import yaml
from scipy.optimize import least_squares

from spbench.errors import UNFIT, Failure
from spbench.launch.cluster import Cluster as Node
from spbench.launch.local import LocalLauncher, read_results
from spbench.projection.costmodel.cluster_file import find
from spbench.projection.costmodel.constants import constant, rounded
from spbench.projection.costmodel.hardware import Cluster, OnRanks
from spbench.projection.costmodel.hardware import Device as OwnDevice
from spbench.projection.costmodel.sensitivity import in_company
from spbench.projection.costmodel.step_time import Mode, middle_s
from spbench.projection.dryrun.trace import work
from spbench.projection.microbench.calibration_fit import device, in_steps, level
from spbench.projection.microbench.calibration_plan import CalibrationPlan, Timed, plan
from spbench.results.hand_over import write_atomically
from spbench.results.link_report import LinkTimes
from spbench.results.machine import allowed, package_version
from spbench.results.temporary import keep, temporary_folder
from spbench.strategies.registry import in_mesh
from spbench.sweep.devices import visible_gpus
from spbench.sweep.run import described, follow
from spbench.text import counted
from spbench.worker.timer import garbage_kept
from spbench.workload.case import Device, Job
from spbench.workload.traffic import OPS
from spbench.workload.workload import Workload

GB = 1e9
HIDES = 0.3
"""Part of a kernel's time in which a message moves on a CPU, whose cores move it and compute: until
steps tell. Single kernels hid 0.14 to 0.36 of theirs (docs/decisions/0044)."""
START = (1.0, HIDES, 1.0, *[1.0] * len(OPS))
LOWEST, HIGHEST = (0.2, 0.0, 0.05, *[0.2] * len(OPS)), (5.0, 1.0, 1.0, *[5.0] * len(OPS))
"""Numbers that are fitted to whole steps, in the order of ``in_company``'s arguments."""
STEP_ERROR, CHANGE = 0.08, 0.2
"""The relative error of a step, and the change of a number, that count as much as each other."""


def calibrate(
    name: str,
    ranks: Sequence[int],
    on: Device,
    timeout_s: float,
    workloads: Sequence[Workload] = (),
    node: Node | None = None,
    onto: Cluster | None = None,
) -> Cluster | None:
    """This machine as a cluster, or several of which this is a ``node``, by times on each of these
    numbers of ranks; None on a node that is not the first. ``onto`` has the links, and the host's
    time of a message, for a single rank, which sends none.

    Where ranks fail, the cause and the logs, which are kept only then, are said on stderr, and the
    cluster is that of fewer ranks; Failure is raised if none of several ranks were timed.
    """
    asked = f"calibrate {[*ranks]} {on} {[each.model_dump_json() for each in workloads]}"
    node = node and described(node, asked, timeout_s)
    if node is not None and not node.is_head:
        follow(node, on)
        return None
    with garbage_kept():  # collecting it would take a quarter of the planning
        memory_bytes = GB * _memory_gb(on, 1) if on == "cuda" else math.inf
        plans = [plan(count, on, workloads, memory_bytes) for count in sorted(ranks)]
    timed = dict(_launches(plans, on, timeout_s, node))
    hardware, name_of_level = _hardware(on), "machine" if node is None else "network"
    nodes = 1 if node is None else node.nodes
    kind = "gpu" if on == "cuda" else "cpu"
    parts = list[OnRanks]()
    for count, each in timed.items():
        try:
            known = device(hardware, kind, _memory_gb(on, -(-count // nodes)), each)
        except Failure as failure:  # others used the machine; fewer ranks were timed before
            if not any(part.levels for part in parts):
                raise
            click.echo(f"Error: {failure}", err=True)
            break
        own, call = in_steps(known, each)
        levels = (level(name_of_level, each, timed.get(2)),) if count > 1 else ()
        part = OnRanks(ranks=count, device=own, levels=levels, call_us=call)
        parts.append(_with_waits(part, each))
    *fewer, most = parts
    if onto is not None:
        return _joined(onto, name, hardware, most.device)
    return Cluster(
        name=name,
        source=f"spbench calibrate on {hardware}, torch {package_version('torch')}",
        nodes=0 if node is None else nodes,
        device=most.device,
        levels=most.levels,
        on_ranks=tuple(fewer),
        link="network" if node else "nvlink" if on == "cuda" else "memory",
        call_us=most.call_us or constant(1e6 * timed[most.ranks].launch_s),
        sources={"calibrate": "times of this machine"},
    )


def _with_waits(part: OnRanks, timed: Timed) -> OnRanks:
    """What so many ranks of a CPU have, corrected by whole steps.

    Kernels and messages were timed one by one. In a step ranks wait for the slowest of them, and
    for messages between kernels of other lengths, and a group of few waits for ranks of other
    groups that have the cores. ``in_company`` has a number for each of these, and they are fitted:
    the sum of squares is least of the relative errors of steps, and of how far each number is from
    where it starts, so that a number that no step tells stays there.

    Parameters
    ----------
    part
        What the ranks have by kernels and messages alone.
    timed
        Times of the plan, among them those of steps that all ranks did together.
    """
    if part.device.kind == "gpu" or not part.levels:
        return part
    steps = timed.plan.steps if timed.together_s else []
    works = [
        work(step.workload, in_mesh(step.strategy, step.mesh), part.ranks, device="cpu")
        for step in steps
    ]

    def corrected(numbers: Sequence[float]) -> OnRanks:
        waits, hides, hops, *latencies = numbers
        return in_company(part, waits, hides, hops, dict(zip(OPS, latencies, strict=True)))

    def residuals(numbers: Sequence[float]) -> list[float]:
        ranks = corrected(numbers)
        cluster = Cluster(
            name="so far",
            link="memory",
            device=ranks.device,
            levels=ranks.levels,
            call_us=ranks.call_us or part.device.launch_us,
        )
        errors = [
            middle_s(of_step, cluster, Mode()) / took_s - 1
            for of_step, took_s in zip(works, timed.together_s, strict=True)
        ]
        changes = [number - start for number, start in zip(numbers, START, strict=True)]
        # Divided by what counts as much: 8 % of a step as much as a fifth of a number.
        return [error / STEP_ERROR for error in errors] + [change / CHANGE for change in changes]

    # Coarse steps and an early end: steps of the same work scatter by far more.
    fit = least_squares(
        residuals, START, bounds=(LOWEST, HIGHEST), diff_step=0.05, xtol=1e-3, ftol=1e-4
    )
    return corrected([float(number) for number in fit.x])


def _joined(onto: Cluster, name: str, hardware: str, own: OwnDevice) -> Cluster:
    """The cluster ``onto`` with this machine's device in place of its own."""
    fewer = (x.model_copy(update={"device": own}) for x in onto.on_ranks if x.levels)
    said = f"spbench calibrate on {hardware}, links of {onto.name}"
    sources = onto.sources | {"calibrate": "times of this machine"}
    data = {"name": name, "source": said, "device": own, "sources": sources}
    return onto.model_copy(update={**data, "on_ranks": tuple(fewer)})


def _launches(
    plans: Sequence[CalibrationPlan], on: Device, timeout_s: float, node: Node | None
) -> Iterator[tuple[int, Timed]]:
    with temporary_folder("spbench-calibrate-") as folder:
        launcher = LocalLauncher(folder / "launcher.log", cluster=node)
        with closing(launcher):
            launcher.meet(max(each.ranks for each in plans), on_gpus=on == "cuda")
            for fewer, each in zip([1, *(x.ranks for x in plans)], plans, strict=False):
                try:
                    yield each.ranks, _launch(each, on, timeout_s, launcher, folder)
                except Failure as failure:
                    if fewer == 1:
                        raise
                    click.echo(f"Error: {failure}", err=True)
                    return


def _launch(
    planned: CalibrationPlan, on: Device, timeout_s: float, launcher: LocalLauncher, folder: Path
) -> Timed:
    counts = (counted(len(getattr(planned, f"{x}s")), x) for x in ("kernel", "transfer", "step"))
    click.echo(f"{counted(planned.ranks, 'rank')} time {', '.join(counts)}", err=True)
    job, place = Job(**dict(planned), device=on, timeout_s=timeout_s), folder / f"{planned.ranks}"
    times, status, cause = read_results(job, place, launcher.run(job, place), LinkTimes)
    if status != "ok":
        keep(folder)
        raise Failure(f"{status}: {cause}; logs in {place}", UNFIT)
    return Timed.of(planned, times)


def _hardware(on: Device) -> str:
    if on == "cuda" and (gpus := visible_gpus()):
        return str(gpus[0]["name"])
    return counted(len(os.sched_getaffinity(0)), "CPU core")


def _memory_gb(on: Device, ranks: int) -> float:
    """What one of so many ranks of a node has."""
    if on == "cuda" and (gpus := visible_gpus()) and gpus[0].get("memory_bytes"):
        return float(gpus[0]["memory_bytes"]) / GB
    total = psutil.virtual_memory().total
    return min(total, allowed().memory_bytes or total) / ranks / GB


def write(cluster: Cluster, path: Path) -> None:
    """Writes a cluster's file, in five digits, and reads it. Raises WorkloadError if that fails."""
    text = cluster.model_dump_json(exclude_defaults=True)
    data: dict[str, Any] = json.loads(text, parse_float=lambda x: rounded(float(x)))
    text = yaml.safe_dump({"version": 1, **data}, sort_keys=False, width=100)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text)
    find(str(path.absolute()))
