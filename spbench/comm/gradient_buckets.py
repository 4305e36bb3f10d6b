"""The gradient all-reduce of replicated weights, overlapped with the backward pass.

A rank computes what its own shard contributes to the gradient of a weight that all ranks hold; the
sum over the ranks is the gradient. Gradients are packed into buckets in the reverse order of use. A
bucket leaves as soon as it is full, in the same order on every rank, and on a process group of its
own, so that the strategy's transfers do not queue behind it. DistributedDataParallel does the same,
but its bytes could not be counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from spbench.comm.collectives import Collectives
from spbench.comm.transport import Handle

BUCKET_BYTES = 25 * 2**20


@final
class GradientSum:
    """Sums ``parameter.grad`` over the ranks, for parameters that all of them hold."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        comm: Collectives,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._comm = comm
        self._buckets = fill_buckets(parameters, bucket_bytes)
        self._bucket_of = {p: i for i, bucket in enumerate(self._buckets) for p in bucket}
        # A parameter that held this object would keep itself alive: hooks are not collected.
        this = weakref.ref(self)

        def ready(parameter: Tensor) -> None:
            if (alive := this()) is not None:
                alive._ready(parameter)

        for parameter in self._bucket_of:
            parameter.register_post_accumulate_grad_hook(ready)
        self.restart()

    def restart(self) -> None:
        """Be ready for a step, also where the last one was given up."""
        self._missing = [len(bucket) for bucket in self._buckets]
        self._flying: list[Handle] = []

    def _ready(self, parameter: Tensor) -> None:
        self._missing[self._bucket_of[parameter]] -= 1  # type: ignore[index]
        while len(self._flying) < len(self._buckets) and not self._missing[len(self._flying)]:
            self._launch(self._buckets[len(self._flying)])

    def _launch(self, bucket: list[nn.Parameter]) -> None:
        """Each ``.grad`` becomes a view into its bucket: no gradient is held twice."""
        with self._comm.transport.phase("gradients"):
            flat = torch.cat([p.grad.view(-1) for p in bucket if p.grad is not None])
            parts = flat.split([p.numel() for p in bucket])
            for parameter, part in zip(bucket, parts, strict=True):
                parameter.grad = part.view(parameter.shape)
            self._flying.append(self._comm.all_reduce_(flat))

    def finish(self) -> None:
        """Wait until every gradient is the sum over the ranks."""
        for handle in self._flying:
            handle.wait()
        self.restart()


def fill_buckets(
    parameters: Sequence[nn.Parameter], bucket_bytes: int = BUCKET_BYTES
) -> list[list[nn.Parameter]]:
    """Parameters in the order in which their gradients leave, by what leaves together."""
    buckets: list[list[nn.Parameter]] = []
    room = 0
    for parameter in reversed(parameters):
        if not buckets or parameter.nbytes > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(parameter)
        room -= parameter.nbytes
    return buckets
