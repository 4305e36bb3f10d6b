"""A dry run's table has the work of a few cases, and says of which it has none."""

from __future__ import annotations

import pytest

from spbench.projection import dataless, rank_work
from spbench.projection.rank_work import rank_works
from spbench.workload.case import Case, Cell
from spbench.workload.workload import Workload


def cell(strategy: str, ranks: int, why_not: str | None = None) -> Cell:
    block = [{"attention": "space"}, {"mlp": 2}]
    plain = {"name": "w", "axes": {"time": 8, "space": 32}, "hidden": 32, "heads": 8}
    shape = Workload.model_validate(plain | {"depth": 1, "block": block})
    case = Case(workload=shape, strategy=strategy, ranks=ranks, device="cpu")
    return Cell(case=case, why_not=why_not)


def test_each_case_that_can_run_is_counted_once() -> None:
    """Launches of a case are one; a cell that cannot run has no work."""
    known, sentences = rank_works([cell("dsp", 4), cell("dsp", 4), cell("ulysses", 16, "no")])
    (done,) = known.values()
    assert done.kernels > 20
    assert done.flops["gemm"] > done.flops["attention"] > 0
    assert done.peak_bytes["activations"] > 0
    assert sentences == []


def test_many_cases_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence says how many would be."""
    monkeypatch.setattr(rank_work, "MOST_CASES", 1)
    known, (sentence,) = rank_works([cell("dsp", 4), cell("dsp", 8)])
    assert (known, "for up to 1 cases, not for 2" in sentence) == ({}, True)


def test_a_step_of_too_many_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """The case is named, and the others are counted."""
    monkeypatch.setattr(dataless, "MOST_OPERATIONS", 1000)
    known, (sentence,) = rank_works([cell("ring", 32), cell("dsp", 4)])
    assert len(known) == 1
    assert sentence.startswith("ring on 32 ranks is not counted: a dry run of more than 1,000")
