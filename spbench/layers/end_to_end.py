"""Image and text end to end, as the one sequence that their attention goes along; and parted again.

    (B, *axes, Z, D), (B, L, Z, D)   --end to end-->   (B, S + L, Z, D)   --parted-->   as they came

Attention without a mask does not mind the order of its positions: the image's run with the sharded
axis first, as they lie in memory, and the joint sequence is outermost there. So each way, and back,
is one copy at most.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from spbench.comm.packing import undone


def end_to_end(x: Tensor, text: Tensor, first: int) -> Tensor:
    """``x`` with its axes as one, dim ``first`` the slowest, and ``text`` behind it."""
    joint: Tensor = _EndToEnd.apply(x, text, first)
    return joint


def parted(joint: Tensor, shape: Sequence[int], first: int) -> tuple[Tensor, Tensor]:
    """``end_to_end`` undone, for an ``x`` whose batch and axes were those of ``shape``."""
    parts: tuple[Tensor, Tensor] = _Parted.apply(joint, tuple(shape[1:-2]), first)
    return parts


def _order(axes: int, first: int) -> list[int]:
    """Dims of (B, *axes, Z, D) as they lie: ``first``, the other axes, batch, heads, numbers."""
    others = (dim for dim in range(1, axes + 1) if dim != first)
    return [first, *others, 0, axes + 1, axes + 2]


def _join(x: Tensor, text: Tensor, first: int) -> Tensor:
    moved = x.permute(_order(x.ndim - 3, first))
    positions = math.prod(x.shape[1:-2])
    joint = x.new_empty(positions + text.shape[1], x.shape[0], *x.shape[-2:])
    joint[:positions].view(moved.shape).copy_(moved)
    joint[positions:].copy_(text.transpose(0, 1))
    return joint.transpose(0, 1)


def _part(joint: Tensor, axes: Sequence[int], first: int) -> tuple[Tensor, Tensor]:
    """Views of ``joint``."""
    order, positions = _order(len(axes), first), math.prod(axes)
    image, text = joint.transpose(0, 1).split([positions, joint.shape[1] - positions])
    lengths = [axes[dim - 1] for dim in order[: len(axes)]]
    return image.unflatten(0, lengths).permute(undone(order)), text.transpose(0, 1)


class _EndToEnd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, text: Tensor, first: int) -> Tensor:
        ctx.how = x.shape[1:-2], first
        return _join(x, text, first)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        return *_part(grad, *ctx.how), None


class _Parted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, joint: Tensor, axes: Sequence[int], first: int) -> tuple[Tensor, Tensor]:
        ctx.first = first
        return _part(joint, axes, first)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, x: Tensor, text: Tensor) -> tuple[Tensor, None, None]:
        return _join(x, text, ctx.first), None, None
