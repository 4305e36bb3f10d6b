"""Base and head of a check: their rows, launchers and seats, and their launches, which alternate.

On CPU both launches exist at the same time, and their timed steps take turns (``turn_server.py``),
if there is memory for both and both commits' code knows turns; otherwise one launch follows the
other. On GPUs one always follows the other: two launches would share each GPU's memory, and a GPU
drifts less than shared cores do. Which of the two goes first changes from launch to launch.

All ranks that a launcher forks share its memory layout and its hash seed, which may make their
steps longer or shorter. So where times of base and head are judged, both launchers end after each
pair of launches: the interval then sees that effect as spread, and does not take it for the code's.

Measures a check in stages, and no longer than a verdict takes.

Head is measured against known rows of a baseline, or base and head alternately. Each look at a
growing number of launches is another chance to fail by luck alone. So all looks of a check share
``ALPHA``: those that can fail a case come at fixed numbers of launches, and each may spend a fixed
share of it (error spending, Jennison and Turnbull 2000, ch. 7; by Bonferroni, however the looks
depend on each other).
"""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

import click
import pandas
import psutil

from spbench.analysis.comparable import matched
from spbench.analysis.compare_runs import compare_runs
from spbench.analysis.findings import Finding, Margins, Metric
from spbench.analysis.intervals import LEAST_LAUNCHES
from spbench.analysis.power import quiet_launches
from spbench.analysis.verdict import SHARES, Graded, Judgement, is_timed, judged
from spbench.errors import or_none
from spbench.launch.gpu_memory import GpuMemory
from spbench.launch.launcher import Deadlines
from spbench.launch.local import LocalLauncher
from spbench.launch.turn_seat import Seat
from spbench.regression.turn_server import TurnServer
from spbench.report.progress import Screen
from spbench.results.find_run import samples_of_turns
from spbench.results.hand_over import RowStatus
from spbench.results.machine import allowed, environment
from spbench.results.provenance import Provenance, provenance
from spbench.results.record import Record
from spbench.results.runs_csv import latest, read_runs
from spbench.results.store import Store
from spbench.sweep.plan import in_rounds
from spbench.sweep.run import Sweep
from spbench.sweep.run_folder import as_in_run_json, new_session
from spbench.text import counted
from spbench.workload.case import COUNTED, Case, Cell

MEMORY_MARGIN = 1.2
"""Factor on the measured peaks, since two launches are never quite alike."""


@final
@dataclass(frozen=True, kw_only=True)
class Runner:
    """Runs the cases of one commit: base or head."""

    name: str
    """``base`` or ``now``, as messages and folders call it."""
    sweep: Sweep
    seat: Seat | None = None
    """The seat with which its launches take turns with those of the other runner."""
    tries_all: bool = False
    """Whether to launch what strategies decline here: the code of another commit decides."""
    renews_launcher: bool = False
    """Whether the launcher ends after each pair of launches."""

    def run(self, cell: Cell) -> list[tuple[Runner, Record]]:
        done = self.sweep.run(replace(cell, why_not=None) if self.tries_all else cell)
        return [] if done is None else [(self, done[0])]

    def leave_turns(self) -> None:
        if self.seat is not None:
            self.seat.leave()


def run_alternately(
    runners: Sequence[Runner], cell: Cell
) -> tuple[list[tuple[Runner, Record]], bool]:
    """A record of ``cell`` by each runner, once all are written; and whether the launches would
    have taken turns if there had been memory for both."""
    first, *others = runners if cell.case.launch % 2 == 0 else reversed(runners)
    if others:
        return _run_pair(first, others[0], cell)
    return first.run(cell), False


def _run_pair(
    first: Runner, second: Runner, cell: Cell
) -> tuple[list[tuple[Runner, Record]], bool]:
    """Launches the second while the first waits for its first turn, or else after its end."""
    second_rows: list[tuple[Runner, Record]] = []
    short_of_memory = False

    def launch_second() -> None:
        nonlocal short_of_memory
        short_of_memory = not has_memory_for_another()
        if not short_of_memory:
            second_rows.extend(second.run(cell))
        second.leave_turns()

    if first.seat is not None and second.seat is not None:
        first.seat.expect(launch_second)
        second.seat.expect()
    try:
        first_rows = first.run(cell)
        first.leave_turns()
        return first_rows + (second_rows or second.run(cell)), short_of_memory
    finally:
        for runner in (first, second):
            runner.leave_turns()
            if runner.renews_launcher:
                runner.sweep.launcher.close()


