"""Base and head of a check: launched alternately, in stages, and no longer than a verdict takes.

One launch of the base follows one of the head, and which of the two goes first changes from launch
to launch, so that a machine that drifts favours neither. All ranks that a launcher forks share its
memory layout and its hash seed, which may make their steps longer or shorter. So where times are
judged, both launchers end after each pair of launches: the interval then sees that effect as
spread, and does not take it for the code's.

Head is measured against the rows of a baseline, or base and head both. Each look at a growing
number of launches is another chance to fail by luck alone. So all looks of a check share ``ALPHA``:
those that can fail a case come at fixed numbers of launches, and each may spend a fixed share of it
(error spending, Jennison and Turnbull 2000, ch. 7; by Bonferroni, however the looks depend on each
other).
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

import click
import pandas

from spbench.analysis.comparable import matched
from spbench.analysis.compare_runs import compare_runs
from spbench.analysis.findings import Finding, Margins, Metric
from spbench.analysis.intervals import LEAST_LAUNCHES
from spbench.analysis.power import quiet_launches
from spbench.analysis.verdict import SHARES, Graded, Judgement, is_timed, judged
from spbench.launch.gpu_memory import GpuMemory
from spbench.launch.launcher import Deadlines
from spbench.launch.local import LocalLauncher
from spbench.report.progress import Screen
from spbench.results.hand_over import RowStatus
from spbench.results.machine import environment
from spbench.results.provenance import Provenance, provenance
from spbench.results.record import Record
from spbench.results.runs_csv import latest, read_runs
from spbench.results.store import Store
from spbench.sweep.plan import in_rounds
from spbench.sweep.run import Sweep
from spbench.sweep.run_folder import as_in_run_json, new_session
from spbench.text import counted
from spbench.workload.case import COUNTED, Case, Cell

RETRIED: tuple[RowStatus, ...] = ("crash", "comm_error", "hang", "timeout")
"""Failures that may be chance. Wrong results and exhausted memory would only come again."""


@final
@dataclass(frozen=True, kw_only=True)
class Runner:
    """Runs the cases of one commit: base or head."""

    name: str
    """``base`` or ``now``, as messages and folders call it."""
    sweep: Sweep
    tries_all: bool = False
    """Whether to launch what strategies decline here: the code of another commit decides."""
    renews_launcher: bool = False
    """Whether the launcher ends after each pair of launches."""

    def run(self, cell: Cell) -> Record | None:
        """The row of a launch; None where the sweep has it already."""
        done = self.sweep.run(replace(cell, why_not=None) if self.tries_all else cell)
        return None if done is None else done[0]


def run_alternately(runners: Sequence[Runner], cell: Cell) -> list[tuple[Runner, Record]]:
    """A row of ``cell`` by each runner: base goes first in even launches, head in odd ones."""
    in_order = runners if cell.case.launch % 2 == 0 else [*reversed(runners)]
    rows = [(runner, row) for runner in in_order if (row := runner.run(cell)) is not None]
    # Only now: a launcher that ends between the two would disturb the second one's steps.
    for runner in in_order:
        if runner.renews_launcher:
            runner.sweep.launcher.close()
    return rows


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
    """Opens a runner for each code.

    Parameters
    ----------
    folder:
        A new folder, in which each code has its rows in a folder of its own.
    codes:
        Base and head, or head alone.
    cells:
        The launches that are planned.
    deadlines:
        When to give up a launch.

    Raises
    ------
    Failure
        Where rows cannot be written, or the memory of a GPU is not released.
    """
    session, facts = new_session(), environment()
    cases = [cell.case for cell in cells]
    planned = [as_in_run_json(cell) for cell in cells]
    timed = any(case.budget != COUNTED for case in cases)
    with ExitStack() as stack:
        runners: list[Runner] = []
        gpu_memory = GpuMemory.of(cases)
        for code in codes:
            store = stack.enter_context(Store(folder / code.name))
            git = {"commit": code.commit, "dirty": False} if code.is_base else facts["git"]
            store.write_run({"argv": sys.argv, "cases": planned, **facts, "git": git})
            log = store.folder / "logs" / "launcher.log"
            launcher = LocalLauncher(log, code.variables, gpu_memory=gpu_memory)
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
                Runner(name=code.name, sweep=sweep, tries_all=code.is_base, renews_launcher=timed)
            )
        yield runners
        folders = [str(runner.sweep.store.folder) for runner in runners]
        command = shlex.join(["spbench", "compare", *folders])
        click.echo(f"show the rows of this check with: {command}", err=True)


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
    """Base and head; or head alone, against ``kept``."""
    cases: Sequence[Case]
    options: CheckOptions
    kept: pandas.DataFrame | None = None
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
        shown = [cell.case for cell in cells for _ in self.runners]
        with Screen(self.folder, shown, goes_on=True) as screen:
            for cell in cells:
                screen.started(cell.case)
                for runner, record in run_alternately(self.runners, cell):
                    screen.finished(record, runner.name if len(self.runners) > 1 else "")
                    if record.status in RETRIED:
                        failed.add((record.case, record.launch))
        return [cell for cell in cells if (cell.case.key, cell.case.launch) in failed]

    def findings(self) -> list[Finding]:
        """Compares base and head over all launches so far."""
        folders = [runner.sweep.store.folder for runner in self.runners]
        measured = [latest(read_runs(folder)) for folder in folders]
        margins, metrics = self.options.margins, self.options.metrics
        if self.kept is not None:
            return compare_runs(self.kept, measured[0], margins, metrics=metrics)
        before, after = measured
        return compare_runs(before, after, margins, metrics=metrics)

    def baseline_launches(self) -> Mapping[str, int] | None:
        """Quiet launches of each case in the baseline; None where base is measured here too."""
        if self.kept is None:
            return None
        measured = latest(read_runs(self.runners[0].sweep.store.folder))
        quiet = quiet_launches(self.kept)
        pairs = matched(self.kept, measured)
        return {new: quiet.get(old or "", 0) for old, new in pairs if new is not None}


def in_stages(measurement: LiveMeasurement, launches: int, margins: Margins) -> Judgement:
    """Measures in up to five stages: one launch of each case, which shows what can be judged at
    all; the other ``launches`` of the cases whose time can be judged; as many again of the cases
    that would fail or are undecided; and then, twice, of those that are still undecided.
    """
    measurement.measure(range(1))
    judgement = judged(measurement.findings(), margins)
    kept = measurement.baseline_launches()
    # A baseline with fewer launches than an interval takes never allows a verdict.
    enough = {case for case, quiet in (kept or {}).items() if quiet >= LEAST_LAUNCHES}
    timed = [time.case for time in judgement.timed if kept is None or time.case in enough]
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
