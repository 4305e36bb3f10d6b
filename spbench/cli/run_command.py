"""``spbench run``: prove, count and time strategies on a workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from spbench.cli import options
from spbench.cli.help import HelpPage
from spbench.cli.options import Count, Positive
from spbench.cli.selection import cluster_of, nodes_options, request_of, selection_options
from spbench.errors import DONE, SOME_FAILED
from spbench.report.dry_run import show_plan
from spbench.report.progress import loading_torch
from spbench.report.tables import print_json
from spbench.results.find_run import find_run, reference_of
from spbench.sweep.devices import (
    Forecast,
    forecast,
    memory_needed,
    no_gpu_here,
    refuse_capturing,
    refuse_compiling,
    visible_gpus,
    why_not_here,
)
from spbench.sweep.plan import cells
from spbench.sweep.request import Request
from spbench.sweep.run import Finished, run
from spbench.sweep.run import run as run_cells
from spbench.sweep.run_folder import folder_for, resumed
from spbench.text import GIVE_OTHERS, counted
from spbench.worker.fault_injection import announce_fault, planted_fault
from spbench.workload.case import Cell
from spbench.workload.sweeps import LAUNCHES, MAX_LAUNCHES


@click.command("run", cls=HelpPage)
@selection_options
@click.option(
    "--launches",
    type=Count(1, MAX_LAUNCHES),
    help=f"Launches of each case.  [default: {LAUNCHES}, or what --sweep says; 1 with --quick]",
)
@click.option("--quick", is_flag=True, help="One launch of few iterations, for a first look.")
@options.deadline_options
@options.duration_option(
    "--max-time",
    None,
    "Deadline of all launches together; what is left can be resumed.  [default: no limit]",
)
@nodes_options
@options.device_option
@click.option("--share", is_flag=True, help="Measure rank 0's share alone; nothing is sent.")
@click.option(
    "--compiled",
    "execution",
    flag_value="compiled",
    default="eager",
    help="Give each sublayer to torch.compile; transfers part its graphs.",
)
@click.option(
    "--graph", is_flag=True, help="Capture a step as one CUDA graph, and time its replays; GPUs."
)
@click.option("--peak-tflops", type=Positive(), help="Peak Tflop/s of a device, for MFU.")
@click.option(
    "--seed",
    type=Count(0, 2**31),
    default=0,
    help="Seed of weights, inputs and the order of launches.",
)
@click.option("--out", type=options.PATH, help="Folder of the results; resumed if it exists.")
@click.option("--fresh", is_flag=True, help="Start a new folder beside an existing --out.")
@click.option("--add", "adds", is_flag=True, help="Let --out hold several workloads or seeds.")
@click.option("-v", "--verbose", is_flag=True, help="Show the seconds of each phase of a launch.")
@click.option("--dry-run", is_flag=True, help="Only show the cells, their bytes, work and memory.")
@options.json_option
@click.pass_context
def run_command(ctx: click.Context, /, dry_run: bool, as_json: bool, **_: Any) -> int:
    """Prove, count and time strategies on a workload.

    Each strategy is first compared with one device: output, input gradient, every weight
    gradient, and the bytes it sends. Only then is it timed. Each launch is a row of runs.csv.
    """
    with loading_torch(verbose=ctx.params["verbose"]):
        request = request_of(ctx)
        planned = cells(request)
        refuse_capturing(cell.case for cell in planned)
        if request.starts:
            refuse_compiling(cell.case for cell in planned if cell.why_not is None)
    announce_fault(request.fault, planned)
    if dry_run:
        from spbench.projection.dryrun.rank_work import rank_works
        from spbench.strategies.describe import predictions

        if request.cluster is None or request.cluster.is_head:
            folder_for(request, planned)
        before = forecast(planned, request.nodes, request.deadlines.launch_s)
        sentences = partial(_sentences, request, planned, before)
        works = partial(rank_works, planned)
        known = predictions(planned), before.launch_s
        show_plan(planned, *known, sentences, works, as_json=as_json)
        return DONE
    return show_finished(run(request, planned), as_json=as_json)


def _sentences(
    request: Request, planned: Sequence[Cell], before: Forecast, peak_bytes: Mapping[str, int]
) -> list[str]:
    """What the launches will take, by the counted peaks of a rank, and what cannot start here."""
    cases = [cell.case for cell in planned if cell.why_not is None]
    memory = memory_needed(peak_bytes, cases, before.machines) if before.machines else ""
    return [*before.sentences, *filter(None, [memory]), *_not_here(request)]


def _not_here(request: Request) -> list[str]:
    """Sentences on numbers of ranks that this machine could not start."""
    counts = sorted({each.ranks for each in request.combinations})
    if request.device == "cuda" and not visible_gpus():
        # They are asked about a GPU's step on purpose: a CPU's would be no answer.
        return [f"{counted(ranks, 'rank')} cannot start here: {no_gpu_here()}" for ranks in counts]
    share = request.kind == "one_gpu_share"
    why_nots = {
        why: ranks
        for ranks in counts
        if (why := why_not_here(ranks, request.device, share=share, nodes=request.nodes))
    }
    return [f"{counted(ranks, 'rank')} cannot start here: {why}" for why, ranks in why_nots.items()]


def show_finished(finished: Finished | None, *, as_json: bool) -> int:
    """Prints the rows as JSON, or the strategies side by side, and returns the exit code."""
    if finished is None:
        return DONE
    if as_json:
        print_json([asdict(record) for record in finished.records])
        return exit_code(finished)
    # These import pandas, which takes 0.3 s: not before ranks start.
    from spbench.analysis.compare_strategies import compare_strategies
    from spbench.analysis.launches import cases_of
    from spbench.report.strategy_table import show_comparison
    from spbench.results.runs_csv import frame_of

    frame = frame_of(finished.records)
    cases = cases_of(frame)
    lines = compare_strategies(frame, reference_of(finished.folder, frame), cases=cases)
    show_comparison(lines)
    return exit_code(finished)


def exit_code(finished: Finished) -> int:
    """0 if every cell that was asked for has a good row, else 3 (``SOME_FAILED``): a crash leaves
    its cell to a resumed run. Says so where nothing was measured."""
    if {record.status for record in finished.records} == {"skipped"}:
        click.echo(f"nothing was measured: every case was left out; {GIVE_OTHERS}", err=True)
        return SOME_FAILED
    return SOME_FAILED if finished.unfinished else DONE


# ``spbench resume``: do what a run has left to do.

OWN = "[default: the run's]"


@click.command("resume", cls=HelpPage)
@options.run_argument
@options.duration_option("--timeout", None, f"Deadline of one launch.  {OWN}")
@options.duration_option(
    "--hang-after", None, f"Give up a launch after this long without progress.  {OWN}"
)
@options.duration_option("--max-time", None, f"Deadline of all launches together.  {OWN}")
@nodes_options
@click.option("-v", "--verbose", is_flag=True, help="Show the seconds of each phase of a launch.")
@options.json_option
def resume_command(
    run: Path | None,
    timeout: float | None,
    hang_after: float | None,
    max_time: float | None,
    verbose: bool,
    as_json: bool,
    **place: Any,
) -> int:
    """Do what RUN has left to do, as its run.json says; without RUN, the latest.

    The same workloads, strategies, ranks, launches and deadlines, into the same folder. What has
    a good row is not measured again.
    """
    cluster = cluster_of(**place)
    with loading_torch(verbose=verbose):
        request, cells = resumed(find_run(run), cluster)
    given = {"launch_s": timeout, "hang_s": hang_after, "sweep_s": max_time}
    limits = {name: limit for name, limit in given.items() if limit is not None}
    fault = planted_fault()
    announce_fault(fault, cells)
    deadlines = replace(request.deadlines, **limits)
    request = replace(request, deadlines=deadlines, fault=fault, verbose=verbose)
    return show_finished(run_cells(request, cells), as_json=as_json)
