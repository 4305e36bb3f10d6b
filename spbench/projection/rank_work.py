"""The work of cases that have not run, as plain data for a dry run's table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from spbench.projection.dataless import TooManyOperationsError
from spbench.projection.trace import work
from spbench.strategies.registry import in_mesh
from spbench.text import counted
from spbench.workload.case import Case, Cell
from spbench.workload.predicted import RankWork

MOST_CASES = 24
"""Cases whose work a dry run counts: each takes about a second."""


def rank_works(cells: Sequence[Cell]) -> tuple[dict[str, RankWork], list[str]]:
    """The work of each case that can run, by its key, and sentences on those left out."""
    cases = {cell.case.key: cell.case for cell in cells if cell.why_not is None}
    if len(cases) > MOST_CASES:
        return {}, [
            f"operations and peak memory by part are counted for up to {MOST_CASES} cases, not for "
            f"{len(cases):,}: ask for fewer strategies, ranks or workloads"
        ]
    known, sentences = {}, []
    for key, case in cases.items():
        try:
            known[key] = _rank_work(case)
        except TooManyOperationsError as error:
            ranks = counted(case.ranks, "rank")
            sentences.append(f"{case.strategy} on {ranks} is not counted: {error}")
    return known, sentences


def _rank_work(case: Case) -> RankWork:
    done = work(case.workload, in_mesh(case.strategy, case.mesh), case.ranks, with_memory=True)
    assert done.memory is not None
    return RankWork(
        flops={"gemm": done.flops("gemm"), "attention": done.flops("attention")},
        kernels=done.launches,
        peak_bytes=asdict(done.memory),
    )