def has_memory_for_another() -> bool:
    """Whether another launch like the running one would find memory: as much as all processes that
    this one has started held at their peaks. Pages that they share count for each."""
    peaks = sum(_peak_bytes(child.pid) for child in psutil.Process().children(recursive=True))
    free = psutil.virtual_memory().available
    limit = allowed().memory_bytes
    return MEMORY_MARGIN * peaks < (free if limit is None else min(free, limit - peaks))


def _peak_bytes(pid: int) -> int:
    """The process's current memory where the system does not tell its peak; 0 if it has ended."""
    status = Path(f"/proc/{pid}/status")
    text = or_none(lambda: status.read_text(encoding="ascii", errors="replace")) or ""
    if peak := re.search(r"^VmHWM:\s*(\d+)", text, re.MULTILINE):
        return int(peak[1]) * 1024
    return or_none(lambda: int(psutil.Process(pid).memory_info().rss)) or 0


@dataclass(frozen=True, kw_only=True)
class Code:
    """The code that base or head runs: that of this process, unless ``variables`` say otherwise."""

    name: str
    """``base`` or ``now``, which also names the folder of its rows."""
    variables: Mapping[str, str | None] = field(default_factory=dict)
    """Variables with which ranks run another tree's code."""
    commit: str = ""
    is_base: bool = False
    """Whether it is exactly its commit, whose own strategies say which cases they decline."""


@contextmanager
def open_runners(
    folder: Path, codes: Sequence[Code], cells: Sequence[Cell], deadlines: Deadlines
) -> Iterator[list[Runner]]:
    """Opens a runner for each code. Raises Failure where rows cannot be written, or the memory of a
    GPU is not released."""
    session, facts = new_session(), environment()
    cases = [cell.case for cell in cells]
    planned = [as_in_run_json(cell) for cell in cells]
    timed = any(case.budget != COUNTED for case in cases)
    take_turns = len(codes) > 1 and all(case.device == "cpu" for case in cases)
    with ExitStack() as stack:
        runners: list[Runner] = []
        seats = _seats(stack) if take_turns else [None] * len(codes)
        gpu_memory = GpuMemory.of(cases)
        for code, seat in zip(codes, seats, strict=True):
            store = stack.enter_context(Store(folder / code.name))
            git = {"commit": code.commit, "dirty": False} if code.is_base else facts["git"]
            store.write_run({"argv": sys.argv, "cases": planned, **facts, "git": git})
            log = store.folder / "logs" / "launcher.log"
            launcher = LocalLauncher(log, code.variables, gpu_memory=gpu_memory, seat=seat)
            stack.callback(launcher.close)
            sweep = Sweep(
                store=store,
                launcher=launcher,
                run_id=folder.resolve().name,
                session=session,
                deadlines=deadlines,
                git_commit=code.commit or facts["git"].get("commit", ""),
                gpus=facts["gpus"],
            )
            runners.append(
                Runner(
                    name=code.name,
                    sweep=sweep,
                    seat=seat,
                    tries_all=code.is_base,
                    renews_launcher=timed,
                )
            )
        yield runners
        folders = [str(runner.sweep.store.folder) for runner in runners]
        command = shlex.join(["spbench", "compare", *folders])
        click.echo(f"show the rows of this check with: {command}", err=True)


def _seats(stack: ExitStack) -> Sequence[Seat | None]:
    """The seats of base and head; none where the system has no Unix sockets."""
    try:
        return stack.enter_context(TurnServer()).seats
    except OSError as error:
        click.echo(
            f"no socket can be made in {tempfile.gettempdir()} ({error.strerror or error}): "
            f"launches of base and head run one after the other, without alternating steps; set "
            f"TMPDIR to another folder",
            err=True,
        )
        return [None, None]


RETRIED: tuple[RowStatus, ...] = ("crash", "comm_error", "hang", "timeout")
"""Failures that may be chance. Wrong results and exhausted memory would only come again."""


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """What is judged, how strictly, and how often it is measured."""

    margins: Margins
    metrics: Sequence[Metric]
    launches: int
    deadlines: Deadlines


