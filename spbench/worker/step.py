"""One step of one rank: forward, and in training backward, gradient all-reduce and optimizer.

The gradient of the output is a constant, so a step needs no loss and no target, and the
input is a leaf whose gradient is wanted, as the output of a patch embedding would be.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.comm.fake import silent_transports
from spbench.comm.gradient_buckets import GradientSum
from spbench.comm.transport import Transports
from spbench.layers.linear import part_of
from spbench.model import inputs
from spbench.model.init_weights import fill_weights, load_weights
from spbench.model.inputs import Inputs
from spbench.model.transformer import Transformer
from spbench.strategies.base import Strategy
from spbench.worker.observer import Observer
from spbench.worker.optimizer import adamw
from spbench.workload.workload import Workload


@final
class Step:
    """A model on this rank's shard, and how to run it once."""

    def __init__(
        self,
        workload: Workload,
        strategy: Strategy,
        transports: Transports,
        device: torch.device,
        *,
        seed: int | None = 0,
        sharpness: float = 1.0,
        observer: Observer | None = None,
    ) -> None:
        """``seed`` gives every strategy the same weights; None makes random ones on the device."""
        self.workload, self.transports, self.device = workload, transports, device
        self._observer = observer or Observer()
        self.dtype: torch.dtype = getattr(torch, workload.dtype)
        self.train = workload.mode == "train"
        self.comm = Collectives(transports.strategy)
        self.rank, self.ranks = self.comm.rank, self.comm.size
        self.silent = silent_transports(self.rank, self.ranks)
        with device:
            model = Transformer(workload, strategy, self.comm).to(self.dtype)
        self.first, self.last, self.pairs = model.first, model.last, model.pairs
        """How the input, the output and the pair tensor of each axis are sharded."""
        if seed is None:
            fill_weights(model)
        else:
            load_weights(model, self.rank, seed, sharpness)
        self.model = model.requires_grad_(self.train)
        replicated = [p for p in self.model.parameters() if part_of(p) is None]
        self.gradient_comm = Collectives(transports.gradients)
        self.gradients = GradientSum(replicated, self.gradient_comm) if self.train else None
        with_optimizer = workload.optimizer == "adamw"
        self.optimizer = adamw(self.model.parameters()) if with_optimizer else None

    @contextmanager
    def silenced(self) -> Iterator[None]:
        """Inside, a step computes and packs as always, and sends nothing."""
        self.comm.transport = self.silent.strategy
        self.gradient_comm.transport = self.silent.gradients
        try:
            yield
        finally:
            self.comm.transport = self.transports.strategy
            self.gradient_comm.transport = self.transports.gradients

    def give_up_silence(self) -> None:
        """After a silent step that failed: what silent steps hold is freed, and forgotten."""
        self.silent = silent_transports(self.rank, self.ranks)
        if self.gradients is not None:
            self.gradients.restart()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def random_inputs(self) -> tuple[Inputs, Tensor]:
        """This rank's part of the inputs, and of the output's gradient, made on the device."""
        like = torch.empty(0, device=self.device, dtype=self.dtype)
        cuts = {"x": self.first} | {f"pairs of {axis}": cut for axis, cut in self.pairs.items()}
        sizes = {name: (cut.dim, cut.sizes[self.rank]) for name, cut in cuts.items()}
        mine = inputs.random(self.workload, like, sizes).requiring_grad(self.train)
        shape = [self.workload.batch, *self.workload.axes.values(), self.workload.out_channels]
        shape[self.last.dim] = self.last.sizes[self.rank]
        return mine, torch.randn(shape, device=self.device, dtype=self.dtype)

    def __call__(self, mine: Inputs, cotangent: Tensor) -> Tensor:
        """The output's shard. In training every ``.grad``, of inputs too, is the step's own."""
        out: Tensor
        self._observer.step()
        if self.gradients is None:
            with torch.no_grad():
                out = self.model(mine)
            return out
        mine.forget_gradients()
        self.model.zero_grad(set_to_none=True)
        out = self.model(mine)
        with self.transports.strategy.phase("backward"):
            out.backward(cotangent)
        self.gradients.finish()
        if self.optimizer is not None:
            self.optimizer.step()
        return out.detach()
