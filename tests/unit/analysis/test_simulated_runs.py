"""1,000 simulated runs, tied, clear or noisy: cells, ratios and words of ``compare`` agree.

Everything is read from what a user sees. Each run is a panel of its own, with its number as batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from random import Random
from typing import Any

import pytest
from helpers.example_rows import row

from spbench.analysis.compare_strategies import compare_strategies
from spbench.report.strategy_table import FULL, grids_of, ranking_sentences
from spbench.results.record import Record
from spbench.results.runs_csv import frame_of

RUNS = 1_000
STRATEGIES = ("dsp", "ulysses", "megatron-sp", "rsa")
TOKENS = 1e9
UNITS = {"k": 1e3, "M": 1e6, "G": 1e9}
BLANK = row(sent_bytes_forward=8, predicted_bytes_forward=8)
SPAN = re.compile(r"(?P<low>[\d.,]+)(\.\.| to )(?P<high>[\d.,]+)")


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a user sees of a run."""

    kind: str
    cells: Mapping[str, Mapping[str, str]]
    """By strategy and column."""
    words: str
    noisy: Mapping[str, bool]
    """Whether a strategy has noisy launches and fewer than three quiet ones."""
    failed: bool
    """Whether any launch failed."""

    @property
    def ms(self) -> dict[str, float]:
        cells = {name: cells["step ms"] for name, cells in self.cells.items()}
        return {name: figure(cell) for name, cell in cells.items() if re.match(r"~?\d", cell)}

    @property
    def winner(self) -> str:
        found = re.search(r"([\w-]+) (is fastest|has the lowest)", self.words)
        return found[1] if found else ""


def kind_of(run: int) -> str:
    return ("tied", "clear", "noisy")[run % 3]


def launches_of_run(run: int) -> Iterator[Record]:
    """Launches of two to four strategies in two to five rounds that drift; one in 20 fails."""
    chance, kind = Random(run), kind_of(run)
    names = STRATEGIES[: chance.randint(2, 4)]
    spread = 0.005 if kind == "clear" else chance.choice((0.005, 0.02, 0.08))
    apart = 0.3 * (kind == "clear" or (kind == "noisy" and chance.random() < 0.5))
    noisy_share = chance.choice((0.3, 0.6, 1.0)) if kind == "noisy" else 0.0
    for launch in range(chance.choice((2, 3, 3, 3, 5))):
        drift = chance.lognormvariate(0, 0.1)
        for i, name in enumerate(names):
            is_noisy = chance.random() < noisy_share
            slower = chance.uniform(1, 13) if is_noisy else 1.0
            step_ms = 100 * (1 + apart * i) * drift * slower * chance.lognormvariate(0, spread)
            compute_ms = step_ms * chance.uniform(0.5, 1.1)
            more: dict[str, Any] = {"status": "crash", "reason": "exit 7"}
            if chance.random() > 0.05:
                more = {"noisy": "others used 1.2 of 2 cores" if is_noisy else ""}
                more |= {"step_ms": step_ms, "tokens_per_s": TOKENS / step_ms}
                more |= {"compute_ms": compute_ms, "exposed_comm_ms": step_ms - compute_ms}
            place = {"batch": run, "launch": launch, "round": f"s.{launch}"}
            yield replace(BLANK, strategy=name, case=f"{name} {run}", **place, **more)


@pytest.fixture(scope="module")
def runs() -> list[Shown]:
    launches = {run: [*launches_of_run(run)] for run in range(RUNS)}
    lines = compare_strategies(frame_of(record for run in launches.values() for record in run))
    words = {run_of(text): text.partition(": ")[2] for text in ranking_sentences(lines)}
    rows = zip(lines, grids_of(lines)[0].rows, strict=True)
    return [
        Shown(
            kind=kind_of(run),
            cells={line.strategy: dict(zip(FULL, cells, strict=True)) for line, cells in of_run},
            words=words.get(run, ""),
            noisy={name: is_noisy(launches[run], name) for name in STRATEGIES},
            failed=any(record.status != "ok" for record in launches[run]),
        )
        for run, of_run in groupby(rows, key=lambda pair: run_of(pair[0].panel))
    ]


def run_of(text: str) -> int:
    found = re.search(r"batch (\d+)", text)
    assert found is not None
    return int(found[1])


