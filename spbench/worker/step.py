"""One step of one rank: forward, and in training backward, gradient all-reduce and optimizer.

The gradient of the output is a constant, so a step needs no loss and no target, and the
input is a leaf whose gradient is wanted, as the output of a patch embedding would be.

The optimizer is torch's AdamW over the parameters that this rank holds. A strategy that cuts
weights over the ranks has a part of the optimizer's state to hold and to update, others have all of
it on every rank: nothing here depends on which. torch's fused kernel, on CPU and CUDA, is one pass
over weights, gradients and both moments, which have the weights' dtype.

In timed steps the learning rate is 0: the same arithmetic runs, and the weights stay those that
were proved. The gate has a real one (``take_updates``).
"""

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from spbench.comm.collectives import Collectives
from spbench.comm.compiler import compile_apart
from spbench.comm.fake import silent_transports
from spbench.comm.gradient_buckets import BUCKET_BYTES, GradientSum
from spbench.comm.sharded_weights import SharedWeights, local
from spbench.comm.transport import Transports
from spbench.layers.linear import summed_over, whole_bytes
from spbench.model import inputs
from spbench.model.inputs import Inputs, Samples, load_weights
from spbench.model.sublayers import Attending, SelfAttention
from spbench.model.transformer import AttentionModel, Transformer, model_of
from spbench.strategies.base import Plan
from spbench.worker.fingerprint import Grids
from spbench.worker.held_parts import HeldParts
from spbench.worker.observer import Observer
from spbench.worker.stage_step import StageStep
from spbench.worker.tensor_errors import root_mean_square
from spbench.worker.witness import Witness
from spbench.workload.case import Execution
from spbench.workload.sharding import Shards
from spbench.workload.weights import are_shared, sharing_axes

BUCKETS = 3
"""Buckets of gradients at least, where there are to be several: first, last and between."""


class Captured(Protocol):
    """A step that was recorded, and runs as one (``worker/step_graph.py``)."""

    def replay(self, mine: Inputs, cotangent: Tensor) -> Tensor:
        """The output's shard, of the inputs with which it was recorded."""

    def take_back_gradients(self) -> None:
        """Each ``.grad`` is again the tensor that a replay writes."""


