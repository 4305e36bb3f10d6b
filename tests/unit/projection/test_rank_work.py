"""Dry runs of many cases: on all cores, and for a table that says of which it has none."""

from __future__ import annotations

import multiprocessing
import os
from contextlib import nullcontext
from typing import Any

import pytest
from helpers.golden import Golden

from spbench.errors import Failure
from spbench.projection.dryrun import meta_ops, rank_work
from spbench.projection.dryrun.rank_work import Question, WorkOf, forked, rank_works
from spbench.projection.dryrun.trace import work
from spbench.projection.dryrun.work import Work
from spbench.workload.case import Case, Cell
from spbench.workload.catalogue import find
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


def test_a_case_is_counted_as_on_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def noted(*given: Any, **how: Any) -> Work:
        asked.append(how["device"])
        return work(*given, **how)

    monkeypatch.setattr(rank_work, "forked", lambda work_of, _: nullcontext(work_of))
    monkeypatch.setattr(rank_work, "work", noted)
    on_gpu = cell("dsp", 4).case.model_copy(update={"device": "cuda"})
    rank_works([cell("dsp", 4), Cell(case=on_gpu, why_not=None)])
    assert asked == ["cpu", "cuda"]


def test_many_cases_are_not_counted(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    """One sentence says how many would be."""
    monkeypatch.setattr(rank_work, "MOST_CASES", 1)
    known, (sentence,) = rank_works([cell("dsp", 4), cell("dsp", 8)])
    assert known == {}
    golden(sentence)


def test_a_step_of_too_many_operations(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    """The case is named, and the others are counted."""
    monkeypatch.setattr(meta_ops, "MOST_OPERATIONS", 800)
    known, (sentence,) = rank_works([cell("ring", 32), cell("dsp", 4)])
    assert len(known) == 1
    golden(sentence)


def answers(work_of: WorkOf, questions: list[Question]) -> list[str]:
    """Each answer, or the sentence of its refusal."""
    said = []
    for question in questions:
        try:
            said.append(work_of(*question).dtype)
        except Failure as failure:
            said.append(str(failure))
    return said


@pytest.mark.parametrize("dies", [False, True])
def test_cases_are_shared_among_cores(dies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes answer, refusals too; what one dies of is left to this one."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    here = os.getpid()

    def work_of(workload: Workload, strategy: str, ranks: int) -> Work:
        if dies and os.getpid() != here and strategy == "rsa":
            os._exit(9)
        if strategy == "ring":
            raise Failure(f"not on {ranks}")
        where = "here" if os.getpid() == here else "elsewhere"
        return Work(mesh=(), dtype=where, kernels={}, messages={})

    shape = find("axes-2d", "verify")
    questions = [(shape, name, 4) for name in ("dsp", "rsa", "ring", "ulysses")]
    with forked(work_of, questions) as ask:
        said = answers(ask, [*questions, (shape, "dsp", 8)])
    left = "here" if dies else "elsewhere"
    assert said == ["elsewhere", left, "not on 4", "elsewhere", "here"]
    assert multiprocessing.active_children() == []
