"""A case as ``run`` takes it, on ranks that are threads: gate, memory, warm-up, blocks, proof."""

from __future__ import annotations

from typing import Any

from helpers.thread_group import ThreadGroup

from spbench.comm.threaded import ThreadRendezvous, ThreadTransport, run_rank_threads
from spbench.results.hand_over import Sample
from spbench.worker.observer import Observer
from spbench.worker.run_case import run_case, verify_all
from spbench.workload.case import Case, GateCheck, MeasurementBudget
from spbench.workload.mesh import NO_MESH, CaseMesh
from spbench.workload.workload import Workload

BRIEF = MeasurementBudget(
    min_warmup=1, max_warmup=1, min_iterations=3, max_iterations=3, seconds=0.01
)


def run_on_threads(workload: Workload, strategy: str, ranks: int, **more: Any) -> list[Sample]:
    """Every rank's sample of a launch of few steps."""
    case = Case(
        workload=workload,
        strategy=strategy,
        ranks=ranks,
        device="cpu",
        **({"budget": BRIEF} | more),
    )
    meetings = [ThreadRendezvous(ranks, 60.0) for _ in range(3)]

    def rank_main(transport: ThreadTransport) -> Sample:
        return run_case(case, ThreadGroup(transport.rank, meetings), Observer())

    return run_rank_threads(ranks, rank_main)


def verify_on_threads(
    workload: Workload, strategy: str, ranks: int, mesh: CaseMesh = NO_MESH
) -> str:
    """What ``verify`` says is wrong: of the first rank that says so; blank if none does."""
    meetings = [ThreadRendezvous(ranks, 60.0) for _ in range(3)]
    check = GateCheck(workload=workload, strategy=strategy, mesh=mesh)

    def rank_main(transport: ThreadTransport) -> str:
        group = ThreadGroup(transport.rank, meetings)
        (checked,) = verify_all([check], group, Observer())
        return checked.wrong

    return next(filter(None, run_rank_threads(ranks, rank_main)), "")


def complaint(samples: list[Sample]) -> str:
    """The reason of the first rank that has found something wrong; blank if none has."""
    wrong = [sample for sample in samples if sample.status != "ok"]
    blamed = sorted(wrong, key=lambda sample: sample.failed_at_s is None)
    return f"{blamed[0].status}: {blamed[0].reason}" if blamed else ""