@final
class Step:
    """A model on this rank's shard, and how to run it once."""

    def __init__(
        self,
        plan: Plan,
        transports: Transports,
        device: torch.device,
        *,
        seed: int = 0,
        sharpness: float = 1.0,
        observer: Observer | None = None,
        several_buckets: bool = False,
        with_optimizer: bool = True,
    ) -> None:
        """``seed`` gives every strategy the same weights and inputs. ``several_buckets``: of
        gradients, also of a model that would fill but one."""
        self.plan, self.transports, self.device = plan, transports, device
        self.workload = workload = plan.workload
        self._observer = observer or Observer()
        self.dtype: torch.dtype = getattr(torch, workload.dtype)
        self.train = workload.mode == "train"
        mesh, self._inside = plan.mesh, plan.group.mesh.names
        self.all_ranks = Collectives(transports.strategy, mesh)
        self.comm = self.all_ranks.along(*self._inside)
        """The collectives of the ranks that share the samples of this one."""
        # Also those that only one strategy of a rank will use: all ranks make the same groups in
        # the same order.
        for axis in self._inside:
            self.comm.along(axis)  # here ranks meet to make their groups
        self.rank, self.ranks = self.all_ranks.rank, self.all_ranks.size
        self.held, stages = HeldParts(plan), plan.stages
        self.silent = silent_transports(self.rank, self.ranks)
        with device:
            model = self._model()
        self.seed = seed
        projected = (x for x in model.named_modules() if isinstance(x[1], SelfAttention))
        keys = {f"{name}.qkv.bias": module.keys for name, module in projected}
        load_weights(model, self.comm.rank, seed, sharpness, keys)
        self.model = model.requires_grad_(self.train)
        named = self._whole.named_parameters()
        self._weight_cuts = {name: self.held.cut_of_weight(name, p) for name, p in named}
        self.gradient_comm = Collectives(transports.gradients, mesh)
        over = partial(summed_over, mesh=mesh, holds_whole=plan.group.holds_whole)
        self.gradients: GradientSum | SharedWeights | None = None
        self.shared: SharedWeights | None = None
        """The weights, where ranks share them out."""
        if are_shared(workload, mesh, plan.cuts_weights):
            self.gradients = self.shared = self._shared_weights(over)
            self.comm.deferred.is_off = True  # torch looks for gradients as a unit's backward ends
        elif self.train:
            self.gradients = self._gradient_sum(over, several_buckets)
            self.comm.deferred.on_gradient = self.gradients.ready
        self.stage: StageStep | None = None
        if stages is not None:
            assert isinstance(model, Transformer), "an attention alone has no stages"
            self.comm.deferred.is_off = True  # a gradient is added to by each microbatch
            comms, sums = (self.all_ranks, self.gradient_comm), self.gradients
            assert not isinstance(sums, SharedWeights), "stages share out no weights"
            self.stage = StageStep(model, stages.microbatches, *comms, sums)
        updates = with_optimizer and workload.optimizer == "adamw"
        self.optimizer = adamw(self.model.parameters()) if updates else None
        self.captured: Captured | None = None
        """What a step is a replay of; None: its operations run as they are written."""

    def run_as(self, execution: Execution) -> None:
        """Before its first step: how the model is to run. What is captured is captured later, when
        a first step has set up all that there is to set up."""
        if execution == "compiled":
            compile_apart(self.model.units)

    def _gradient_sum(
        self, over: Callable[[nn.Parameter], tuple[str, ...]], several_buckets: bool
    ) -> GradientSum:
        weights = list(self.model.parameters())
        # Of all stages: what these have in common is in the same buckets everywhere.
        # Whole sizes: where ranks have unequal parts, their buckets are to be of one size.
        summed = sum(whole_bytes(p, self.comm.rank) for p in self._whole.parameters() if over(p))
        # A small model fills one bucket; three show that they leave in order.
        most_bytes = min(summed // BUCKETS if several_buckets else BUCKET_BYTES, BUCKET_BYTES)
        return GradientSum(weights, self.gradient_comm, most_bytes, over)

    def _shared_weights(self, over: Callable[[nn.Parameter], tuple[str, ...]]) -> SharedWeights:
        mesh, model = self.plan.mesh, self.model
        axes = sharing_axes(mesh, self.plan.cuts_weights)
        in_parts = {name for name, p in model.named_parameters() if len(over(p)) > len(axes)}
        return SharedWeights(
            model,
            list(model.get_submodule("blocks").children()),
            self.workload.zero,
            self.gradient_comm,
            mesh.groups(*axes),
            phase=lambda: self.all_ranks.transport.phase_now,
            in_parts=in_parts.__contains__,
        )

    def _model(self) -> Transformer | AttentionModel:
        """The model, or this rank's stage of it."""
        group, stages = self.plan.group, self.plan.stages
        if stages is None:
            model = self._whole = model_of(group, self.comm).to(self.dtype)
            return model
        with torch.device("meta"):
            self._whole = model_of(group, self.comm).to(self.dtype)
            """The model of all stages, without data."""
        part = stages.parts[self.held.stage_of[self.rank]]
        return model_of(group, self.comm, part).to(self.dtype)

    @property
    def weights(self) -> dict[str, Tensor]:
        """What this rank keeps of each weight, by name; of those of other stages nothing."""
        return self._of_all_stages({n: p.detach() for n, p in self.model.named_parameters()})

    def _of_all_stages(self, own: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of weights that this rank has, by name; of other stages' no rows."""
        if self.stage is None:
            return {name: local(x) for name, x in own.items()}
        like = next(iter(own.values()))
        return {
            name: own[name] if name in own else like.new_empty(0, *weight.shape[1:])
            for name, weight in self._whole.named_parameters()
        }

    def witness(self) -> Witness:
        """What sees a step; of another package's code it counts what that sends."""
        axis = self.comm.transport.axis if self.plan.group.sends_itself else None
        return Witness(self.transports, counts_as=axis)

    @contextmanager
    def silenced(self) -> Iterator[None]:
        """Inside, a step computes and packs as always, and sends nothing."""
        self._go_by(self.silent)
        try:
            yield
        finally:
            self._go_by(self.transports)

    def _go_by(self, transports: Transports) -> None:
        self.all_ranks.transport = transports.strategy
        # Groups are made of the transport of all ranks: with another one they are others.
        self.comm.transport = self.all_ranks.along(*self._inside).transport
        self.gradient_comm.transport = transports.gradients

    def give_up_silence(self) -> None:
        """After a silent step that failed: what silent steps hold is freed, and forgotten."""
        self.silent = silent_transports(self.rank, self.ranks)
        self.forget_what_was_left()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def forget_what_was_left(self) -> None:
        """Forgets gradients that were to come: those of a step that raised are of no other."""
        self.comm.deferred.restart()
        if self.gradients is not None:
            self.gradients.restart()

    def seeded_inputs(self, rounded_to: torch.dtype | None = None) -> tuple[Inputs, Tensor]:
        """This rank's part of the inputs, and of the output's gradient, made on the device. Every
        strategy gets the same. ``rounded_to``: a coarser dtype that they are rounded to."""
        cuts = {"x": self.held.first, "text": self.model.text}
        cuts |= {f"pairs of {axis}": cut for axis, cut in self.model.pairs.items()}
        streams = self.plan.group.of_streams.items()
        cuts |= {f"stream {name}": plan.shards[name] for name, plan in streams}
        where: dict[str, Any] = {"device": self.device, "dtype": rounded_to or self.dtype}
        held, rank = self.held, self.comm.rank
        computed, entering, leaving = (
            cut.runs[self.rank][0] for cut in (held.samples, held.entering, held.leaving)
        )
        own: dict[str, Any] = {"rank": rank, "cuts": cuts, "samples": Samples(computed, entering)}
        own |= {"condition_cuts": self.model.condition_cuts}
        mine = inputs.seeded(self.workload, self.seed, **where, **own)
        # Rounded first, where that is asked, and then in the dtype of the step: float32 copies of
        # 16-bit numbers.
        mine = mine.map(lambda x: x.to(self.dtype)).requiring_grad(self.train)
        work = self.workload
        shape = (work.samples, *work.axes.values(), work.out_channels)
        part, row = inputs.held_by(rank, held.last, leaving), inputs.positions_of_a_row(work)
        cotangent = inputs.seeded_part("cotangent", shape, self.seed, held=part, row=row, **where)
        return mine, cotangent.to(self.dtype)

    @torch.no_grad()
    def flip(self, mine: Inputs, cotangent: Tensor) -> None:
        """Makes other inputs of the seeded ones, and with the next call the seeded ones again:
        features in the opposite order, and in training each weight with the opposite sign.

        Whatever is kept from a step on the one gives wrong numbers on the other. Features are whole
        on every rank, and signs need not know how a weight is cut. Nothing is rounded, and no
        memory is kept. Inference may keep what it makes of its weights: there they stay.
        """
        for x in (*mine.tensors, cotangent):
            x.copy_(x.flip(-1))
        for weight in self.weights.values() if self.train else ():
            weight.neg_()

    @property
    def cuts(self) -> dict[str, Shards]:
        """Which part of each of ``tensors`` each rank holds; none: all of it."""
        weights = {
            f"gradient of {name}": self._kept(name, cut) for name, cut in self._weight_cuts.items()
        }
        return self.held.cuts(self.model.pairs) | weights

    def _kept(self, name: str, cut: Shards) -> Shards:
        """How a weight that strategies have cut so is shared out."""
        return cut if self.shared is None else self.shared.cuts(name, cut, self.ranks)

    @property
    def grids(self) -> dict[str, Grids]:
        """The lengths of the axes of the model in each dim that has any, of each of ``tensors``."""
        work = self.workload
        dims = {work.dim(axis): work.grid(axis) for axis in work.axes}
        named = {"output": dims, "gradient of the input": dims}
        named |= {
            f"gradient of {name}.projection": module.projected_grids
            for name, module in self._whole.named_modules()
            if isinstance(module, Attending)
        }
        return {
            name: {dim: [*grid.values()] for dim, grid in grids.items()}
            for name, grids in named.items()
        }

    def tensors(self, mine: Inputs, output: Tensor | None) -> dict[str, Tensor]:
        """The output, the input's gradient and every weight's that a step has left, by name."""
        tensors = mine.gradients if output is None else {"output": output, **mine.gradients}
        if self.train:
            gradients = {}
            for name, parameter in self.model.named_parameters():
                assert parameter.grad is not None, f"{name} has no gradient"
                gradients[name] = parameter.grad
            named = self._of_all_stages(gradients).items()
            tensors |= {f"gradient of {name}": gradient for name, gradient in named}
        return tensors

    def __call__(self, mine: Inputs, cotangent: Tensor) -> Tensor:
        """The output's shard. In training every ``.grad``, of inputs too, is the step's own."""
        self._observer.step()
        if self.captured is not None:
            return self.captured.replay(mine, cotangent)
        return self.uncounted(mine, cotangent)

    @contextmanager
    def uncaptured(self) -> Iterator[None]:
        """Inside, the operations of a step run as they are written, also where it was captured."""
        captured, self.captured = self.captured, None
        try:
            yield
        finally:
            self.captured = captured
            if captured is not None:
                captured.take_back_gradients()

    def uncounted(self, mine: Inputs, cotangent: Tensor) -> Tensor:
        """A step without a number, in which no planted fault strikes."""
        if self.gradients is None:
            with torch.no_grad():
                return self._forward_and_backward(mine, cotangent)
        mine.forget_gradients()
        self.model.zero_grad(set_to_none=True)
        self.forget_what_was_left()
        out = self._forward_and_backward(mine, cotangent)
        self.gradients.finish()
        if self.optimizer is not None:
            self.optimizer.step()
        return out.detach()

    def _forward_and_backward(self, mine: Inputs, cotangent: Tensor) -> Tensor:
        """Whole, or microbatch by microbatch; in training each ``.grad`` is there behind it."""
        if self.stage is not None:
            return self.stage(mine, cotangent)
        out: Tensor = self.model(mine)
        if self.train:
            with self.all_ranks.transport.phase("backward"):
                out.backward(cotangent)
        return out


LEARNING_RATE = 1e-2
"""Learning rate of the gate: large beside the weights' rounding, small beside the weights."""


def adamw(parameters: Iterable[nn.Parameter]) -> AdamW:
    """AdamW as it is timed: without weight decay, at a learning rate of 0."""
    return AdamW(parameters, lr=0.0, weight_decay=0.0, fused=True)


def state_tensors(optimizer: AdamW | None) -> list[Tensor]:
    """All that the optimizer keeps from step to step: both moments, and counts of steps."""
    states = () if optimizer is None else optimizer.state.values()
    return [local(kept) for state in states for kept in state.values() if isinstance(kept, Tensor)]


def state_bytes(optimizer: AdamW | None) -> int | None:
    """Bytes of what it keeps; None without an optimizer."""
    return None if optimizer is None else sum(kept.nbytes for kept in state_tensors(optimizer))


def updates_taken(optimizer: AdamW) -> tuple[int, int]:
    """How many updates the optimizer counts: of the weight that had fewest, and of that with most.

    A weight that it has never met has had none.
    """
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    never = torch.zeros(())
    counts = [optimizer.state.get(weight, {}).get("step", never) for weight in weights]
    if not counts:
        return 0, 0
    # The fused kernel keeps counts on the weights' device: one transfer for all of them.
    fewest, most = torch.stack([count.to(weights[0].device) for count in counts]).aminmax()
    return int(fewest), int(most)


def take_updates(optimizer: AdamW, eps: float) -> None:
    """From now on its steps change the weights."""
    for group in optimizer.param_groups:
        group |= {"lr": LEARNING_RATE, "eps": eps}


def typical_size(gradients: Sequence[Tensor]) -> float:
    """The ``eps`` of the gate: the median of all tensors' root mean squares.

    AdamW divides a gradient by its size. With torch's 1e-8 a gradient that is nothing but rounding
    moves its weight as far as any other, in a direction that rounding decides: on other ranks the
    opposite one. With an eps of this size it hardly moves it, and errors stay as small as they are.
    """
    return statistics.median(map(root_mean_square, gradients)) or 1.0
