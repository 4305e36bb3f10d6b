"""adaLN in few passes over the activation: the modulated norm and the gated residual.

    y = norm(x) (1 + scale) + shift  ->  out = sublayer(y)  ->  x + gate out

Backward of the plain form reads or writes the activation 23 times, here 9 times: three for the
gate, three for the norm with its modulation, three to add the residual's gradient. Each is one
operation of torch that takes one vector for all positions; on a GPU the gate's is three, with six
passes, which take half as long. Positions that share a vector of the condition, those of a sample
or of a time, are a stretch in memory; several stretches go one after another, and the gate then
needs a fourth pass. Kept are x, out and two numbers a position.
"""

import math
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from spbench.comm.collectives import Collectives
from spbench.comm.packing import memory_order
from spbench.layers.dispatch_modes import is_on_gpu, rms_norm
from spbench.layers.memory_order import in_memory_order, permuted, restored
from spbench.model.positions import Places, rows_at
from spbench.workload.flops import is_modulated
from spbench.workload.sharding import Shard
from spbench.workload.workload import Workload

EPS = 1e-6
LEAST_ELEMENTS = {"cpu": 2**16, "cuda": 2**22}
"""Elements of a stretch, where there are several, from which on operations of its own pay."""
ops = torch.ops.aten


def plain_norm(x: Tensor) -> Tensor:
    """The layer norm without weights."""
    return F.layer_norm(x, x.shape[-1:], eps=EPS)


def plain_rms_norm(x: Tensor) -> Tensor:
    """The RMS norm without weights."""
    return rms_norm(x, x.shape[-1:], None, EPS)


def modulated_norm(
    x: Tensor, scale: Tensor, shift: Tensor, plain: Callable[[Tensor], Tensor] = plain_norm
) -> tuple[Tensor, Tensor]:
    """The ``plain`` norm of (B, *axes, H), times 1 + scale, plus shift; and ``x``.

    The residual goes on with the ``x`` that is returned: both its gradients are added up here.
    """
    order = memory_order(x, 1)
    given = [permuted(each, order) for each in (x, scale, shift)]
    sums_in_16_bits = x.device.type == "cpu" and x.element_size() == 2  # in layer norm's backward
    if plain is not plain_norm or sums_in_16_bits or not _are_long(*given[:2]):
        normed, (_, scale, shift) = plain(given[0]), given
        # The result lies in memory as the first operand does.
        return restored(torch.addcmul(shift.contiguous(), normed, 1 + scale), order), x
    y, same = _ModulatedNorm.apply(*given)
    return restored(y, order), restored(same, order)


def gated_sum(x: Tensor, gate: Tensor, out: Tensor) -> Tensor:
    """x + gate * out; the gate broadcasts."""
    order = memory_order(out, 1)
    given = [permuted(each, order) for each in (x, gate, out)]
    if not _are_long(given[2], given[1]):
        return x.addcmul(gate, out)
    return restored(_GatedSum.apply(*given), order)


def _are_long(x: Tensor, vector: Tensor) -> bool:
    """Whether the stretches of ``x`` are long enough for operations of their own."""
    count = math.prod(_stretches(x, vector))
    return x.numel() > 0 and (
        count == 1 or x.numel() >= count * LEAST_ELEMENTS.get(x.device.type, 2**22)
    )


def _stretches(x: Tensor, vector: Tensor) -> Sequence[int]:
    """The outer dims of ``x``, whose positions have a stretch each that shares a vector."""
    dims = [dim + 1 for dim, length in enumerate(vector.shape[:-1]) if length > 1]
    return x.shape[: max(dims, default=0)]


