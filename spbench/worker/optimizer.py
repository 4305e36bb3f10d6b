"""The optimizer of a train step: torch's AdamW over the parameters that this rank holds.

A strategy that cuts weights over the ranks has a part of the optimizer's state to hold and to
update, others have all of it on every rank: nothing here depends on which. torch's fused kernel, on
CPU and CUDA, is one pass over weights, gradients and both moments, which have the weights' dtype.

In timed steps the learning rate is 0: the same arithmetic runs, and the weights stay those that
were proved. The gate has a real one (``take_updates``).
"""

import statistics
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from spbench.worker.comparison import root_mean_square

LEARNING_RATE = 1e-2
"""Learning rate of the gate: large beside the weights' rounding, small beside the weights."""


def adamw(parameters: Iterable[nn.Parameter]) -> AdamW:
    """AdamW as it is timed: without weight decay, at a learning rate of 0."""
    return AdamW(parameters, lr=0.0, weight_decay=0.0, fused=True)


def state_tensors(optimizer: AdamW | None) -> list[Tensor]:
    """All that the optimizer keeps from step to step: both moments, and counts of steps."""
    states = () if optimizer is None else optimizer.state.values()
    return [kept for state in states for kept in state.values() if isinstance(kept, Tensor)]


def state_bytes(optimizer: AdamW | None) -> int | None:
    """Bytes of what it keeps; None without an optimizer."""
    return None if optimizer is None else sum(kept.nbytes for kept in state_tensors(optimizer))


def updates_taken(optimizer: AdamW) -> tuple[int, int]:
    """How many updates the optimizer counts: of the weight that had fewest, and of that with most.

    A weight that it has never met has had none.
    """
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    never = torch.zeros(())
    counts = [optimizer.state.get(weight, {}).get("step", never) for weight in weights]
    if not counts:
        return 0, 0
    # The fused kernel keeps counts on the weights' device: one transfer for all of them.
    fewest, most = torch.stack([count.to(weights[0].device) for count in counts]).aminmax()
    return int(fewest), int(most)


def take_updates(optimizer: AdamW, eps: float) -> None:
    """From now on its steps change the weights."""
    for group in optimizer.param_groups:
        group |= {"lr": LEARNING_RATE, "eps": eps}


def typical_size(gradients: Sequence[Tensor]) -> float:
    """The ``eps`` of the gate: the median of all tensors' root mean squares.

    AdamW divides a gradient by its size. With torch's 1e-8 a gradient that is nothing but rounding
    moves its weight as far as any other, in a direction that rounding decides: on other ranks the
    opposite one. With an eps of this size it hardly moves it, and errors stay as small as they are.
    """
    return statistics.median(map(root_mean_square, gradients)) or 1.0
