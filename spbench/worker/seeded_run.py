"""What a step is proved with: seeded whole inputs, and two updates of the weights from them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.model import inputs
from spbench.model.init_weights import named_tensor
from spbench.model.inputs import Inputs
from spbench.worker.observer import Observer
from spbench.worker.optimizer import take_updates, typical_size
from spbench.worker.step import Step

UPDATES = 2
"""Two: the second has other gradients, and moments that the first one left."""
UPDATED = f"after {UPDATES} updates"


def seeded_inputs(step: Step, seed: int, rounded_to: torch.dtype) -> tuple[Inputs, Tensor]:
    """This rank's part of the seeded whole inputs, and of the output's gradient."""
    comm = Collectives(step.transports.strategy)

    def rounded(whole: Tensor) -> Tensor:
        return whole.to(step.device, rounded_to).to(step.dtype)

    mine = inputs.seeded(step.workload, seed).map(rounded).part(step.first, step.pairs, comm)
    mine.requiring_grad(step.train)
    shape = (step.workload.batch, *step.workload.axes.values(), step.workload.out_channels)
    cotangent = rounded(named_tensor("cotangent", shape, seed))
    return mine, comm.take(cotangent, step.last).contiguous()


def updated_weights(
    step: Step,
    seed: int,
    rounded_to: torch.dtype,
    exact: Mapping[str, Tensor],
    observer: Observer,
) -> dict[str, Tensor]:
    """This rank's weights by name, after two further steps that change them.

    Nothing without an optimizer. ``exact`` has one device's gradients: they set the optimizer's
    eps, so that what is only rounding hardly moves a weight.
    """
    if step.optimizer is None:
        return {}
    weights = dict(step.model.named_parameters())
    take_updates(step.optimizer, typical_size([exact[f"gradient of {name}"] for name in weights]))
    mine, cotangent = seeded_inputs(step, seed, rounded_to)
    for _ in range(UPDATES):
        with observer.times.step(step.device):
            step(mine, cotangent)
    return {updated(name): weight.detach() for name, weight in weights.items()}


def updated(name: str) -> str:
    """The name of a weight that the optimizer has moved."""
    return f"{name} {UPDATED}"
