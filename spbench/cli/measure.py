"""Runs the cells that were asked for, shows them as they finish, keeps them in a folder."""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from spbench.bench.fault import Fault
from spbench.cli.exits import UNFIT, Failure
from spbench.launch.join import JoinedLauncher, joined_ranks
from spbench.launch.local import Launcher, LocalLauncher
from spbench.launch.plan import Cell, job_of
from spbench.launch.sweep import Sweep, new_folder, still_to_do
from spbench.report.screen import Screen
from spbench.results.environment import environment
from spbench.results.peaks import known_peak
from spbench.results.reading import ResultsError, read_rows
from spbench.results.record import Record
from spbench.results.run_json import read_run
from spbench.results.store import Store


def measure(
    cells: Sequence[Cell],
    folder: Path,
    *,
    timeout_s: float,
    peak_tflops: float | None,
    reference: str | None,
    fault: Fault | None = None,
    verbose: bool = False,
) -> list[Record] | None:
    """Runs what is left to do, and shows it. None on a rank that is not the first."""
    launcher: Launcher
    if joined_ranks(os.environ) is not None:
        jobs = [job_of(cell.case, timeout_s) for cell in cells]
        wanted = {name: value for job in jobs for name, value in job.environment.items()}
        # These processes live through all cases: what one of them needs is set for all.
        launcher = JoinedLauncher(jobs[0].model_copy(update={"environment": wanted}), fault)
        if not launcher.is_first:
            launcher.follow()
            return None
    try:
        with Store(folder) as store:
            if joined_ranks(os.environ) is None:
                launcher = LocalLauncher(folder / "logs" / "launcher.log")
            return _sweep(cells, store, launcher, timeout_s, peak_tflops, reference, verbose)
    except ResultsError as error:
        raise Failure(str(error), UNFIT) from None


def _sweep(
    cells: Sequence[Cell],
    store: Store,
    launcher: Launcher,
    timeout_s: float,
    peak_tflops: float | None,
    reference: str | None,
    verbose: bool,
) -> list[Record]:
    facts = environment()
    done = [] if not (store.folder / "runs.csv").exists() else read_rows(store.folder).records
    todo = still_to_do(cells, done)
    asked = {
        "argv": sys.argv,
        "reference": reference or read_run(store.folder).get("reference"),
        "cases": [resolved(cell) for cell in cells],
    }
    store.write_run({**asked, **facts})
    launcher.announce([job_of(cell.case, timeout_s) for cell in todo if cell.why_not is None])
    resumed = len(cells) - len(todo)
    with Screen(store.folder, [c.case for c in todo], resumed=resumed, verbose=verbose) as screen:
        sweep = Sweep(
            store=store,
            launcher=launcher,
            run_id=store.folder.resolve().name,
            session=new_session(),
            timeout_s=timeout_s,
            git_commit=facts["git"].get("commit", ""),
            peak_tflops=lambda case: peak_tflops or known_peak(facts["gpus"], case.workload.dtype),
            went=screen.went,
        )
        try:
            for record in sweep.run(todo, screen.started):
                screen.finished(record)
        finally:
            launcher.close()
    everything = read_rows(store.folder).latest()
    ours = {(cell.case.key, cell.case.launch) for cell in cells}
    return [record for record in everything if (record.case, record.launch) in ours]


def new_session() -> str:
    """Different for any two invocations, wherever they run."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def results_folder(out: Path | None, title: str, *, fresh: bool) -> Path:
    """Where to write: ``--out`` (resumed if it is there), beside it, or a new one by date."""
    if out is None:
        safe = re.sub(r"[^A-Za-z0-9.-]+", "-", title)
        return new_folder(Path("results"), f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{safe}")
    if fresh:
        return new_folder(out.parent, out.name)
    if out.exists() and not out.is_dir():
        raise Failure(f"--out {out} is a file; name a folder that may be new")
    if out.is_dir() and any(out.iterdir()) and not (out / "run.json").exists():
        raise Failure(f"--out {out} holds other things than a run; name a new folder, or --fresh")
    return out


def resolved(cell: Cell) -> dict[str, object]:
    """A cell as run.json keeps it."""
    return {
        "key": cell.case.key,
        "why_not": cell.why_not,
        **cell.case.model_dump(mode="json", by_alias=True),
    }
