"""``spbench capacity``: the largest batch and the longest axis that fit into memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spbench.cli import options
from spbench.cli.help import HelpPage
from spbench.cli.selection import choose_workload, rank_counts
from spbench.errors import DONE, SOME_FAILED, Failure
from spbench.launch.launcher import Deadlines
from spbench.report.progress import loading_torch, watched
from spbench.report.tables import print_json
from spbench.results.capacities import (
    BATCH,
    FILE,
    has_capacities,
    read_capacities,
    write_capacities,
)
from spbench.results.machine import cpu_name
from spbench.sweep.devices import choose_device, visible_gpus, why_not_here
from spbench.text import quoted
from spbench.worker.fault_injection import refuse_fault
from spbench.workload.case import MAX_RANKS, Device
from spbench.workload.mesh import CaseMesh
from spbench.workload.workload import Workload

if TYPE_CHECKING:
    from spbench.projection.advise.capacity import Capacity

SIZES = {"": 1, "M": 10**6, "G": 10**9, "T": 10**12, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def memory_size(text: str) -> float:
    """Bytes of 80GB, 80GiB or 500MiB."""
    parts = re.fullmatch(r"(\d+(?:\.\d+)?) ?([MGT]i?)B", text.strip(), re.ASCII)
    if parts is None or float(parts[1]) == 0:
        raise click.BadParameter(f"{text!r} is not a size of memory; write 80GB, 80GiB or 500MiB")
    return float(parts[1]) * SIZES[parts[2]]


@click.command("capacity", cls=HelpPage)
@options.workload_argument
@options.strategy_option
@click.option(
    "-g",
    "--gpus",
    default="1,2,4,8",
    metavar="N[,N...]",
    help="Numbers of ranks; unless they try, no process is started.",
)
@options.mesh_option
@click.option(
    "--memory",
    type=memory_size,
    metavar="SIZE",
    help="Memory of a rank, such as 80GB or 500MiB.  [default: that of this machine's GPUs]",
)
@options.percent_option(
    "--reserve", "8%", "Part of it for what a dry run does not see: context, NCCL, fragments."
)
@click.option(
    "--axis",
    "axes",
    multiple=True,
    metavar="NAME",
    help="The axis that grows, beside the batch; repeated for several.  [default: the longest]",
)
@click.option(
    "--measure", is_flag=True, help="Let ranks of this machine try, in place of dry runs."
)
@click.option(
    "--out",
    type=options.PATH,
    metavar="DIR",
    help="Also keep the sizes as DIR/capacity.csv, for plot; DIR may hold some, or a run.",
)
@options.settings_option
@options.deadline_options
@options.device_option
@options.json_option
def capacity_command(
    workload: str,
    strategies: Sequence[str],
    gpus: str,
    meshes: Sequence[CaseMesh],
    memory: float | None,
    reserve: float,
    axes: Sequence[str],
    measure: bool,
    out: Path | None,
    settings: Sequence[str],
    timeout: float,
    hang_after: float,
    device: str,
    as_json: bool,
) -> int:
    """Find the largest batch and the longest axis of WORKLOAD that fit into a rank's memory.

    By dry runs of the strategies' own code, at any number of ranks: peaks of tensors, exactly, to
    which --reserve adds what no tensor holds. With --measure ranks of this machine try.
    An axis grows in steps of the ranks that share it. Answers are kept as they come.
    """
    if measure:
        refuse_fault("capacity --measure")
    work, names = choose_workload(workload, settings), options.strategies_of(strategies)
    counts, on = rank_counts(gpus), choose_device(device, starts=measure)
    grows = [BATCH, *(axes or [max(work.axes, key=lambda axis: work.axes[axis])])]
    _refuse(work, grows, counts, on if measure else None, out)
    _refuse_endless(work, meshes)
    budget = _budget(memory, on) * (1.0 if measure else 1.0 - reserve)
    with loading_torch():
        from spbench.projection.advise import capacity

    asked = capacity.questions(work, names, counts, grows, meshes)
    if measure:
        deadlines = Deadlines(launch_s=timeout, hang_s=hang_after)
        sizes = capacity.tried(asked, budget, on, deadlines)
        tried_on, how = _tried_on(on), "as ranks of this machine tried"
    else:
        on = "cpu" if device == "cpu" else "cuda"  # a dry run needs no GPU
        sizes = capacity.foreseen(asked, budget, on)
        tried_on, how = None, f"by dry runs, {100 * reserve:g} % of its memory left free"
    found: list[Capacity] = []
    try:
        for each in watched(sizes, [each.label for each in asked], "sizes"):
            found.append(each)
            if out is not None:
                write_capacities(capacity.rows_of([each], work, budget, tried_on), out)
    finally:  # hours of trials may come before one that fails
        if as_json:
            print_json(capacity.rows_of(found, work, budget, tried_on))
        elif found:
            capacity.show_capacities(found, work, budget, how)
        _say_where(out)
    return DONE if any(each.largest is not None for each in found) else SOME_FAILED


def _say_where(out: Path | None) -> None:
    """Says on stderr where the sizes are, if any are there, and what draws them."""
    if out is not None and has_capacities(out):
        drawn = quoted("spbench", "plot", out, "--kind", "capacity")
        click.echo(f"sizes in {out / FILE}; see them with: {drawn}", err=True)


def _refuse(
    work: Workload,
    grows: Sequence[str],
    counts: Sequence[int],
    tried_on: Device | None,
    out: Path | None,
) -> None:
    """Raises Failure for an unknown axis, ranks that cannot be asked about, and a bad --out."""
    if out is not None and out.exists() and not out.is_dir():
        raise Failure(f"--out {out} is a file; name a folder that may be new")
    if out is not None:
        read_capacities(out)  # a damaged file is told before hours of trials
    for axis in grows[1:]:
        if axis not in work.axes:
            raise Failure(f"--axis {axis}: {work.name} has the axes {', '.join(work.axes)}")
    if max(counts) > MAX_RANKS:
        raise Failure(f"--gpus {max(counts)}: too many for one group; use 1 to {MAX_RANKS}")
    for count in counts if tried_on else ():
        if tried_on and (why_not := why_not_here(count, tried_on)):
            raise Failure(f"--gpus {count}: {why_not}")


def _refuse_endless(work: Workload, meshes: Sequence[CaseMesh]) -> None:
    """Raises Failure for stages through which each sample would pass by itself: the limit would be
    that of the inputs of thousands."""
    for mesh in meshes:
        if mesh.pp > 1 and not work.microbatches:
            raise Failure(
                f"--mesh {mesh}: {work.name} passes through the stages sample by sample, so that a "
                "larger batch hardly needs more memory, and each try runs all of it; say into how "
                f"many parts a batch goes, as in --set microbatches={2 * mesh.pp}"
            )


def _tried_on(device: Device) -> str:
    names = [str(gpu.get("name", "")) for gpu in visible_gpus()] if device == "cuda" else []
    return ", ".join(dict.fromkeys(filter(None, names))) or cpu_name()


def _budget(memory: float | None, device: Device) -> float:
    """Bytes of a rank: as given, or of the smallest GPU here. Raises Failure where neither is."""
    if memory is not None:
        return memory
    sizes = [gpu["memory_bytes"] for gpu in visible_gpus() if gpu.get("memory_bytes")]
    if device == "cpu" or not sizes:
        raise Failure("the memory of a rank is not known here; give it as --memory 80GB")
    return float(min(sizes))
