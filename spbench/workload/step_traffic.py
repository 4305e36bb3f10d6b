"""What is sent between sublayers, and what a step sends in all."""

from __future__ import annotations

from spbench.workload.sharding import shard_sizes
from spbench.workload.traffic import Transfer
from spbench.workload.workload import Workload

Traffic = tuple[list[Transfer], list[Transfer]]
"""What one sublayer sends in forward and in backward."""


def switch(workload: Workload, before: str, after: str, ranks: int) -> Transfer:
    """The all-to-all that moves the activation's sharding from one axis to another."""
    sizes = (shard_sizes(workload.axes[axis], ranks) for axis in (before, after))
    return Transfer.all_to_all(workload.activation_bytes, *sizes)


def bytes_in_a_step(
    workload: Workload, forward: list[Transfer], backward: list[Transfer], *, repeated: bool = True
) -> float:
    """What a step waits for: of each transfer the bytes of its own busiest rank, in training
    backward too, and, if it is ``repeated`` under checkpointing, forward again."""
    if workload.mode == "forward":
        backward = []
    elif workload.checkpointing == "full" and repeated:
        backward = forward + backward
    return float(sum(max(transfer.sent) for transfer in forward + backward))
