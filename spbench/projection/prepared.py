"""A rank's step on tensors without data, ready to run."""

from __future__ import annotations

from typing import Any

from spbench.comm.transport import Transports
from spbench.projection.dataless import META
from spbench.projection.unsent import Listener, UnsentGloo, UnsentNccl, UnsentTransport
from spbench.strategies.base import Strategy
from spbench.worker.step import Step
from spbench.workload.workload import Workload


def prepared(
    workload: Workload,
    strategy: Strategy,
    ranks: int,
    rank: int,
    listener: Listener,
) -> tuple[Step, Any]:
    """The step without an optimizer, and its inputs; messages are packed as its device does."""
    transport: type[UnsentTransport] = UnsentGloo if listener.device == "cpu" else UnsentNccl
    strategy_own, gradients = (transport(rank, ranks, listener) for _ in range(2))
    transports = Transports(strategy=strategy_own, gradients=gradients)
    plain = workload.model_copy(update={"optimizer": "none"})
    step = Step(plain, strategy, transports, META)
    return step, step.seeded_inputs()
