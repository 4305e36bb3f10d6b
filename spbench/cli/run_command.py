"""``spbench run``: prove, count and time strategies on a workload."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from spbench.cli import choices
from spbench.cli.exits import DONE, SOME_FAILED
from spbench.cli.measure import measure, results_folder
from spbench.cli.requests import by_file, by_flags, checked_cells
from spbench.cli.runs import reference_of
from spbench.judge.side_by_side import side_by_side
from spbench.launch.plan import Request
from spbench.report.screen import show_plan
from spbench.report.tables import show_comparison
from spbench.results.record import Record
from spbench.workload.case import QUICK, Effort
from spbench.workload.sweep_form import MAX_LAUNCHES

DEFAULT_WORKLOAD = "dsp-720m-small"


@click.command("run", short_help="Prove, count and time strategies on a workload.")
@choices.strategy_option
@choices.gpus_option
@click.option("-w", "--workload", default=DEFAULT_WORKLOAD, show_default=True, metavar="NAME|FILE")
@choices.settings_option
@click.option("--dtype", help="Short for --set dtype=...")
@click.option(
    "--sweep", metavar="NAME|FILE", help="A file of cells, in place of -s, -g, -w and --set."
)
@click.option("--launches", type=click.IntRange(1, MAX_LAUNCHES), default=1, show_default=True)
@click.option("--quick", is_flag=True, help="Few iterations; for a first look.")
@click.option(
    "--timeout",
    type=choices.Positive(),
    default=600.0,
    show_default=True,
    help="Seconds that one launch may take.",
)
@choices.device_option
@click.option("--share", is_flag=True, help="One device: rank 0's share, silent collectives.")
@click.option("--skip-invalid", is_flag=True, help="Leave out cells that cannot run, with a row.")
@click.option("--peak-tflops", type=choices.Positive(), help="For MFU.")
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Results directory; resumed if it exists."
)
@click.option("--fresh", is_flag=True, help="Start anew beside an existing --out.")
@click.option("--dry-run", is_flag=True, help="Show the cells and their predicted bytes; run none.")
@choices.json_option
@click.pass_context
def command(
    ctx: click.Context,
    strategies: Sequence[str],
    gpus: str | None,
    workload: str,
    settings: Sequence[str],
    dtype: str | None,
    sweep: str | None,
    launches: int,
    quick: bool,
    timeout: float,
    device: str,
    share: bool,
    skip_invalid: bool,
    peak_tflops: float | None,
    seed: int,
    out: Path | None,
    fresh: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Prove, count and time strategies on a workload.

    Each strategy is first compared with one device: output, input gradient, every weight
    gradient, and the bytes it sends. Only then is it timed. Each launch is a row of runs.csv.
    """
    where = choices.choose_device(device)
    if sweep is not None:
        asked = by_file(ctx, sweep, launches=launches, skip_invalid=skip_invalid)
    else:
        settings = [*settings, *([f"dtype={dtype}"] if dtype else [])]
        asked = by_flags(
            choices.parse_strategies(strategies),
            choices.choose_workload(workload, settings),
            choices.parse_ranks(gpus, where, share=share),
            launches=launches,
            skip_invalid=skip_invalid,
        )
    request = Request(
        combinations=asked.combinations,
        device=where,
        kind="one_gpu_share" if share else "measured",
        launches=asked.launches,
        effort=QUICK if quick else Effort(),
        seed=seed,
    )
    cells = checked_cells(request, skip_invalid=asked.skip_invalid, from_file=sweep is not None)
    if dry_run:
        show_plan(cells, as_json=as_json)
        return DONE
    folder = results_folder(out, asked.title, fresh=fresh)
    records = measure(
        cells, folder, timeout_s=timeout, peak_tflops=peak_tflops, reference=asked.reference
    )
    return DONE if records is None else _shown(records, folder, as_json)


def _shown(records: Sequence[Record], folder: Path, as_json: bool) -> int:
    """The rows, or the strategies side by side; and how it went."""
    if as_json:
        click.echo(json.dumps([asdict(record) for record in records], indent=2))
    else:
        show_comparison(side_by_side(records, reference_of(folder, records)))
    return DONE if all(r.status in ("ok", "skipped") for r in records) else SOME_FAILED
