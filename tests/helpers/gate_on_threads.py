"""The gate on ranks that are threads: any strategy, any number of ranks, no processes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from spbench.comm.threaded import ThreadRendezvous, ThreadTransport, run_rank_threads
from spbench.comm.transport import Handle, Transport, Transports
from spbench.strategies.base import Strategy
from spbench.worker.gate import GateResult, run_gate
from spbench.worker.observer import Observer
from spbench.worker.reference import Reference, one_device
from spbench.workload.workload import Workload

CPU = torch.device("cpu")
KEPT: dict[tuple[str, int, float], Reference] = {}
MOST_KEPT = 200


def prove(
    workload: Workload,
    strategy: Strategy,
    ranks: int,
    *,
    seed: int = 0,
    sharpness: float = 1.0,
    transport_of: Callable[[int, ThreadRendezvous], Transport] = ThreadTransport,
) -> list[GateResult]:
    """Every rank's gate result, with the axes cut as the strategy cuts them.

    ``transport_of``: makes a rank's transports, where its threads meet.
    """
    workload = strategy.flattened(workload)
    plan, second = strategy.on(workload, ranks), ThreadRendezvous(ranks)
    reference = _reference(workload, seed, sharpness)

    def rank_main(transport: ThreadTransport) -> GateResult:
        own, gradients = (transport_of(transport.rank, at) for at in (transport.meeting, second))
        transports = Transports(strategy=own, gradients=gradients)
        return run_gate(plan, transports, CPU, reference, Observer())

    return run_rank_threads(ranks, rank_main, [second])


def why_wrong(results: list[GateResult]) -> str:
    """The first rank's complaint, or an empty text if every rank is content."""
    return next((wrong for result in results if (wrong := result.why_wrong())), "")


def _reference(workload: Workload, seed: int, sharpness: float) -> Reference:
    """The same for every strategy and number of ranks."""
    key = (f"{workload.model_dump_json()} {workload.coordinates}", seed, sharpness)
    if key not in KEPT:
        if len(KEPT) == MOST_KEPT:
            KEPT.clear()
        KEPT[key] = one_device(workload, CPU, seed=seed, sharpness=sharpness)
    return KEPT[key]


def arrived(sent: tuple[Handle, list[Tensor]]) -> list[Tensor]:
    """What a transfer that was started brings."""
    handle, tensors = sent
    handle.wait()
    return tensors
