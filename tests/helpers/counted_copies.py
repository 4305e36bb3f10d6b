"""Copies of activations in a step of one rank, with the packing that NCCL asks for."""

from __future__ import annotations

import inspect
from collections import Counter
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import spbench
from spbench.comm.packing import Cut, Cuts, inner_dim, pack, unpacked
from spbench.comm.transport import DONE, Fill, Handle, Several, Transport, Transports
from spbench.strategies.registry import load
from spbench.worker.step import Step
from spbench.workload.mesh import Groups
from spbench.workload.workload import Workload

COPIES = {"copy_", "clone", "cat", "stack", "_to_copy"}
AROUND = (
    "spbench/comm/",
    "spbench/layers/rsa_rows.py: fold_keys",
    "spbench/layers/blockwise.py",
    "spbench/strategies/attention_2d.py: backward",
)
"""Where copies are made for the sake of a collective."""
PRODUCT = Path(spbench.__file__).parent
WEIGHTS = "spbench/comm/gradient_buckets.py"


@final
class NcclPacking(Transport):
    """Packs and unpacks as NCCL's transport does, and receives zeros."""

    def _part(self, groups: Groups) -> NcclPacking:
        (members,) = (group for group in groups if self.rank in group)
        return NcclPacking(members.index(self.rank), len(members))

    def _all_to_all(self, received: Cuts, sent: Cuts) -> Handle:
        along = inner_dim(received, sent)
        flat, unpack = unpacked(received, along=along)
        pack(sent, along)
        flat.zero_()
        return Several([], [unpack])

    def _all_gather(self, received: Cut, sent: Tensor) -> Handle:
        flat, unpack = unpacked([received])
        sent.contiguous()
        flat.zero_()
        return Several([], [unpack])

    def _reduce_scatter(self, received: Tensor, sent: Cut, fill: Fill) -> Handle:
        fill(sent.all_rows)
        pack([sent])
        received.zero_()
        return DONE

    def _all_reduce(self, x: Tensor) -> Handle:
        return DONE

    def _shift(self, received: Tensor, sent: Tensor, by: int) -> Handle:
        received.zero_()
        return DONE

    def _send(self, x: Tensor, to: int) -> Handle:
        return DONE

    def _receive(self, x: Tensor, source: int) -> Handle:
        x.zero_()
        return DONE


class CountedCopies(TorchDispatchMode):
    """Counts copies of at least ``least`` of an activation: around collectives, and elsewhere.

    Those inside of an operation, such as a product of tensors that do not lie as it asks, are not
    seen.
    """

    def __init__(self, activation: int, least: float) -> None:
        super().__init__()
        self.activation, self.least = activation, activation * least
        self.around: Counter[str] = Counter()
        """Copies around collectives, by file and function."""
        self.elsewhere: Counter[str] = Counter()
        self.volume = 0.0
        """What is copied around collectives, in activations."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **kwargs or {})
        name = func.__name__.partition(".")[0]
        if name in COPIES and isinstance(out, Tensor) and out.numel() >= self.least:
            file, function = _caller()
            if file != WEIGHTS:
                place = f"{file}: {function}"
                is_around = place.startswith(AROUND)
                (self.around if is_around else self.elsewhere)[place] += 1
                self.volume += out.numel() / self.activation if is_around else 0
        return out


def _caller() -> tuple[str, str]:
    """File and function of the innermost frame of the product; in autograd's own, of the step."""
    frame = inspect.currentframe()
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PRODUCT):
            return f"spbench/{path.relative_to(PRODUCT)}", frame.f_code.co_name
        frame = frame.f_back
    return "", ""


def copies_of_a_step(
    workload: Workload, strategy: str, ranks: int, least: float = 0.5
) -> CountedCopies:
    """Copies of at least ``least`` of a rank's activation, in one step of rank 0."""
    transports = Transports(strategy=NcclPacking(0, ranks), gradients=NcclPacking(0, ranks))
    step = Step(load(strategy).on(workload, ranks), transports, torch.device("cpu"))
    inputs = step.seeded_inputs()
    with CountedCopies(inputs[0].x.numel(), least) as seen:
        step(*inputs)
    return seen