def is_noisy(launches: list[Record], name: str) -> bool:
    good = [one for one in launches if one.strategy == name and one.status == "ok"]
    return any(one.noisy for one in good) and sum(not one.noisy for one in good) < 3


def figure(cell: str) -> float:
    """The figure of a cell, without its interval, marks and unit."""
    first = cell.split(" (", maxsplit=1)[0].strip("~x?").replace(",", "")
    return float(first.rstrip("kMG")) * UNITS.get(first[-1], 1.0)


def is_near(one: float, other: float, digits: float = 0.0) -> bool:
    """Whether two figures agree that are rounded to three digits, or to ``digits``."""
    return abs(one - other) <= 0.011 * max(abs(one), abs(other)) + digits


def is_within(value: float, text: str, digits: float) -> bool:
    """Whether a rounded figure is within the interval in ``text``, if there is one."""
    span = SPAN.search(text)
    if span is None:
        return True
    low, high = (float(span[name].replace(",", "")) for name in ("low", "high"))
    return low - digits <= value <= high + digits


def wrong_cells(run: Shown) -> Iterator[str]:
    """Cells of one row that cannot all be true, and those of noisy launches without a mark."""
    for name, ms in run.ms.items():
        cells = run.cells[name]
        if not is_near(figure(cells["compute ms"]) + figure(cells["exposed ms"]), ms):
            yield "compute and exposed are not the step"
        if not is_near(TOKENS / ms, figure(cells["tokens/s"])):
            yield "tokens are not those of the step"
        if not is_within(ms, cells["95 %"], 0.006 * ms):
            yield "a time is outside its interval"
        if run.noisy[name] and not cells["step ms"].startswith("~"):
            yield "a noisy time has no mark"


def wrong_speedups(run: Shown) -> Iterator[str]:
    """Speed-ups that are not the ratios of the times, or not within their intervals."""
    for name, cells in run.cells.items():
        if (speedup := cells["speed-up"]) == "-":
            continue
        if not is_near(figure(speedup), run.ms["dsp"] / run.ms[name], 0.005):
            yield "a speed-up is not the ratio of the times"
        if not is_within(figure(speedup), speedup, 0.006):
            yield "a speed-up is outside its interval"
        if (run.noisy[name] or run.noisy["dsp"]) and name != "dsp" and "~" not in speedup:
            yield "a noisy speed-up has no mark"


def wrong_words(run: Shown) -> Iterator[str]:
    """Ratios in words that are not those of the cells, and winners that are none."""
    named = re.search(r"as long as ([\w-]+)", run.words)
    base = run.winner or (named[1] if named else "")
    for name, times, more in re.findall(r"([\w-]+) takes ([\d.]+)x as long([^x]*)", run.words):
        if not is_near(float(times), run.ms[name] / run.ms[base], 0.005):
            yield "a ratio in words is not that of the cells"
        if not is_within(float(times), more, 0.006):
            yield "a ratio is outside its interval"
        if run.noisy[name] or run.noisy[base]:
            yield "words compare noisy times"
        span = SPAN.search(more)
        if run.winner and (span is None or float(span["low"]) <= 1.0):
            yield "a winner is named whose interval holds 1"
    if run.winner and run.ms[run.winner] > min(run.ms.values()):
        yield "the named winner has not the lowest time"
    if run.winner and any(run.noisy[name] for name in run.ms):
        yield "a winner is named among noisy launches"


def test_nothing_that_is_shown_contradicts_itself(runs: list[Shown]) -> None:
    """Times, their parts, speed-ups and sentences of 1,000 runs."""
    found = [
        (what, run.words, run.cells)
        for run in runs
        for check in (wrong_cells, wrong_speedups, wrong_words)
        for what in check(run)
    ]
    assert len(runs) == RUNS
    assert found == []


def test_winners_are_named_where_there_are_some(runs: list[Shown]) -> None:
    """In 5 % of the tied runs at most; always where one is clear and every launch is there."""
    tied = [bool(run.winner) for run in runs if run.kind == "tied"]
    assert sum(tied) <= 0.05 * len(tied)
    clear = [run for run in runs if run.kind == "clear" and not run.failed]
    sure = [run for run in clear if all("*" not in c["95 %"] for c in run.cells.values())]
    assert len(sure) > 100
    assert {run.winner for run in sure} == {"dsp"}
