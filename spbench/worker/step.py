"""One step of one rank: forward, and in training backward and the gradient all-reduce.

The gradient of the output is a constant, so a step needs no loss and no target, and the
input is a leaf whose gradient is wanted, as the output of a patch embedding would be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.comm.fake import Silent
from spbench.comm.gradient_buckets import GradientSum
from spbench.comm.transport import Transport
from spbench.layers.linear import part_of
from spbench.model import inputs
from spbench.model.init_weights import fill_weights, load_weights
from spbench.model.inputs import Inputs
from spbench.model.transformer import Transformer
from spbench.strategies.base import Strategy
from spbench.workload.sharding import Shard
from spbench.workload.traffic import Count, Op, Phase
from spbench.workload.workload import Workload

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, kw_only=True)
class Links:
    """The groups of one rank: the strategy's own, and one for the gradient all-reduce."""

    strategy: Transport
    gradients: Transport
    on_step: Callable[[], None] = lambda: None
    """Called as each step begins."""

    def reset(self) -> None:
        self.strategy.reset()
        self.gradients.reset()

    def sent(self) -> Count:
        """Bytes sent since the last reset, of both."""
        total = dict(self.strategy.sent)
        for key, sent in self.gradients.sent.items():
            total[key] = total.get(key, 0) + sent
        return total

    def calls(self) -> dict[tuple[Phase, Op], int]:
        """Collectives since the last reset that sent something, of both."""
        return Counter(self.strategy.calls) + Counter(self.gradients.calls)


@final
class Step:
    """A model on this rank's shard, and how to run it once."""

    def __init__(
        self,
        workload: Workload,
        strategy: Strategy,
        links: Links,
        device: torch.device,
        *,
        seed: int | None = 0,
        sharpness: float = 1.0,
    ) -> None:
        """``seed`` gives the same weights to every strategy; None: any, made on the device."""
        self.workload, self.links, self.device = workload, links, device
        self.dtype = DTYPES[workload.dtype]
        self.train = workload.mode == "train"
        self.comm = Collectives(links.strategy)
        self.rank, self.ranks = self.comm.rank, self.comm.size
        self.silent = Links(
            strategy=Silent(self.rank, self.ranks), gradients=Silent(self.rank, self.ranks)
        )
        with device:
            model = Transformer(workload, strategy, self.comm).to(self.dtype)
        if seed is None:
            fill_weights(model)
        else:
            load_weights(model, self.rank, seed, sharpness)
        self.model = model.requires_grad_(self.train)
        replicated = [p for p in self.model.parameters() if part_of(p) is None]
        self.gradient_comm = Collectives(links.gradients)
        self.gradients = GradientSum(replicated, self.gradient_comm) if self.train else None

    @property
    def first(self) -> Shard:
        """How the input is sharded."""
        return self.model.first

    @property
    def last(self) -> Shard:
        """How the output is sharded."""
        return self.model.last

    @contextmanager
    def silenced(self) -> Iterator[None]:
        """Inside, a step computes and packs as ever, and sends nothing."""
        self.comm.transport = self.silent.strategy
        self.gradient_comm.transport = self.silent.gradients
        try:
            yield
        finally:
            self.comm.transport = self.links.strategy
            self.gradient_comm.transport = self.links.gradients

    @property
    def pairs(self) -> dict[str, Shard]:
        """How the pair tensor of each axis is sharded."""
        return self.model.pairs

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
        self.links.on_step()
        if self.gradients is None:
            with torch.no_grad():
                out = self.model(mine)
            return out
        mine.forget_gradients()
        self.model.zero_grad(set_to_none=True)
        out = self.model(mine)
        with self.links.strategy.phase("backward"):
            out.backward(cotangent)
        self.gradients.finish()
        return out.detach()
