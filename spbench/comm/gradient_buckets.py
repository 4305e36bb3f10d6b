"""The gradient all-reduce of replicated weights, overlapped with the backward pass.

A rank computes what its own shard contributes to the gradient of a weight that all ranks hold; the
sum over the ranks is the gradient. Where groups of ranks cut weights, a part is summed over the
ranks of all groups that hold it. Gradients are packed into buckets in the reverse order of use. A
bucket leaves as soon as it is full, in the same order on every rank, and on a process group of its
own, so that the strategy's transfers do not queue behind it. DistributedDataParallel does the same,
but its bytes could not be counted.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from spbench.comm.collectives import Collectives
from spbench.comm.transport import Handle
from spbench.workload.mesh import PP

BUCKET_BYTES = 25 * 2**20


Axes = tuple[str, ...]
"""Axes of the mesh."""


class Bucket(NamedTuple):
    """Gradients that are summed together, over the ranks of these axes."""

    axes: Axes
    parameters: list[nn.Parameter]

    @property
    def is_late(self) -> bool:
        """Whether it leaves when backward is over, as what all stages of a pipeline have: while one
        is done, another waits for its gradients."""
        return PP in self.axes


@final
class GradientSum:
    """Sums ``parameter.grad`` over the ranks that hold the parameter."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        comm: Collectives,
        bucket_bytes: int = BUCKET_BYTES,
        over: Callable[[nn.Parameter], Axes] | None = None,
    ) -> None:
        """``over``: the axes that a gradient is summed over; by default all of the mesh."""
        self._comm = comm
        self._buckets = fill_buckets(parameters, over or (lambda _: comm.mesh.names), bucket_bytes)
        for bucket in self._buckets:
            comm.along(*bucket.axes)  # here ranks meet to make their groups
        places = enumerate(self._buckets)
        self._bucket_of = {p: i for i, bucket in places for p in bucket.parameters}
        # A parameter that held this object would keep itself alive: hooks are not collected.
        this = weakref.ref(self)

        def ready(parameter: Tensor) -> None:
            if (alive := this()) is not None:
                alive.ready(parameter)

        for parameter in self._bucket_of:
            parameter.register_post_accumulate_grad_hook(ready)
        self.is_held = False
        """Whether gradients that are there are not whole: other microbatches add to them."""
        self.restart()

    def restart(self) -> None:
        """Be ready for a step, also where the last one was given up."""
        self._missing = [len(bucket.parameters) for bucket in self._buckets]
        self._flying: list[Handle] = []

    def ready(self, parameter: Tensor) -> None:
        """Learns that a gradient is there; one that is summed over no ranks is none of its."""
        if self.is_held or parameter not in self._bucket_of:
            return
        place = self._bucket_of[parameter]  # type: ignore[index]
        if not self._buckets[place].is_late:
            self._arrived(place, 1)

    def _arrived(self, place: int, count: int) -> None:
        """So many gradients more of a bucket are there."""
        self._missing[place] -= count
        # A full bucket waits for those before it: on every rank they leave in one order, or two
        # ranks would add up different ones.
        while len(self._flying) < len(self._buckets) and not self._missing[len(self._flying)]:
            self._launch(self._buckets[len(self._flying)])

    def _launch(self, bucket: Bucket) -> None:
        """Each ``.grad`` becomes a view into its bucket: no gradient is held twice."""
        own = bucket.parameters
        with self._comm.transport.phase("gradients"):
            # One message: the copy costs less than a transfer for each of many small weights.
            flat = torch.cat([p.grad.view(-1) for p in own if p.grad is not None])
            for parameter, part in zip(own, flat.split([p.numel() for p in own]), strict=True):
                parameter.grad = part.view(parameter.shape)
            self._flying.append(self._comm.along(*bucket.axes).all_reduce_(flat))

    def finish(self) -> None:
        """Wait until every gradient is the sum over the ranks. Raises RuntimeError where some
        have not come."""
        for place, bucket in enumerate(self._buckets):
            if bucket.is_late:
                self._arrived(place, len(bucket.parameters))
        if len(self._flying) != len(self._buckets):
            raise RuntimeError(
                f"backward is over, and {len(self._buckets) - len(self._flying)} of "
                f"{len(self._buckets)} buckets lack a gradient"
            )
        for handle in self._flying:
            handle.wait()
        self.restart()


def fill_buckets(
    parameters: Sequence[nn.Parameter],
    over: Callable[[nn.Parameter], Axes],
    bucket_bytes: int = BUCKET_BYTES,
) -> list[Bucket]:
    """What leaves together, in the order in which buckets are opened, late ones last: one at a time
    for the same axes. A parameter over none is in no bucket."""
    buckets: list[Bucket] = []
    latest: dict[Axes, Bucket] = {}
    room: dict[Axes, int] = {}
    for parameter in reversed(parameters):
        if not (axes := over(parameter)):
            continue
        # -1: no bucket is open. A weight that is larger than a bucket has one to itself.
        if parameter.nbytes > room.get(axes, -1):
            latest[axes] = Bucket(axes, [])
            buckets.append(latest[axes])
            room[axes] = bucket_bytes
        latest[axes].parameters.append(parameter)
        room[axes] -= parameter.nbytes
    return sorted(buckets, key=lambda bucket: bucket.is_late)
