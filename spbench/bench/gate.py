"""The gate: a strategy is proved equal to one device before anything is timed.

Every rank computes the same whole model alone, by the same code on a group of one, and
compares its own shard of the output, of the input's gradient and of every weight's gradient.
An error is relative: the root mean square of (got - wanted) on this rank over that of the
whole tensor. The largest of all tensors and ranks counts, so a fault of one rank is not
diluted by the others. The bytes that the rank sent are held against the prediction, exactly.

Tolerances: float64 1e-9 and float32 1e-4 against one device in the same dtype. In 16 bits
both are compared with float32 arithmetic on the same rounded weights, and each tensor of the
strategy may be at most four times as far from it as one device's is. An absolute tolerance,
or a loose one, would let pass what others have shipped.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from spbench.bench.step import Links, Step
from spbench.comm.collectives import Collectives
from spbench.comm.transfer import Count, count
from spbench.comm.transport import Silent
from spbench.model.initialise import inputs, named_tensor
from spbench.strategies.base import Layout, Strategy
from spbench.strategies.linear import part_of
from spbench.workload.shards import Shard
from spbench.workload.workload import Workload

FIXED_TOLERANCE = {"float64": 1e-9, "float32": 1e-4}
LOW_PRECISION_FACTOR = 4.0

Named = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Error:
    """How far one tensor of this rank is from one device's, and how far it may be."""

    name: str
    relative: float
    tolerance: float

    @property
    def excess(self) -> float:
        """Above 1: too far. NaN is further than anything."""
        return math.inf if math.isnan(self.relative) else self.relative / self.tolerance


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one rank found: the errors nearest to their tolerance, and the bytes."""

    output: Error
    gradient: Error | None
    """The worst of the input's and the weights'; None in forward mode."""
    sent: Count
    predicted: Count

    @property
    def worst(self) -> Error:
        errors = [self.output] if self.gradient is None else [self.output, self.gradient]
        return max(errors, key=lambda error: error.excess)

    def why_wrong(self) -> str | None:
        """A sentence, or None if the gate is passed."""
        worst = self.worst
        if not worst.excess <= 1:
            return (
                f"{worst.name} differs from one device by {worst.relative:.2g} "
                f"(relative; tolerance {worst.tolerance:.2g})"
            )
        for key in sorted(self.sent.keys() | self.predicted.keys()):
            sent, predicted = self.sent.get(key, 0), self.predicted.get(key, 0)
            if sent != predicted:
                return (
                    f"{key[1]} sent {float(sent):.0f} bytes in {key[0]}, "
                    f"predicted {float(predicted):.0f}"
                )
        return None


@final
@dataclass(frozen=True, kw_only=True)
class OneDevice(Strategy):
    """The reference: every rank's group is itself, and nothing is sent."""

    def why_not(self, workload: Workload, ranks: int) -> str | None:
        return None if ranks == 1 else "one device is one rank"

    def layout(self, workload: Workload, ranks: int) -> Layout:
        return (next(iter(workload.axes)),) * len(workload.stack)


def run_gate(
    workload: Workload,
    strategy: Strategy,
    links: Links,
    device: torch.device,
    *,
    seed: int = 0,
    sharpness: float = 1.0,
) -> Outcome:
    """Compare this rank's part of a step with one device's. Every rank must call it."""
    low = workload.dtype not in FIXED_TOLERANCE
    step = Step(workload, strategy, links, device, seed=seed, sharpness=sharpness)
    links.reset()
    mine = _run(step, seed, rounded_to=step.dtype)
    sent = links.sent()

    def one_device(dtype: str) -> Named:
        alone = Links(strategy=Silent(0, 1), gradients=Silent(0, 1))
        same = workload.model_copy(update={"dtype": dtype})
        one = Step(same, OneDevice(), alone, device, seed=seed, sharpness=sharpness)
        _round_weights(one, step.dtype)
        return _run(one, seed, rounded_to=step.dtype)

    wanted = one_device("float32" if low else workload.dtype)
    parts = _parts(step)
    comm = Collectives(links.strategy)

    def mine_of(name: str, whole: Tensor) -> Tensor:
        part = parts[name]
        return whole if part is None else comm.take(whole, part)

    tolerances = dict.fromkeys(mine, FIXED_TOLERANCE.get(workload.dtype, 0.0))
    if low:
        own = one_device(workload.dtype)
        whole = {name: relative_error(own[name], wanted[name], wanted[name]) for name in mine}
        # A bias of a few numbers may come out exact by luck: no tensor is held to less than
        # what is typical of all.
        typical = statistics.median(whole.values())
        for name in mine:
            part = relative_error(
                mine_of(name, own[name]), mine_of(name, wanted[name]), wanted[name]
            )
            tolerances[name] = LOW_PRECISION_FACTOR * max(typical, part, whole[name])
    errors = [
        Error(
            name=name,
            relative=relative_error(got, mine_of(name, wanted[name]), wanted[name]),
            tolerance=tolerances[name],
        )
        for name, got in mine.items()
    ]
    gradients = [error for error in errors if error.name != "output"]
    return Outcome(
        output=next(error for error in errors if error.name == "output"),
        gradient=max(gradients, key=lambda error: error.excess, default=None),
        sent=sent,
        predicted=count(strategy.traffic(workload, step.ranks), step.rank),
    )


def _run(step: Step, seed: int, rounded_to: torch.dtype) -> Named:
    """One step from the seeded whole inputs: this rank's output and gradients by name."""
    comm = Collectives(step.links.strategy)
    whole = inputs(step.workload, seed)
    x, condition, context = (t.to(step.device, rounded_to).to(step.dtype) for t in whole)
    shape = (step.workload.batch, *step.workload.axes.values(), step.workload.out_channels)
    cotangent = named_tensor("cotangent", shape, seed).to(step.device, rounded_to).to(step.dtype)
    x = comm.take(x, step.first).contiguous().requires_grad_(step.train)
    out = step(x, condition, context, comm.take(cotangent, step.last).contiguous())
    found = {"output": out}
    if x.grad is not None:
        found["gradient of the input"] = x.grad
        for name, parameter in step.model.named_parameters():
            assert parameter.grad is not None, f"{name} has no gradient"
            found[f"gradient of {name}"] = parameter.grad
    return found


def _round_weights(step: Step, dtype: torch.dtype) -> None:
    with torch.no_grad():
        for parameter in step.model.parameters():
            parameter.copy_(parameter.to(dtype))


def _parts(step: Step) -> dict[str, Shard | None]:
    """Which part of each compared tensor this rank holds; None: all of it."""
    parts = {f"gradient of {name}": part_of(p) for name, p in step.model.named_parameters()}
    return parts | {"output": step.last, "gradient of the input": step.first}


def relative_error(got: Tensor, wanted: Tensor, whole: Tensor) -> float:
    """Root mean square of got - wanted, over that of the whole tensor that ``wanted`` is of.

    Shapes that differ are infinitely wrong, and so is anything but zero where all is zero.
    """
    if got.shape != wanted.shape:
        return math.inf
    precise = torch.promote_types(wanted.dtype, torch.float32)
    difference = _root_mean_square(got.to(precise) - wanted.to(precise))
    size = _root_mean_square(whole.to(precise))
    if difference == 0.0:
        return 0.0
    return difference / size if size else math.inf


def _root_mean_square(x: Tensor) -> float:
    norm: float = torch.linalg.vector_norm(x).item()
    return norm / max(1, x.numel()) ** 0.5
