"""What a check measures: head against known rows of a baseline, or base and head alternately."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import click
import pandas

from spbench.analysis.comparable import matched
from spbench.analysis.compare_runs import compare_runs
from spbench.analysis.findings import Finding, Margins, Metric
from spbench.analysis.power import quiet_launches
from spbench.analysis.verdict import Judgement
from spbench.launch.launcher import Deadlines
from spbench.regression.alternate import Runner, run_alternately
from spbench.regression.sequential import in_stages
from spbench.report.progress import Screen
from spbench.results.find_run import traces_of
from spbench.results.reading import latest, read_runs
from spbench.results.sample import RowStatus
from spbench.sweep.plan import in_rounds
from spbench.text import counted
from spbench.workload.case import Case, Cell

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

    def measure(self, launches: Iterable[int], only: Collection[str] | None = None) -> None:
        """Retries a launch once if its failure may be chance, with the other launch of its round: a
        port that was taken must neither fail the check nor hide a regression."""
        cases = [case for case in self.cases if only is None or case.key in only]
        failed = self._launch(in_rounds(cases, launches, seed=0))
        if failed:
            click.echo(f"{counted(len(failed), 'launch')} failed: tried once more", err=True)
            self._launch(failed)

    def _launch(self, cells: Sequence[Cell]) -> list[Cell]:
        """Returns the cells with a failure that may be chance, of base or of head."""
        failed: set[tuple[str, int]] = set()
        short_of_memory: list[Case] = []
        shown = [cell.case for cell in cells for _ in self.runners]
        with Screen(self.folder, shown, goes_on=True) as screen:
            records = run_alternately(self.runners, cells, screen.started, short_of_memory.append)
            for runner, record in records:
                screen.finished(record, runner.name if len(self.runners) > 1 else "")
                if record.status in RETRIED:
                    failed.add((record.case, record.launch))
        if short_of_memory:
            click.echo(
                f"{counted(len(short_of_memory), 'round')}: not enough memory to launch base and "
                f"head at the same time; they ran one after the other, without alternating steps",
                err=True,
            )
        return [cell for cell in cells if (cell.case.key, cell.case.launch) in failed]

    def findings(self) -> list[Finding]:
        folders = [runner.sweep.store.folder for runner in self.runners]
        measured = [latest(read_runs(folder)) for folder in folders]
        margins, metrics = self.options.margins, self.options.metrics
        if self.known is not None:
            return compare_runs(self.known, measured[0], margins, metrics=metrics)
        before, after = measured
        traces = traces_of(folders[0], before), traces_of(folders[1], after)
        return compare_runs(before, after, margins, metrics=metrics, traces=traces)

    def baseline_launches(self) -> Mapping[str, int] | None:
        if self.known is None:
            return None
        measured = latest(read_runs(self.runners[0].sweep.store.folder))
        quiet = quiet_launches(self.known)
        pairs = matched(self.known, measured)
        return {new: quiet.get(old or "", 0) for old, new in pairs if new is not None}

    def judge(self) -> Judgement:
        """Measures until there is a verdict, or up to four times the launches."""

        def announce_doubt(cases: int) -> None:
            click.echo(f"{counted(cases, 'case')} in doubt: measured again", err=True)

        return in_stages(self, self.options.launches, self.options.margins, announce_doubt)
