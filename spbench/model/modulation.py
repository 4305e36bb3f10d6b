"""Norms: plain, or modulated by a conditioning vector (adaLN: shift, scale, gate).

    y = norm(x) (1 + scale) + shift  ->  out = sublayer(y)  ->  x + gate out

adaLN is the DiT family's lighter form (Chen et al., PixArt-alpha, 2023, section 2.3): one
projection of the condition serves all blocks of a kind, and each sublayer adds a table of its own.
A condition for each position of ``time`` belongs to that axis and follows its shard; so does every
gradient that it contributes. Where time is part of an axis, each of its positions takes the vectors
of its time. A condition for each token comes cut as the activation is: where that is cut along one
axis and then along another, in both ways, and both are projected, since the vectors are more than
the activation to send.

Where one vector serves all positions, the modulated norm is one operation of torch: backward of
norm, modulation and gated residual then reads or writes the activation 12 times, else 21 times.
"""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from spbench.comm.collectives import Collectives
from spbench.comm.packing import memory_order
from spbench.layers.kernels import rms_norm
from spbench.layers.memory_order import in_memory_order, permuted, restored
from spbench.model.positions import Places, rows_at
from spbench.workload.flops import is_modulated
from spbench.workload.sharding import Shard
from spbench.workload.workload import Workload

EPS = 1e-6
ops = torch.ops.aten


def modulation_indices(workload: Workload) -> list[int | None]:
    """Which of the projected vectors modulates each sublayer of the stack; None: none does."""
    numbers = count()
    # Blocks of a kind share their vectors: a kind is numbered once, however often it is repeated.
    by_kind = {
        block: [next(numbers) if is_modulated(sublayer, workload) else None for sublayer in block]
        for block in dict.fromkeys(part.block for part in workload.parts)
    }
    return [index for part in workload.parts for index in by_kind[part.block] * part.depth]


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
        """Takes one of the projected vectors.

        Parameters
        ----------
        workload : what the model computes
        index : of the projected vectors the one that modulates this sublayer
        shard : how the activation is cut while the sublayer runs
        comm : the collectives of the sequence
        which : the condition to take it from, of those that come cut in different ways
        """
        super().__init__()
        self.index, self.which, self.comm = index, which, comm
        in_time = ["time"] if workload.modulation == "per_time" else []
        self.dim = workload.dim(workload.home("time")) if in_time else None
        self.cut = shard.of(self.dim) if in_time else None
        self.places = Places(workload, in_time)
        self.plain = plain_norm if workload.norm == "layer" else plain_rms_norm
        self.table = nn.Parameter(torch.empty(3, workload.hidden))

    def forward(self, x: Tensor, conditions: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """(B, *axes, H) -> its modulated norm, ``x``, and the gate, which broadcasts to ``x``."""
        # (B, *ones or times or axes, modulated, 3, H) -> without ``modulated``
        mine, places = conditions[self.which].select(-3, self.index), self.places.of("time")
        # Time is an axis of the tensor: its vectors are cut as the activation is.
        if self.cut is not None and places is None:
            mine = self.comm.take(mine, self.cut)
        elif x.ndim + 1 < mine.ndim:  # text, which has one axis
            mine = mine.flatten(1, -3)
        # (..., 3, H) + (3, H): shift, scale and gate of this sublayer alone
        mine = mine + self.table
        if places is not None and self.dim is not None:
            # Time is part of an axis, 8 positions of 2 times: 0 0 0 0 1 1 1 1. A rank takes the
            # times of its own positions, and their vectors.
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
        # A condition for each time, axes time and space: space is missing, and (B, T, ...) becomes
        # (B, T, 1, ...), which broadcasts.
        self.missing = [workload.dim(axis) for axis in workload.axes if axis not in along]
        self.parts = (modulated, 3, hidden)
        self.weight = nn.Parameter(torch.empty(modulated * 3 * hidden, hidden))
        self.bias = nn.Parameter(torch.empty(modulated * 3 * hidden))

    def forward(self, condition: Tensor) -> Tensor:
        projected = in_memory_order(self._projected, condition)
        # In ascending order: where a dim goes in, those before it are in place.
        for dim in self.missing:
            projected = projected.unsqueeze(dim)
        return projected.unflatten(-1, self.parts)

    def _projected(self, condition: Tensor) -> Tensor:
        return F.linear(F.silu(condition), self.weight, self.bias)


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

    The residual goes on with the ``x`` that is returned: where the norm is fused, both its
    gradients are added up there.

    Parameters
    ----------
    x : (B, *axes, H), with its dims in any order in memory, which the results keep
    scale, shift : of as many dims, which broadcast to ``x``
    plain : the norm without weights
    """
    # A rank may hold no position at all, as of text on many ranks: that goes the plain way.
    if plain is plain_norm and _is_one_vector(scale) and _sums_in_32_bits(x) and x.numel():
        order = memory_order(x, 1)
        y, same = _OneVectorNorm.apply(permuted(x, order), scale.flatten(), shift.flatten())
        # The features were last and stay last: only the dims before them go back.
        leading = order[:-1]
        return restored(y, leading), restored(same, leading)
    order = memory_order(x, 1)
    x_lying, scale, shift = (permuted(tensor, order) for tensor in (x, scale, shift))
    # The result lies in memory as the first operand does.
    out = torch.addcmul(shift.contiguous(), plain(x_lying), 1 + scale)
    return restored(out, order[:-1]), x


def gated_sum(x: Tensor, gate: Tensor, out: Tensor) -> Tensor:
    """x + gate * out; the gate broadcasts."""
    return _GatedSum.apply(x, gate, out)


def _is_one_vector(vector: Tensor) -> bool:
    """Whether all samples and positions share it: (1, *ones, H)."""
    return vector.numel() == vector.shape[-1]


def _sums_in_32_bits(x: Tensor) -> bool:
    """A CPU's layer norm sums the gradients of scale and shift in 16 bits, if ``x`` has such."""
    return x.device.type != "cpu" or x.element_size() > 2


class _OneVectorNorm(torch.autograd.Function):
    """Forward: the layer norm with the weights 1 + scale and shift (H), and x. Backward: its
    gradients; that of x with the residual's, which comes in by the second output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        y, mean, rstd = ops.native_layer_norm(x, [x.shape[-1]], 1 + scale, shift, EPS)
        ctx.save_for_backward(x, scale, mean, rstd)
        return y, x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, residual: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, scale, mean, rstd = ctx.saved_tensors
        weight = 1 + scale
        # Its last but one argument, the bias, only says that its gradient is wanted.
        of_x, of_scale, of_shift = ops.native_layer_norm_backward(
            grad, x, [x.shape[-1]], mean, rstd, weight, weight, [True, True, True]
        )
        # The residual went on with this x: both its gradients are added up in memory that is at
        # hand.
        return of_x.add_(residual), of_scale, of_shift


class _GatedSum(torch.autograd.Function):
    """Forward: x + gate out. Backward: the gradients of both, without the pass in which addcmul's
    own multiplies ``out`` by one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, out: Tensor) -> Tensor:
        ctx.save_for_backward(gate, out)
        return torch.addcmul(x, gate, out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gate, out = ctx.saved_tensors
        # The gate broadcasts: its gradient is summed over all that it serves.
        return grad, (grad * out).sum_to_size(gate.shape), grad * gate
