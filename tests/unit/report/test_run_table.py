"""Two runs side by side: what the times are worth, beside what they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from helpers.example_rows import findings_of, rows
from helpers.golden import Golden

from spbench.analysis.findings import Finding
from spbench.report.run_table import grid_of, sentences
from spbench.report.strategy_table import NOISY_NOTE
from spbench.results.record import Record

STEPS = [10.0, 10.05, 9.95]
CAUSE = "others used 1.0 of 2 cores"


def times(findings: list[Finding]) -> list[str]:
    """The cells of A ms, B ms, change, the interval and the verdict of the only case."""
    (row,) = grid_of(findings, "A", "B")[0].rows
    return [*row[2:7]]


@pytest.mark.parametrize(
    ("a", "b", "cells"),
    [
        (CAUSE, "", ["~10", "20", "~+100 %", "-", "inconclusive"]),
        ("", CAUSE, ["10", "~20", "~+100 %", "-", "inconclusive"]),
    ],
    ids=["A is noisy", "B is noisy"],
)
def test_noisy_times_are_marked_and_give_no_verdict(
    a: str, b: str, cells: list[str], golden: Golden
) -> None:
    """As in the table of one run, with the same footnote."""
    before, after = rows("dsp", STEPS, noisy=a), rows("dsp", [20.0] * 3, session="t", noisy=b)
    found = findings_of(before, after)
    assert times(found) == cells
    golden("\n".join(sentences(found)))


@pytest.mark.parametrize(
    ("session", "more"),
    [("s", {}), ("t", {"torch": "2.12"})],
    ids=["the same launches", "another torch"],
)
def test_noise_is_said_beside_another_reason(
    session: str, more: dict[str, Any], golden: Golden
) -> None:
    """Of launches that cannot be compared, and of a run against itself."""
    before = rows("dsp", STEPS, noisy=CAUSE, torch="2.11")
    after = rows("dsp", STEPS, session=session, noisy=CAUSE, **{"torch": "2.11"} | more)
    found = findings_of(before, after)
    assert [cell[:1] for cell in times(found)[:2]] == ["~", "~"]
    golden("\n".join(sentences(found)))


def test_noisy_rounds_of_runs_that_took_turns_are_evidence() -> None:
    """Noise that meets both widens the interval, and favours neither."""
    found = findings_of(rows("dsp", STEPS, noisy=CAUSE), rows("dsp", [20, 20.1, 19.9], noisy=CAUSE))
    assert times(found)[0] == "10" and times(found)[-1] == "slower"
    assert NOISY_NOTE not in sentences(found)


def test_a_slowdown_on_slower_processors_says_so(golden: Golden) -> None:
    """The sentence of a verdict that holds at their speed, too, names it."""
    before = rows("dsp", STEPS, cpu_gflop_per_s=100.0)
    after = rows("dsp", [20.0] * 3, session="t", cpu_gflop_per_s=80.0)
    (said,) = sentences(findings_of(before, after))
    golden(said)
    (said,) = sentences(findings_of(before[:1], after[:1]))
    golden(said, "of one launch each")
    (said,) = sentences(findings_of(before, [replace(row, step_ms=11.0) for row in after]))
    golden(said, "of no more than the processors explain")


def test_quiet_times_have_no_mark() -> None:
    """Noisy launches that do not count do not matter."""
    noisy = rows("dsp", [90.0], session="u", noisy=CAUSE)
    found = findings_of([*rows("dsp", STEPS), *noisy], rows("dsp", STEPS, session="t"))
    assert times(found)[:2] == ["10", "10"]
    assert NOISY_NOTE not in sentences(found)


def test_a_sentence_names_each_workload_once(golden: Golden) -> None:
    """Where many cases share a reason, as where two runs have none in common."""
    old = [case for name in ("w", "v") for s in ("dsp", "rsa") for case in only_case(name, s)]
    (sentence,) = sentences(findings_of(old, []))
    golden(sentence)


def only_case(workload: str, strategy: str) -> list[Record]:
    return rows(strategy, [1.0], workload=workload, workload_key=workload, case=workload + strategy)