@final
@dataclass(frozen=True, kw_only=True)
class LiveMeasurement:
    """Launches for a check, made as its stages ask for them."""

    folder: Path
    runners: Sequence[Runner]
    """Base and head; or head alone, against ``known``."""
    cases: Sequence[Case]
    options: CheckOptions
    known: pandas.DataFrame | None = None
    """The rows of the baseline, where base is not measured."""

    def measure(self, launches: range, only: Collection[str] | None = None) -> None:
        """Makes these launches of all cases, or only of the cases with these keys. Retries a launch
        once if its failure may be chance, with the other launch of its round: a port that was taken
        must neither fail the check nor hide a regression."""
        cases = [case for case in self.cases if only is None or case.key in only]
        if launches.start >= self.options.launches:
            click.echo(f"{counted(len(cases), 'case')} in doubt: measured again", err=True)
        failed = self._launch(in_rounds(cases, launches, seed=0))
        if failed:
            click.echo(f"{counted(len(failed), 'launch')} failed: tried once more", err=True)
            self._launch(failed)

    def _launch(self, cells: Sequence[Cell]) -> list[Cell]:
        """Returns the cells with a failure that may be chance, of base or of head."""
        failed: set[tuple[str, int]] = set()
        short_of_memory = 0
        shown = [cell.case for cell in cells for _ in self.runners]
        with Screen(self.folder, shown, goes_on=True) as screen:
            for cell in cells:
                screen.started(cell.case)
                rows, was_short = run_alternately(self.runners, cell)
                short_of_memory += was_short
                for runner, record in rows:
                    screen.finished(record, runner.name if len(self.runners) > 1 else "")
                    if record.status in RETRIED:
                        failed.add((record.case, record.launch))
        if short_of_memory:
            click.echo(
                f"{counted(short_of_memory, 'round')}: not enough memory to launch base and "
                f"head at the same time; they ran one after the other, without alternating steps",
                err=True,
            )
        return [cell for cell in cells if (cell.case.key, cell.case.launch) in failed]

    def findings(self) -> list[Finding]:
        """Compares base and head over all launches so far."""
        folders = [runner.sweep.store.folder for runner in self.runners]
        measured = [latest(read_runs(folder)) for folder in folders]
        margins, metrics = self.options.margins, self.options.metrics
        if self.known is not None:
            return compare_runs(self.known, measured[0], margins, metrics=metrics)
        before, after = measured
        samples = samples_of_turns(folders[0], before), samples_of_turns(folders[1], after)
        return compare_runs(before, after, margins, metrics=metrics, samples=samples)

    def baseline_launches(self) -> Mapping[str, int] | None:
        """Quiet launches of each case in the baseline; None where base is measured here too."""
        if self.known is None:
            return None
        measured = latest(read_runs(self.runners[0].sweep.store.folder))
        quiet = quiet_launches(self.known)
        pairs = matched(self.known, measured)
        return {new: quiet.get(old or "", 0) for old, new in pairs if new is not None}


def in_stages(measurement: LiveMeasurement, launches: int, margins: Margins) -> Judgement:
    """Measures in up to five stages: one launch of each case, which shows what can be judged at
    all; the other ``launches`` of the cases whose time can be judged; as many again of the cases
    that would fail or are undecided; and then, twice, of those that are still undecided.
    """
    measurement.measure(range(1))
    judgement = judged(measurement.findings(), margins)
    known = measurement.baseline_launches()
    # A baseline with fewer launches than an interval takes never allows a verdict.
    enough = {case for case, quiet in (known or {}).items() if quiet >= LEAST_LAUNCHES}
    timed = [time.case for time in judgement.timed if known is None or time.case in enough]
    if not timed:
        return judgement
    if launches > 1:
        measurement.measure(range(1, launches), timed)
        judgement = judged(measurement.findings(), margins)
    doubtful = _times(judgement, timed, "fail", "undecided")
    for times, share in enumerate(SHARES, start=1):
        if not doubtful:
            break
        again = range(times * launches, (times + 1) * launches)
        measurement.measure(again, [time.finding.case for time in doubtful])
        judgement = judged(measurement.findings(), margins, share=share)
        doubtful = list(filter(_lacks_launches, _times(judgement, timed, "undecided")))
    return judgement


def _times(judgement: Judgement, cases: Sequence[str], *grades: str) -> list[Graded]:
    """What was judged with one of these ``grades`` of the times of these ``cases``."""
    times = [graded for graded in judgement.graded if is_timed(graded.finding)]
    return [time for time in times if time.grade in grades and time.finding.case in cases]


def _lacks_launches(graded: Graded) -> bool:
    """Whether more launches may decide it: noise need not end with them."""
    comparison = graded.finding.comparison
    return comparison is not None and not comparison.is_noisy


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A judgement of ``head`` against ``base``, each a run."""

    judgement: Judgement
    base: Path
    head: Path

    def origins(self) -> tuple[Provenance, Provenance]:
        """Where the rows of base and head come from."""
        base, head = (provenance(run, latest(read_runs(run))) for run in (self.base, self.head))
        return base, head
