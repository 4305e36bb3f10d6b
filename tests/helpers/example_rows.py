"""Rows as a run would write them, for tests of what is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas
from helpers.builders import a_row

from spbench.analysis.compare_runs import compare_runs
from spbench.analysis.compare_strategies import Line, compare_strategies
from spbench.analysis.findings import Finding, Margins
from spbench.analysis.launches import NONE, Launches, launches_by
from spbench.results.hand_over import Sample
from spbench.results.record import Record
from spbench.results.runs_csv import frame_of
from spbench.results.samples import SAMPLE_COLUMNS, write_samples


def row(strategy: str = "dsp", **more: Any) -> Record:
    """A good launch on a quiet machine, in a round of its number; without figures."""
    known = {"tolerance": 1e-4, "round": f"s.{more.get('launch', 0)}", "case": strategy}
    return a_row(strategy=strategy, **known | more)


def rows(strategy: str, steps_ms: Sequence[float], session: str = "s", **more: Any) -> list[Record]:
    """A launch for each time, in the rounds of ``session``."""
    return [
        row(strategy, launch=i, round=f"{session}.{i}", step_ms=ms, **more)
        for i, ms in enumerate(steps_ms)
    ]


def launches_of(*runs: Sequence[Record]) -> list[Launches]:
    """The launches of each run, of one case."""
    frames = [frame_of(run).assign(run=number) for number, run in enumerate(runs)]
    found = launches_by(pandas.concat(frames, ignore_index=True), ["run"])
    return [found.get(number, NONE) for number in range(len(runs))]


def lines_of(records: Sequence[Record], reference: str | None = None) -> list[Line]:
    """The strategies of these rows compared."""
    return compare_strategies(frame_of(records), reference)


def findings_of(
    before: Sequence[Record], after: Sequence[Record], *margins: Margins, **more: Any
) -> list[Finding]:
    """Two runs of these rows compared."""
    return compare_runs(frame_of(before), frame_of(after), *margins, **more)


def samples_of(*launches: tuple[Record, Sequence[Sequence[float]]]) -> pandas.DataFrame:
    """Iterations as they would be read: for each launch the times of each rank, of either pass."""
    lines = [
        (one.case, one.launch, rank, i, ms, ms)
        for one, ranks in launches
        for rank, times in enumerate(ranks)
        for i, ms in enumerate(times)
    ]
    return pandas.DataFrame(lines, columns=list(SAMPLE_COLUMNS))


def with_samples(folder: Path, records: Sequence[Record], outlier: float = 1.0) -> Path:
    """Writes iterations of each record, of which the last is ``outlier`` times as long."""
    for one in records:
        if one.step_ms is not None:
            steps = [one.step_ms * (1 + 0.001 * (i % 5)) for i in range(9)]
            steps.append(one.step_ms * outlier)
            write_samples(
                folder,
                one,
                [Sample(rank=r, status="ok", step_ms=steps) for r in range(one.world_size)],
            )
    return folder
