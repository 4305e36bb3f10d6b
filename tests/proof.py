"""The gate on ranks that are threads: any strategy, any number of ranks, no processes."""

from __future__ import annotations

import torch

from spbench.bench.gate import Outcome, run_gate
from spbench.bench.reference import one_device
from spbench.bench.step import Links
from spbench.comm.threads import Meeting, Threads, run_ranks
from spbench.strategies.base import Strategy
from spbench.workload.workload import Workload


def prove(
    workload: Workload, strategy: Strategy, ranks: int, *, seed: int = 0, sharpness: float = 1.0
) -> list[Outcome]:
    """What every rank's gate found."""
    second = Meeting(ranks)
    cpu = torch.device("cpu")
    reference = one_device(workload, cpu, seed=seed, sharpness=sharpness)

    def rank_main(transport: Threads) -> Outcome:
        links = Links(strategy=transport, gradients=Threads(transport.rank, second))
        return run_gate(strategy, links, cpu, reference)

    return run_ranks(ranks, rank_main)


def why_wrong(outcomes: list[Outcome]) -> str:
    """The first rank's complaint, or an empty text if every rank is content."""
    return next((wrong for outcome in outcomes if (wrong := outcome.why_wrong())), "")
