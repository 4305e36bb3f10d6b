"""What one device makes of a workload: the truth that the gate compares with.

The same model code on a group of one, from the same seeded weights and inputs. Where rounding
alone leads far off there are two answers: one in the next finer arithmetic on the same rounded
weights, which is taken for exact, and one device's own, which says how far. So it is in 16 bits,
and in float32 where rows of scores are sharp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.comm.fake import Silent
from spbench.model import inputs
from spbench.model.init_weights import named_tensor
from spbench.strategies.base import Layout, Strategy
from spbench.worker.observer import Ledger
from spbench.worker.step import Links, Step
from spbench.workload.workload import Workload

FINER = {"bfloat16": "float32", "float16": "float32"}
FINER_WHERE_SHARP = FINER | {"float32": "float64"}

Named = dict[str, Tensor]
"""The output, the input's gradient and every weight's gradient, by name."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """One device's whole tensors, and what a strategy needs to repeat them."""

    workload: Workload
    seed: int
    sharpness: float
    exact: Named
    own: Named | None
    """One device in the workload's own dtype, where that is not the exact one."""


@final
@dataclass(frozen=True, kw_only=True)
class OneDevice(Strategy):
    """The reference: every rank's group is itself, and nothing is sent."""

    def why_not(self, workload: Workload, ranks: int) -> str | None:
        return None if ranks == 1 else "one device is one rank"

    def layout(self, workload: Workload, ranks: int) -> Layout:
        return (next(iter(workload.axes)),) * len(workload.stack)


def one_device(
    workload: Workload,
    device: torch.device,
    *,
    seed: int = 0,
    sharpness: float = 1.0,
    ledger: Ledger | None = None,
) -> Reference:
    """Runs the whole workload on ``device`` alone, a second time where finer is exact."""
    finer = (FINER_WHERE_SHARP if sharpness > 1.0 else FINER).get(workload.dtype)

    def run(dtype: str) -> Named:
        alone = Links(strategy=Silent(0, 1), gradients=Silent(0, 1))
        same = workload.model_copy(update={"dtype": dtype})
        step = Step(same, OneDevice(), alone, device, seed=seed, sharpness=sharpness)
        if ledger is not None:
            _tell(step, ledger.alive)
        rounded_to = getattr(torch, workload.dtype)
        with torch.no_grad():
            for parameter in step.model.parameters():
                parameter.copy_(parameter.to(rounded_to))
        return run_seeded(step, seed, rounded_to, ledger)

    return Reference(
        workload=workload,
        seed=seed,
        sharpness=sharpness,
        exact=run(finer or workload.dtype),
        own=run(workload.dtype) if finer else None,
    )


def _tell(step: Step, alive: Callable[[], None]) -> None:
    """Calls ``alive`` behind each module forward, and with each weight's gradient backward."""
    for module in step.model.modules():
        module.register_forward_hook(lambda *_: alive())
    for parameter in step.model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda _: alive())


def run_seeded(
    step: Step, seed: int, rounded_to: torch.dtype, ledger: Ledger | None = None
) -> Named:
    """One step from the seeded whole inputs: this rank's output and gradients by name."""
    comm = Collectives(step.links.strategy)

    def rounded(whole: Tensor) -> Tensor:
        return whole.to(step.device, rounded_to).to(step.dtype)

    mine = inputs.seeded(step.workload, seed).map(rounded).part(step.first, step.pairs, comm)
    mine.requiring_grad(step.train)
    shape = (step.workload.batch, *step.workload.axes.values(), step.workload.out_channels)
    cotangent = rounded(named_tensor("cotangent", shape, seed))
    part = comm.take(cotangent, step.last).contiguous()
    with (ledger or Ledger()).step(step.device):
        out = step(mine, part)
    found = {"output": out, **mine.gradients}
    if step.train:
        for name, parameter in step.model.named_parameters():
            assert parameter.grad is not None, f"{name} has no gradient"
            found[f"gradient of {name}"] = parameter.grad
    return found
