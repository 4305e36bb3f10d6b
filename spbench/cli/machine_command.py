"""``spbench doctor``: checks whether this machine is fit, and says what to do if it is not."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from spbench.cli import options
from spbench.cli.help import HelpPage
from spbench.cli.options import Count
from spbench.cli.selection import choose_workload, cluster_of, nodes_options, parse_ranks
from spbench.doctor.examine import examine
from spbench.doctor.machine_checks import DeviceChoice
from spbench.errors import DONE, SOME_FAILED, UNFIT, Failure
from spbench.launch.torchrun import joined_ranks
from spbench.report.doctor_table import show_diagnoses
from spbench.report.progress import loading_torch
from spbench.report.tables import print_json
from spbench.results.cuda_driver import cuda_gpus
from spbench.results.find_run import RESULTS
from spbench.results.machine import VISIBLE, is_cudas_to_say, visible
from spbench.results.nvml import GpuState, NvmlReport, read_nvml
from spbench.sweep.devices import MAX_PROCESSES, choose_device, default_ranks
from spbench.text import counted
from spbench.worker.fault_injection import refuse_fault
from spbench.workload.case import MAX_RANKS, Device


@click.command("doctor", cls=HelpPage)
@click.option(
    "-g",
    "--gpus",
    type=Count(1, MAX_PROCESSES),
    metavar="N",
    help="Ranks that try every collective.  [default: one per GPU; on a CPU 2 to 8, by cores]",
)
@options.duration_option(
    "--timeout", "120", "Time for torch to load, and for each start of ranks: 90, 90s, 2m."
)
@options.device_option
@options.json_option
def doctor_command(gpus: int | None, timeout: float, device: DeviceChoice, *, as_json: bool) -> int:
    """Check whether this machine is fit: software, GPUs, cores, memory, and every collective.

    Two ranks, then all, exchange known numbers through every collective. Each check is ok, warn
    (figures may suffer) or fail (runs would fail, or be wrong); warn and fail come with a remedy.
    Exit code 6 if any check fails.
    """
    if joined_ranks() is not None:
        raise Failure("doctor starts its ranks itself; call it without torchrun, on each machine")
    driver, usable = _driver_and_gpus(gpus, device)
    diagnoses = examine(device, gpus, timeout, dict(os.environ), driver, usable)
    if as_json:
        print_json([asdict(diagnosis) for diagnosis in diagnoses])
    else:
        show_diagnoses(diagnoses)
    return UNFIT if any(diagnosis.status == "fail" for diagnosis in diagnoses) else DONE


def _driver_and_gpus(gpus: int | None, device: DeviceChoice) -> tuple[NvmlReport, list[GpuState]]:
    """What NVML tells, and the GPUs that ranks may use, with the index -1 where NVML does not know
    them. Raises Failure if they are too few."""
    import pynvml

    driver, shown = read_nvml(pynvml), os.environ.get(VISIBLE)
    usable = visible(driver.gpus, shown)
    if is_cudas_to_say(driver.gpus, shown):
        usable = [GpuState(index=-1, name=gpu["name"]) for gpu in cuda_gpus()]
    if gpus is not None and device != "cpu" and 0 < len(usable) < gpus:
        raise Failure(
            f"--gpus {gpus}: this machine has {counted(len(usable), 'GPU')}; "
            f"use 1 to {len(usable)}, or --device cpu"
        )
    return driver, usable


# ``spbench calibrate``: this machine as a cluster that cases are projected to.

FOLDER = RESULTS / "clusters"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@click.command("calibrate", cls=HelpPage)
@click.argument("name", default="here")
@options.gpus_option
@click.option(
    "-w",
    "--workload",
    "workloads",
    multiple=True,
    metavar="NAME|FILE",
    help="Workloads whose shapes are timed, repeated.  [default: a few small ones of the "
    "catalogue in float32; on GPUs these in full size too, and most kernels of all others]",
)
@click.option(
    "-o", "--out", type=options.PATH, help="File to write.  [default: in results/clusters]"
)
@click.option(
    "--onto", metavar="NAME|FILE", help="With --gpus 1: the cluster whose links are taken."
)
@options.duration_option("--timeout", "300", "Deadline of each number of ranks: 90, 90s, 30m.")
@nodes_options
@options.device_option
def calibrate_command(
    name: str,
    gpus: str | None,
    workloads: Sequence[str],
    out: Path | None,
    timeout: float,
    device: str,
    onto: str | None,
    **place: Any,
) -> int:
    """Time kernels and collectives here, and write them down as the cluster NAME.

    Products, attentions, passes over memory, launches, small steps, and each collective through
    the transports that strategies use, by size, on each number of ranks: 'project' and 'recommend'
    then speak of this machine. It takes one to two minutes for each number of ranks, longer over
    slow links, on an otherwise idle machine.

    On several nodes, each of which runs this command, collectives go over their network.
    A single GPU has no links: '-g 1 --onto hgx-h200' times the GPU and takes that cluster's links.
    'spbench init --cluster' makes one of logs of nccl-tests.
    """
    if not NAME.fullmatch(name):
        raise Failure(f"{name!r} is not a name of a cluster; use letters, digits, '.', '_' and '-'")
    path = out or FOLDER / f"{name}.yaml"
    refuse_fault("calibrate")
    on, node = choose_device(device), cluster_of(**place)
    if node is None or node.is_head:
        _check_writable(path)
    ranks = _ranks(gpus, on, node.nodes if node else 1)
    _check_links(onto, max(ranks), on, has_network=node is not None)
    chosen = [choose_workload(each, []) for each in workloads]
    with loading_torch():
        from spbench.projection.costmodel.cluster_file import find
        from spbench.projection.microbench.calibrate import calibrate, write
    joined = None if onto is None else find(onto)
    if joined is not None:
        _check_kind(f"--onto {onto}", joined.device.runs_on, on)
    cluster = calibrate(name, ranks, on, timeout, chosen, node, joined)
    if cluster is not None:
        write(cluster, path)
        _kept(path)
    has_all = cluster is None or max(ranks) <= (cluster.most_ranks or MAX_RANKS)
    return DONE if has_all else SOME_FAILED


def _check_kind(onto: str, kind: str, on: str) -> None:
    """Raises Failure where the devices of ``onto`` are not of the kind that ranks compute on."""
    if kind != on:
        where = f"is of {kind}, and ranks compute on {on} here"
        raise Failure(f"{onto} {where}: run it on such a device, or give -g 1,2 without it")


def _check_links(onto: str | None, most: int, on: str, *, has_network: bool) -> None:
    """Raises Failure where a single rank has no links, or several ranks or nodes have two kinds."""
    if onto is not None and most > 1:
        raise Failure(f"--onto gives one rank its links: -g 1, not {most}")
    if onto is not None and has_network:
        raise Failure("--onto gives a single rank its links: leave out --nnodes")
    if most == 1 and onto is None:
        onto_one = ", or with --onto a cluster whose links are taken, such as hgx-h200"
        more = onto_one if on == "cuda" else ""
        raise Failure(f"--gpus 1: a single rank has no links; give 1,2 or more{more}")


def _check_writable(path: Path) -> None:
    """Raises Failure where a cluster cannot be written there, or not be named by its path."""
    if path.suffix not in (".yaml", ".yml"):
        raise Failure(f"--out {path} is not the name of a YAML file; write {path}.yaml")
    if path.is_dir():
        raise Failure(f"--out {path} is a folder; name a file in it")
    there = next(each for each in path.absolute().parents if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise Failure(f"--out {path}: nothing can be written in {there}; name another folder")


def _kept(path: Path) -> int:
    click.echo(f"kept in {path}; use it as --cluster {path}")
    return DONE


def _ranks(gpus: str | None, on: Device, nodes: int) -> list[int]:
    """Those asked for; by default 1, 2, 4 ... up to all of the nodes' devices, and that."""
    most = nodes * default_ranks(on)
    every = ",".join(map(str, [*(2**n for n in range(most.bit_length()) if 2**n < most), most]))
    return parse_ranks(gpus or every, on, nodes=nodes)
