"""``spbench run``: prove, count and time strategies on a workload."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from spbench.analysis.compare_strategies import compare_strategies
from spbench.cli import options
from spbench.cli.cluster_options import nodes_options
from spbench.cli.options import Duration
from spbench.cli.selection import Selection, selection_options
from spbench.errors import DONE, SOME_FAILED, Failure
from spbench.launch.cluster import Cluster
from spbench.launch.launcher import Deadlines
from spbench.report.dry_run import show_plan
from spbench.report.strategy_table import show_comparison
from spbench.results.find_run import reference_of
from spbench.results.reading import read_rows
from spbench.results.record import Record
from spbench.sweep import devices
from spbench.sweep.fault_check import planted_fault, said_fault
from spbench.sweep.output_folder import Destination
from spbench.sweep.plan import Request
from spbench.sweep.request import checked_cells
from spbench.sweep.run import Plan, measure
from spbench.sweep.sweep import still_to_do
from spbench.workload.case import QUICK, MeasurementBudget
from spbench.workload.sweep_schema import LAUNCHES, MAX_LAUNCHES


@click.command("run", short_help="Prove, count and time strategies on a workload.")
@selection_options
@click.option(
    "--launches",
    type=click.IntRange(1, MAX_LAUNCHES),
    help=f"Of each case.  [default: {LAUNCHES}, or what --sweep says; 1 with --quick]",
)
@click.option("--quick", is_flag=True, help="One launch, few iterations; for a first look.")
@options.timeout_option
@options.hang_option
@click.option(
    "--max-time",
    type=Duration(),
    help="For all launches together; what is left can be resumed.  [default: no limit]",
)
@nodes_options
@options.device_option
@click.option("--share", is_flag=True, help="One device: rank 0's share, silent collectives.")
@click.option("--peak-tflops", type=options.Positive(), help="For MFU.")
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Results directory; resumed if it exists."
)
@click.option("--fresh", is_flag=True, help="Start anew beside an existing --out.")
@click.option("-v", "--verbose", is_flag=True, help="Say where each launch's time went.")
@click.option("--dry-run", is_flag=True, help="Show the cells and their predicted bytes; run none.")
@options.json_option
@click.pass_context
def command(
    ctx: click.Context,
    selection: Selection,
    cluster: Cluster | None,
    launches: int | None,
    quick: bool,
    timeout: float,
    hang_after: float,
    max_time: float | None,
    device: str,
    share: bool,
    peak_tflops: float | None,
    seed: int,
    out: Path | None,
    fresh: bool,
    verbose: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Prove, count and time strategies on a workload.

    Each strategy is first compared with one device: output, input gradient, every weight
    gradient, and the bytes it sends. Only then is it timed. Each launch is a row of runs.csv.
    """
    planted_fault()
    where = devices.choose_device(device)
    launches = 1 if quick and launches is None else launches
    if share and cluster is not None:
        raise Failure("--share is one process; leave out --nnodes, or start it without srun")
    nodes = 1 if cluster is None else cluster.nodes
    asked = selection.asked(ctx, where, launches, share=share, nodes=nodes)
    request = Request(
        combinations=asked.combinations,
        device=where,
        kind="one_gpu_share" if share else "measured",
        launches=asked.launches,
        effort=QUICK if quick else MeasurementBudget(),
        seed=seed,
    )
    cells = checked_cells(
        request, skip_invalid=asked.skip_invalid, from_file=asked.from_file, nodes=nodes
    )
    fault = said_fault([cell.case for cell in cells if cell.why_not is None])
    if dry_run:
        show_plan(cells, as_json=as_json)
        return DONE
    destination = Destination(out, asked.title, fresh=fresh)
    sweep_s = math.inf if max_time is None else max_time
    plan = Plan(
        cells=cells,
        destination=destination,
        deadlines=Deadlines(launch_s=timeout, hang_s=hang_after, sweep_s=sweep_s),
        cluster=cluster,
        peak_tflops=peak_tflops,
        reference=asked.reference,
        fault=fault,
        verbose=verbose,
    )
    records = measure(plan)
    if records is None:
        return DONE
    _show(records, destination.folder, as_json)
    statuses = {record.status for record in records}
    if statuses == {"skipped"}:
        said = "give other strategies, ranks or workloads"
        click.echo(f"nothing was measured: every case was left out; {said}", err=True)
        return SOME_FAILED
    everything = read_rows(destination.folder).records
    return SOME_FAILED if still_to_do(cells, everything) else DONE


def _show(records: Sequence[Record], folder: Path, as_json: bool) -> None:
    """The rows, or the strategies side by side."""
    if as_json:
        click.echo(json.dumps([asdict(record) for record in records], indent=2))
    else:
        show_comparison(compare_strategies(records, reference_of(folder, records)))
