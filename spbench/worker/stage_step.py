"""One rank's stage of a pipeline, whose microbatches go by torch's schedule 1F1B.

torch says which microbatch runs forward or backward when; what is sent goes by ``comm/``, as
everything does: so it is counted, silenced, and run by threads and without data. The way there and
the way back are groups of their own, so that neither queues behind the other. Gradients of all
microbatches add up, as one batch's do, and leave for their sums in the last backward.
"""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.comm.gradient_buckets import GradientSum
from spbench.comm.schedule import Schedule
from spbench.comm.transport import Handle
from spbench.model.inputs import Inputs
from spbench.model.transformer import Transformer
from spbench.workload.mesh import PP
from spbench.workload.sharding import Shard
from spbench.workload.traffic import Phase


@final
class StageStep:
    """Runs forward and backward of a rank's stage, microbatch by microbatch."""

    def __init__(
        self,
        model: Transformer,
        microbatches: int,
        there: Collectives,
        back: Collectives,
        gradients: GradientSum | None,
    ) -> None:
        """A stage of a step.

        Parameters
        ----------
        model
            The stage.
        microbatches
            Parts in which the rank's samples come.
        there, back
            Those of all ranks by which activations go, and by which gradients do.
        gradients
            Sums what the last backward has left; None: there is no backward.
        """
        self.model, self.microbatches, self.gradients = model, microbatches, gradients
        self.is_first, self.is_last = model.positions is not None, model.final is not None
        self._comms: dict[Phase, Collectives] = {"forward": there, "backward": back}
        for comm in (there, back):
            of_stages = comm.along(PP)  # here ranks meet to make their groups
        self.rank, self.stages = of_stages.rank, of_stages.size
        self.schedule = Schedule(self.rank, self.stages, microbatches)

    def __call__(self, mine: Inputs, cotangent: Tensor) -> Tensor:
        """The output of the last stage, as its ranks hold it; of others none of its samples."""
        self._mine, self._cotangent = mine, cotangent
        self._under_way: dict[Phase, list[tuple[Handle, Tensor]]] = {"forward": [], "backward": []}
        self._kept: dict[int, tuple[Inputs, Sequence[Tensor]]] = {}
        self._outputs: list[Tensor] = []
        if self.gradients is not None:
            self.gradients.is_held = True
            for leaf in mine.leaves:
                leaf.grad = torch.empty_like(leaf)
        self.schedule.run(self.forward, self.backward)
        for phase in self._under_way:
            self._sent(phase)
        outputs = self._outputs
        del self._mine, self._cotangent, self._outputs
        return torch.cat(outputs) if self.is_last else cotangent.new_empty(cotangent.shape)

    def forward(self, number: int) -> None:
        """Runs a microbatch, and sends on what the next stage is given."""
        inputs = self._given(number)
        out = self.model(inputs)
        if isinstance(out, Tensor):
            roots: Sequence[Tensor] = [out]
            self._outputs.append(out.detach())
        else:
            roots = out.leaves
            self._send("forward", roots, self.model.last, self.rank + 1)
        if self.gradients is not None:
            self._kept[number] = inputs, roots

    def backward(self, number: int) -> None:
        """Runs a microbatch's backward, and sends back the gradients of what came."""
        if self.gradients is None:
            return
        inputs, roots = self._kept.pop(number)
        if self.is_last:
            gradients = [self._part(self._cotangent, number)]
        else:
            gradients = self._receive("backward", inputs, self.model.last, self.rank + 1)
        is_last = number == self.microbatches - 1
        self.gradients.is_held = not is_last
        with self._comms["forward"].transport.phase("backward"):
            torch.autograd.backward(roots, gradients)
        if is_last:
            self._fill_up()
        if self.is_first:
            for whole, leaf in zip(self._mine.leaves, inputs.leaves, strict=True):
                assert whole.grad is not None and leaf.grad is not None
                self._part(whole.grad, number).copy_(leaf.grad)
        else:
            came = [leaf.grad for leaf in inputs.leaves if leaf.grad is not None]
            self._send("backward", came, self.model.first, self.rank - 1)

    def _fill_up(self) -> None:
        """Zeros for weights that this stage has, and has no block for."""
        assert self.gradients is not None
        for weight in self.model.parameters():
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
                self.gradients.ready(weight)

    def _given(self, number: int) -> Inputs:
        """A microbatch as this stage is given it."""
        mine, is_train = self._mine, self.gradients is not None
        conditions = tuple(self._part(each, number) for each in mine.conditions)
        context = self._part(mine.context, number)
        leaves = [self._part(each.detach(), number) for each in mine.leaves if self.is_first]
        if not self.is_first:
            leaves = self._receive("forward", mine, self.model.first, self.rank - 1)
        given = mine.with_leaves(leaves, conditions=conditions, context=context)
        return given.requiring_grad(is_train)

    def _part(self, x: Tensor, number: int) -> Tensor:
        """The samples of a microbatch, of all."""
        samples = x.shape[0] // self.microbatches
        return x.narrow(0, number * samples, samples)

    def _send(self, phase: Phase, xs: Sequence[Tensor], cut: Shard, to: int) -> None:
        """What was sent before is waited for first: at most one microbatch is on each way."""
        self._sent(phase)
        comm = self._comms[phase]
        way = comm.along(PP).transport
        with comm.transport.phase(phase):
            for x, (_, own) in zip(xs, self.model.passed(cut), strict=True):
                leaving = x.detach().movedim(own.dim, 0).contiguous()
                self._under_way[phase].append((way.send(leaving, to), leaving))

    def _sent(self, phase: Phase) -> None:
        """Waits until what has left has arrived."""
        while self._under_way[phase]:
            handle, _ = self._under_way[phase].pop(0)
            handle.wait()

    def _receive(self, phase: Phase, like: Inputs, cut: Shard, source: int) -> list[Tensor]:
        """What another stage sends of a microbatch, where it is cut so."""
        way, coming = self._comms[phase].along(PP).transport, []
        for x, (shape, own) in zip(like.leaves, self.model.passed(cut), strict=True):
            # The sharded dim comes first in the message, and lies outermost in memory.
            order = [shape[own.dim], *shape[: own.dim], *shape[own.dim + 1 :]]
            arrived = way.empty(x, order)
            coming.append((way.receive(arrived, source), arrived.movedim(0, own.dim)))
        for handle, _ in coming:
            handle.wait()
        return [x for _, x in coming]
