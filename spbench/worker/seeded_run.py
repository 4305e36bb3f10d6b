"""Seeded steps that the gate compares: one from the seeded inputs, and two weight updates."""

from collections.abc import Mapping

import torch
from torch import Tensor

from spbench.worker.comparison import FLIPPED, UPDATED, UPDATES
from spbench.worker.observer import Observer
from spbench.worker.optimizer import take_updates, typical_size
from spbench.worker.step import Step


def run_seeded(step: Step, rounded_to: torch.dtype, observer: Observer) -> dict[str, Tensor]:
    """One step from the seeded inputs: this rank's output and gradients by name. ``rounded_to``: a
    coarser dtype that weights and inputs are rounded to."""
    with torch.no_grad():
        for parameter in step.model.parameters():
            parameter.copy_(parameter.to(rounded_to))
    mine, cotangent = step.seeded_inputs(rounded_to)
    with observer.times.step(step.device):
        out = step(mine, cotangent)
    return step.tensors(mine, out)


def run_flipped(step: Step, rounded_to: torch.dtype, observer: Observer) -> dict[str, Tensor]:
    """One step on the other inputs: this rank's output and gradients, by the names of the first."""
    mine, cotangent = step.seeded_inputs(rounded_to)
    step.flip(mine, cotangent)
    with observer.times.step(step.device):
        out = step.uncounted(mine, cotangent)
    step.flip(mine, cotangent)
    return step.tensors(mine, out)


def without_weights(step: Step, flipped_run: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the gate compares of a step on the other inputs, by names of its own: the output and the
    inputs' gradients, which all that is kept from another step changes."""
    of_weights = {f"gradient of {name}" for name, _ in step.model.named_parameters()}
    return {flipped(name): x for name, x in flipped_run.items() if name not in of_weights}


def flipped(name: str) -> str:
    return f"{name} {FLIPPED}"


def updated_weights(
    step: Step, rounded_to: torch.dtype, exact: Mapping[str, Tensor], observer: Observer
) -> dict[str, Tensor]:
    """This rank's weights by name, after two further steps that change them.

    Nothing without an optimizer. ``exact`` has one device's gradients: they set the optimizer's
    eps, so that what is only rounding hardly moves a weight.
    """
    if step.optimizer is None:
        return {}
    weights = dict(step.model.named_parameters())
    take_updates(step.optimizer, typical_size([exact[f"gradient of {name}"] for name in weights]))
    mine, cotangent = step.seeded_inputs(rounded_to)
    for _ in range(UPDATES):
        with observer.times.step(step.device):
            step(mine, cotangent)
    return {updated(name): weight.detach() for name, weight in weights.items()}


def updated(name: str) -> str:
    """The name of a weight that the optimizer has moved."""
    return f"{name} {UPDATED}"
