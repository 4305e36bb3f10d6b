"""``spbench resume``: do what a run has left to do."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from spbench.cli import options
from spbench.cli.cluster_options import cluster_of, nodes_options
from spbench.cli.help_page import HelpPage
from spbench.cli.run_command import show_finished
from spbench.report.progress import loading_torch
from spbench.results.find_run import find_run
from spbench.sweep.run import run as run_cells
from spbench.sweep.run_folder import resumed
from spbench.worker.fault_injection import announce_fault, planted_fault

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
def command(
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
