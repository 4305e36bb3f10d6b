"""What a check measures: one side against what is known, or two that take turns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from spbench.analysis.comparable import matched
from spbench.analysis.compare_runs import compare_runs
from spbench.analysis.findings import Finding, Margins, Metric
from spbench.analysis.verdict import Judgement
from spbench.launch.launcher import Deadlines
from spbench.regression.alternate import Runner, run_alternately
from spbench.regression.sequential import in_stages
from spbench.report.progress import Screen
from spbench.results.find_run import traces_of
from spbench.results.reading import read_rows
from spbench.results.record import Record
from spbench.results.sample import Status
from spbench.sweep.plan import cells_of
from spbench.text import counted
from spbench.workload.case import Case, Cell

PERHAPS_CHANCE: tuple[Status, ...] = ("crash", "comm_error", "hang", "timeout")
"""Wrong results and want of memory come again."""


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """What is judged, how strictly, and how often it is measured."""

    margins: Margins
    metrics: Sequence[Metric]
    launches: int
    deadlines: Deadlines


@dataclass(frozen=True, kw_only=True)
class LiveMeasurement:
    """One side that is measured against what is known, or two that take turns."""

    folder: Path
    runners: Sequence[Runner]
    cases: Sequence[Case]
    options: CheckOptions
    known: Sequence[Record] = field(default_factory=list)
    """The first side's rows, where they are not measured here."""

    def measure(self, launches: Iterable[int], only: Iterable[str] | None = None) -> None:
        """A launch that fails for what may be chance is tried once more, with the other side's of
        its round: a port that was taken must neither fail the check nor hide what would."""
        keys = None if only is None else set(only)
        cases = [case for case in self.cases if keys is None or case.key in keys]
        failed = self._launch(cells_of(cases, launches, seed=0))
        if failed:
            click.echo(f"{counted(len(failed), 'launch')} failed: tried once more", err=True)
            self._launch(failed)

    def _launch(self, cells: Sequence[Cell]) -> list[Cell]:
        """Those of which a side failed for what may be chance."""
        failed: set[tuple[str, int]] = set()
        apart: list[Case] = []
        shown = [cell.case for cell in cells for _ in self.runners]
        with Screen(self.folder, shown, goes_on=True) as screen:

            def started(_: Runner, case: Case) -> None:
                screen.started(case)

            for side, record in run_alternately(self.runners, cells, started, apart.append):
                screen.finished(record, side.name if len(self.runners) > 1 else "")
                if record.status in PERHAPS_CHANCE:
                    failed.add((record.case, record.launch))
        if apart:
            click.echo(
                f"in {counted(len(apart), 'round')} there was no memory for the launches of both "
                f"sides at once: they followed each other, and took no turns",
                err=True,
            )
        return [cell for cell in cells if (cell.case.key, cell.case.launch) in failed]

    def findings(self) -> list[Finding]:
        folders = [side.sweep.store.folder for side in self.runners]
        measured = [read_rows(folder).latest() for folder in folders]
        margins, metrics = self.options.margins, self.options.metrics
        if len(measured) < 2:
            return compare_runs(self.known, measured[0], margins, metrics=metrics)
        before, after = measured
        traces = traces_of(folders[0], before), traces_of(folders[1], after)
        return compare_runs(before, after, margins, metrics=metrics, traces=traces)

    def stored(self) -> Mapping[str, int] | None:
        if len(self.runners) > 1:
            return None
        measured = read_rows(self.runners[0].sweep.store.folder).latest()
        return {
            new[-1].case: sum(one.status == "ok" and not one.noisy for one in old)
            for old, new in matched(self.known, measured)
            if new
        }

    def judge(self) -> Judgement:
        """Measures until there is a verdict, or four times the launches."""

        def in_doubt(cases: int) -> None:
            click.echo(f"{counted(cases, 'case')} in doubt: measured again", err=True)

        return in_stages(self, self.options.launches, self.options.margins, in_doubt)
