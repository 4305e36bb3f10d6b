"""Choosing rows of a run by workload, strategy and ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from helpers.golden import Golden

from spbench.errors import Failure
from spbench.results.find_run import select_rows
from spbench.results.record import Record
from spbench.results.runs_csv import frame_of, records_of
from spbench.workload.case import Case
from spbench.workload.catalogue import find

CASE = Case(workload=find("axes-2d", "verify"), strategy="dsp", ranks=2, device="cpu")
WORKLOADS = ["latte-1", "latte-1 heads=8", "latte-10", "of two, as set={a: 1, b: 2}"]
STRATEGIES = ["dsp", "rsa", "rsa:reduce-scatter", "rsa cfg=2"]
ROWS = [
    replace(
        Record.of_case(CASE, run_id="a run", started_utc="now", status="ok"),
        workload=workload,
        strategy=strategy,
        world_size=ranks,
    )
    for workload in WORKLOADS
    for strategy in STRATEGIES
    for ranks in (2, 16)
]


def chosen(rows: Sequence[Record], *named: Sequence[str]) -> list[Record]:
    return records_of(select_rows(frame_of(rows), *named))


def test_nothing_named_is_everything() -> None:
    """In the order of the run."""
    assert chosen(ROWS, (), (), ()) == ROWS


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (["latte-1"], WORKLOADS[:2]),
        (["latte-1 heads=8"], WORKLOADS[1:2]),
        (["latte-10, latte-1 heads=8"], WORKLOADS[1:3]),
        (["latte-10", WORKLOADS[3]], WORKLOADS[2:]),
    ],
)
def test_a_workload_with_its_settings(asked: list[str], found: list[str]) -> None:
    """By its whole name, or by the one that it was set from; repeated, or with commas."""
    assert list(dict.fromkeys(row.workload for row in chosen(ROWS, asked, (), ()))) == found


def test_all_that_is_named_holds_together() -> None:
    """A strategy's name also means it with options, and in a mesh."""
    rows = chosen(ROWS, ["latte-1"], ["rsa"], ["16"])
    assert {(row.strategy, row.world_size) for row in rows} == {(x, 16) for x in STRATEGIES[1:]}
    assert len(rows) == 6


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            (["late-1"], [], []),
            "--workload late-1: the run has no 'late-1'. Did you mean 'latte-1'",
        ),
        (([], ["dsp,rs"], []), "--strategy dsp,rs: the run has no 'rs'"),
        (([], ["ulysses"], []), "\n  There are dsp, rsa, rsa:reduce-scatter, rsa cfg=2."),
        (([], [], ["2,3"]), "--gpus 2,3: the run has no '3'.\n  There are 2, 16."),
        (([], [""], []), "the run has no ''"),
    ],
)
def test_what_the_run_does_not_have(asked: tuple[list[str], ...], message: str) -> None:
    """The flag, the name, and what there is."""
    with pytest.raises(Failure) as caught:
        chosen(ROWS, *asked)
    assert message in str(caught.value)


def test_of_many_names_some_are_offered(golden: Golden) -> None:
    """So that the message can be read."""
    rows = [replace(ROWS[0], workload=f"w{i}") for i in range(125)]
    with pytest.raises(Failure) as refused:
        chosen(rows, ["x"], (), ())
    golden(refused.value)


def test_nothing_of_all_together(golden: Golden) -> None:
    """Each is there, but not in one row."""
    with pytest.raises(Failure) as refused:
        chosen(
            [row for row in ROWS if row.strategy == "dsp" or row.world_size == 2],
            (),
            ["rsa"],
            ["16"],
        )
    golden(refused.value)
