"""A check that measures: in stages, and no longer than a verdict takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import click

from spbench.judge.between import Finding, Margins, Metric, between
from spbench.judge.regression import Judgement, again, judged
from spbench.launch.deadlines import Deadlines
from spbench.launch.plan import cells_of
from spbench.launch.sides import Side, in_turn
from spbench.report.screen import Screen
from spbench.results.reading import read_rows
from spbench.results.record import Record
from spbench.workload.case import Case
from spbench.workload.words import counted


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What is judged, how strictly, and how often it is measured."""

    margins: Margins
    metrics: Sequence[Metric]
    launches: int
    deadlines: Deadlines


class Bench(Protocol):
    """Where a check measures."""

    def measure(self, launches: Iterable[int], only: Iterable[str] | None = None) -> None:
        """More launches of all cases, or of those with these keys."""

    def findings(self, limits: Limits) -> list[Finding]:
        """As things stand."""


def in_stages(bench: Bench, limits: Limits) -> Judgement:
    """A first launch of each case shows what can be judged at all; then come the others of what
    can be timed; then once more as many, or double, of the cases that would fail or stay open; and
    then of those that are still open, up to four times the launches."""
    bench.measure(range(1))
    judgement = judged(bench.findings(limits), limits.margins)
    timed = [finding.case for finding in judgement.timed]
    if not timed:
        return judgement
    if limits.launches > 1:
        bench.measure(range(1, limits.launches), timed)
        judgement = judged(bench.findings(limits), limits.margins)
    so_far = limits.launches
    doubtful, more = again(judgement, limits.launches)
    while doubtful:
        click.echo(f"{counted(len(doubtful), 'case')} in doubt: measured again", err=True)
        bench.measure(range(so_far, so_far + more), doubtful)
        judgement = judged(bench.findings(limits), limits.margins)
        so_far += more
        doubtful, more = again(judgement, limits.launches, so_far)
    return judgement


@dataclass(frozen=True, kw_only=True)
class Sides:
    """One side that is measured against what is known, or two that take turns."""

    folder: Path
    sides: Sequence[Side]
    cases: Sequence[Case]
    known: Sequence[Record] = field(default_factory=list)
    """The first side's rows, where they are not measured here."""

    def measure(self, launches: Iterable[int], only: Iterable[str] | None = None) -> None:
        keys = None if only is None else set(only)
        cases = [case for case in self.cases if keys is None or case.key in keys]
        cells = cells_of(cases, launches, seed=0)
        shown = [cell.case for cell in cells for _ in self.sides]
        with Screen(self.folder, shown, goes_on=True) as screen:
            for side, record in in_turn(self.sides, cells, lambda _, case: screen.started(case)):
                screen.finished(record, side.name if len(self.sides) > 1 else "")

    def findings(self, limits: Limits) -> list[Finding]:
        measured = [read_rows(side.sweep.store.folder).latest() for side in self.sides]
        before, after = measured if len(measured) > 1 else (self.known, measured[0])
        return between(before, after, limits.margins, metrics=limits.metrics)