def _flat(x: Tensor, count: int) -> Tensor:
    """(stretches, positions, H); a view if dims lie in memory in their order."""
    return x.reshape(count, math.prod(x.shape[:-1]) // count, x.shape[-1])


def _vectors(x: Tensor, vector: Tensor) -> Tensor:
    """The vector of each stretch, (stretches, H)."""
    outer = _stretches(x, vector)
    return vector.expand(*outer, *vector.shape[len(outer) :]).reshape(-1, x.shape[-1])


def _summed(parts: list[Tensor], x: Tensor, vector: Tensor) -> Tensor:
    """The gradient of ``vector`` from those of each stretch's."""
    outer = _stretches(x, vector)
    shape = (*outer, *vector.shape[len(outer) :])
    return torch.stack(parts).view(shape).sum_to_size(vector.shape)


class _ModulatedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        weights, biases, hidden = _vectors(x, 1 + scale), _vectors(x, shift), [x.shape[-1]]
        flat = _flat(x, len(weights))
        if len(weights) == 1:
            y, mean, rstd = ops.native_layer_norm(flat, hidden, weights[0], biases[0], EPS)
        else:
            y, mean, rstd = ops.native_layer_norm(flat, hidden, None, None, EPS)
            torch.addcmul(biases[:, None], y, weights[:, None], out=y)
        ctx.save_for_backward(x, scale, mean, rstd)
        return y.view(x.shape), x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, residual: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, scale, mean, rstd = ctx.saved_tensors
        weights = _vectors(x, 1 + scale)
        flat, grad, residual = (_flat(each, len(weights)) for each in (x, grad, residual))
        total, scales, shifts = torch.empty_like(flat), [], []
        for i, weight in enumerate(weights):
            given = (grad[i], flat[i], weight.shape, mean[i], rstd[i], weight, weight)
            part, of_scale, of_shift = ops.native_layer_norm_backward(*given, [True] * 3)
            torch.add(part, residual[i], out=total[i])
            scales.append(of_scale)
            shifts.append(of_shift)
        return total.view(x.shape), _summed(scales, x, scale), _summed(shifts, x, scale)


class _GatedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, out: Tensor) -> Tensor:
        ctx.save_for_backward(gate, out)
        return torch.addcmul(x, gate, out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gate, out = ctx.saved_tensors
        gates = _vectors(out, gate)
        flat, grads, single = _flat(out, len(gates)), _flat(grad, len(gates)), len(gates) == 1
        parts = [_of_product(*each, single) for each in zip(grads, flat, gates, strict=True)]
        of_out = parts[0][0] if single else grads * gates[:, None]
        return grad, _summed([part[1] for part in parts], out, gate), of_out.view(out.shape)


def _of_product(grad: Tensor, x: Tensor, vector: Tensor, both: bool) -> tuple[Tensor, Tensor]:
    """Gradients of x * vector, for x (positions, H), or the vector's alone.

    On a CPU they are one operation: the product is a batch norm at inference with mean 0 and
    variance 1. A GPU's kernel of that takes twice as long as products and a sum.
    """
    if is_on_gpu(grad):
        return grad * vector if both else grad, (grad * x).sum(0)
    kept = (torch.zeros_like(vector), torch.ones_like(vector), *[vector.new_empty(0)] * 2)
    images = (each[None, :, None].permute(0, 3, 1, 2) for each in (grad, x))  # channels last
    wanted = (False, 0.0, [both, True, False])
    of_x, of_vector, _ = ops.native_batch_norm_backward(*images, vector, *kept, *wanted)
    return of_x.permute(0, 2, 3, 1).flatten(0, 2) if both else of_x, of_vector


# Norms: plain, or modulated by a conditioning vector (adaLN: shift, scale, gate).
#
# adaLN is the DiT family's lighter form: one projection of the condition serves all blocks of a
# kind,
# and each sublayer adds a table of its own. A condition for each position of ``time`` belongs to
# that
# axis and follows its shard; so does every gradient that it contributes. Where time is part of an
# axis, each of its positions takes the vectors of its time. A condition for each token comes cut as
# the activation is: where that is cut along one axis and then along another, in both ways, and both
# are projected, since the vectors are more than the activation to send.


def modulation_indices(workload: Workload) -> list[int | None]:
    """Which of the projected vectors modulates each sublayer of the stack; None: none does."""
    numbers = count()
    sets = {
        block: [next(numbers) if is_modulated(each, workload) else None for each in block]
        for block in dict.fromkeys(part.block for part in workload.parts)
    }
    return [index for part in workload.parts for index in sets[part.block] * part.depth]


@final
class PlainNorm(nn.Module):
    """LayerNorm with its own scale and bias, or RMSNorm; the residual is added as it is.

    (B, *axes, H) -> its norm, the activation for the residual to go on with, and no gate.
    """

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(workload.hidden))
        self.bias = nn.Parameter(torch.empty(workload.hidden)) if workload.norm == "layer" else None

    def forward(self, x: Tensor, conditions: Sequence[Tensor]) -> tuple[Tensor, Tensor, None]:
        return in_memory_order(self._normed, x), x, None

    def _normed(self, x: Tensor) -> Tensor:
        if self.bias is None:
            return rms_norm(x, x.shape[-1:], self.weight, EPS)
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, eps=EPS)


@final
class ModulatedNorm(nn.Module):
    """The norm without weights, then (1 + scale) x + shift; the residual's gate comes beside it.

    A rank takes its part of the condition where it belongs to the sharded axis.
    """

    def __init__(
        self, workload: Workload, index: int, shard: Shard, comm: Collectives, which: int = 0
    ) -> None:
        """Takes vector ``index`` of condition ``which``."""
        super().__init__()
        self.index, self.which, self.comm = index, which, comm
        in_time = ["time"] if workload.modulation == "per_time" else []
        self.dim = workload.dim(workload.home("time")) if in_time else None
        self.cut = shard.of(self.dim) if in_time else None
        self.places = Places(workload, in_time)
        self.plain = plain_norm if workload.norm == "layer" else plain_rms_norm
        self.table = nn.Parameter(torch.empty(3, workload.hidden))

    def forward(self, x: Tensor, conditions: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        mine, places = conditions[self.which].select(-3, self.index), self.places.of("time")
        if self.cut is not None and places is None:
            mine = self.comm.take(mine, self.cut)
        elif x.ndim + 1 < mine.ndim:  # text, which has one axis
            mine = mine.flatten(1, -3)
        mine = mine + self.table
        if places is not None and self.dim is not None:
            held = places if self.cut is None else self.comm.take(places, self.cut.along(0))
            mine = rows_at(mine, held, self.dim)
        shift, scale, gate = mine.unbind(-2)
        return *modulated_norm(x, scale, shift, self.plain), gate


@final
class Conditioning(nn.Module):
    """(B, H) or (B, T, H) -> (B, *ones or time, modulated, 3, H); a part of (B, *axes, H) of it."""

    def __init__(self, workload: Workload, modulated: int) -> None:
        super().__init__()
        hidden, conditioned = workload.hidden, workload.conditioned_axes
        along = {workload.home(axis) for axis in conditioned}
        self.missing = [workload.dim(axis) for axis in workload.axes if axis not in along]
        self.parts = (modulated, 3, hidden)
        self.weight = nn.Parameter(torch.empty(modulated * 3 * hidden, hidden))
        self.bias = nn.Parameter(torch.empty(modulated * 3 * hidden))

    def forward(self, condition: Tensor) -> Tensor:
        projected = in_memory_order(self._projected, condition)
        for dim in self.missing:
            projected = projected.unsqueeze(dim)
        return projected.unflatten(-1, self.parts)

    def _projected(self, condition: Tensor) -> Tensor:
        return F.linear(F.silu(condition), self.weight, self.bias)
