"""``spbench run``: prove, count and time strategies on a workload."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from spbench.cli import choices
from spbench.cli.exits import DONE, SOME_FAILED, UNFIT, Failure
from spbench.judge.side_by_side import side_by_side
from spbench.launch.join import JoinedLauncher, joined_ranks
from spbench.launch.local import Launcher, LocalLauncher
from spbench.launch.plan import Cell, Request, job_of, plan
from spbench.launch.sweep import Sweep, new_folder, still_to_do
from spbench.report.screen import Screen, show_plan
from spbench.report.tables import show_comparison
from spbench.results.environment import environment
from spbench.results.peaks import known_peak
from spbench.results.record import Record
from spbench.results.store import ResultsError, Store, read_rows
from spbench.strategies.registry import UnknownStrategyError
from spbench.workload.case import QUICK, Effort
from spbench.workload.catalogue import find
from spbench.workload.load import WorkloadError, with_settings
from spbench.workload.workload import Workload

DEFAULT_WORKLOAD = "dsp-720m-small"
OWN_COLUMNS = ("name", "source", "axes", "batch", "dtype", "mode", "checkpointing")


@click.command("run", short_help="Prove, count and time strategies on a workload.")
@choices.strategy_option
@choices.gpus_option
@click.option("-w", "--workload", default=DEFAULT_WORKLOAD, show_default=True, metavar="NAME|FILE")
@choices.settings_option
@click.option("--dtype", help="Short for --set dtype=...")
@click.option("--launches", type=click.IntRange(1, 1000), default=1, show_default=True)
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
def command(
    strategies: Sequence[str],
    gpus: str | None,
    workload: str,
    settings: Sequence[str],
    dtype: str | None,
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
    names = choices.parse_strategies(strategies)
    settings = [*settings, *([f"dtype={dtype}"] if dtype else [])]
    chosen = choose_workload(workload, settings)
    where = choices.choose_device(device)
    request = Request(
        workload=chosen,
        strategies=names,
        ranks=choices.parse_ranks(gpus, where, share=share),
        device=where,
        kind="one_gpu_share" if share else "measured",
        launches=launches,
        effort=QUICK if quick else Effort(),
        seed=seed,
    )
    cells = checked_cells(request, skip_invalid)
    if dry_run:
        show_plan(cells, as_json=as_json)
        return DONE
    folder = results_folder(out, chosen.name, fresh=fresh)
    records = measure(cells, folder, timeout_s=timeout, peak_tflops=peak_tflops)
    if records is None:
        return DONE
    if as_json:
        click.echo(json.dumps([asdict(record) for record in records], indent=2))
    else:
        show_comparison(side_by_side(records))
    return DONE if all(r.status in ("ok", "skipped") for r in records) else SOME_FAILED


def choose_workload(name: str, settings: Sequence[str]) -> Workload:
    """The workload with its settings; what rows do not show in a column is in its name."""
    try:
        found = with_settings(find(name), settings) if settings else find(name)
    except WorkloadError as error:
        raise Failure(str(error)) from None
    shown = [s for s in settings if s.partition("=")[0].split(".")[0] not in OWN_COLUMNS]
    return found.model_copy(update={"name": " ".join([found.name, *shown])})


def checked_cells(request: Request, skip_invalid: bool) -> list[Cell]:
    """The cells of the sweep; a Failure if one cannot run and none are to be skipped."""
    try:
        cells = plan(request)
    except UnknownStrategyError as error:
        raise Failure(str(error)) from None
    for cell in cells:
        if cell.why_not is not None and not skip_invalid:
            raise Failure(
                f"strategy {cell.case.strategy!r} cannot run {request.workload.name} on "
                f"{cell.case.ranks} ranks: {cell.why_not}.\n"
                f"  Or --skip-invalid leaves such cells out of a sweep."
            )
    return cells


def measure(
    cells: Sequence[Cell],
    folder: Path,
    *,
    timeout_s: float,
    peak_tflops: float | None,
) -> list[Record] | None:
    """Runs what is left to do, and shows it. None on a rank that is not the first."""
    launcher: Launcher
    if joined_ranks(os.environ) is not None:
        jobs = [job_of(cell.case, timeout_s) for cell in cells]
        wanted = {name: value for job in jobs for name, value in job.environment.items()}
        # These processes live through all cases: what one of them needs is set for all.
        launcher = JoinedLauncher(jobs[0].model_copy(update={"environment": wanted}))
        if not launcher.is_first:
            launcher.follow()
            return None
    try:
        with Store(folder) as store:
            if joined_ranks(os.environ) is None:
                launcher = LocalLauncher(folder / "logs" / "launcher.log")
            return _sweep(cells, store, launcher, timeout_s, peak_tflops)
    except ResultsError as error:
        raise Failure(str(error), UNFIT) from None


def _sweep(
    cells: Sequence[Cell],
    store: Store,
    launcher: Launcher,
    timeout_s: float,
    peak_tflops: float | None,
) -> list[Record]:
    facts = environment()
    done = [] if not (store.folder / "runs.csv").exists() else read_rows(store.folder).latest()
    todo = still_to_do(cells, done)
    store.write_run({"argv": sys.argv, "cases": [_resolved(cell) for cell in cells], **facts})
    launcher.announce([job_of(cell.case, timeout_s) for cell in todo if cell.why_not is None])
    sweep = Sweep(
        store=store,
        launcher=launcher,
        run_id=store.folder.resolve().name,
        timeout_s=timeout_s,
        git_commit=facts["git"].get("commit", ""),
        peak_tflops=peak_tflops or known_peak(facts["gpus"], cells[0].case.workload.dtype),
    )
    with Screen(store.folder, [c.case for c in todo], resumed=len(cells) - len(todo)) as screen:
        try:
            for record in sweep.run(todo, screen.started):
                screen.finished(record)
        finally:
            launcher.close()
    everything = read_rows(store.folder).latest()
    asked = {(cell.case.key, cell.case.launch) for cell in cells}
    return [record for record in everything if (record.case, record.launch) in asked]


def results_folder(out: Path | None, workload: str, *, fresh: bool) -> Path:
    """Where to write: ``--out`` (resumed if it is there), beside it, or a new one by date."""
    if out is None:
        safe = re.sub(r"[^A-Za-z0-9.-]+", "-", workload)
        return new_folder(Path("results"), f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{safe}")
    if fresh:
        return new_folder(out.parent, out.name)
    if out.exists() and not out.is_dir():
        raise Failure(f"--out {out} is a file; name a folder that may be new")
    if out.is_dir() and any(out.iterdir()) and not (out / "run.json").exists():
        raise Failure(f"--out {out} holds other things than a run; name a new folder, or --fresh")
    return out


def _resolved(cell: Cell) -> dict[str, object]:
    return {
        "key": cell.case.key,
        "why_not": cell.why_not,
        **cell.case.model_dump(mode="json", by_alias=True),
    }
