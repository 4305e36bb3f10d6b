"""Measures a check in stages, and no longer than a verdict takes.

Head is measured against known rows of a baseline, or base and head alternately. Each look at a
growing number of launches is another chance to fail by luck alone. So all looks of a check share
``ALPHA``: those that can fail a case come at fixed numbers of launches, and each may spend a fixed
share of it (error spending, Jennison and Turnbull 2000, ch. 7; by Bonferroni, however the looks
depend on each other).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
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
from spbench.launch.launcher import Deadlines
from spbench.regression.base_and_head import Runner, run_alternately
from spbench.report.progress import Screen
from spbench.results.find_run import samples_of_turns
from spbench.results.hand_over import RowStatus
from spbench.results.provenance import Provenance, provenance
from spbench.results.runs_csv import latest, read_runs
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
