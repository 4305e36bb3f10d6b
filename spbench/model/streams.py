"""Streams of positions: text in the axes' own attentions, and strands side by side.

Two streams, image and text, are joint in attention, side by side in what treats positions alike.

    x (B, *axes, H)   ->  q, k, v  ┐                         ┌  ->  projection out  ->  residual
                                   ├  attend (B, S + L, Z, D) ┤
    text (B, L, H)    ->  q, k, v  ┘                         └  ->  projection out  ->  residual

Text is shared out evenly, whatever axis of the image is sharded: it is counted once and attended
once. A few tokens on many ranks leave some with none. Its weights are the image's, or where a
sublayer is double its own. Behind the last block text is dropped, as these models do.

To attend, image and text are put end to end, and parted again. Attention without a mask does not
mind the order of its positions: the image's run with the sharded axis first, as they lie in memory,
and the joint sequence is outermost there. So each way, and back, is one copy at most.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from spbench.comm.packing import undone
from spbench.layers.attention import Scores
from spbench.model.inputs import Inputs
from spbench.model.sublayers import Attending, FeedForward
from spbench.workload.sharding import Shard


@final
@dataclass(frozen=True, kw_only=True)
class StreamShards:
    """How the image, the text, and both as one sequence are cut."""

    image: Shard
    text: Shard
    joint: Shard


@final
class JointAttention(nn.Module):
    """Attention over all positions of image and text."""

    def __init__(self, image: Attending, text: Attending, shards: StreamShards) -> None:
        """``text``: the projections of text, which may be those of ``image``."""
        super().__init__()
        self.image, self.text, self.shards = image, text, shards

    def forward(self, x: Tensor, text: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
        image, cut = self.image, self.shards
        heads, beside = image.into(x, cut.image)
        text_heads, text_beside = self.text.into(text, cut.text)
        turned = image.turned(*image.normed(*heads), cut.image)
        # Rotary positions are the image's: queries and keys of text are normed and not turned.
        both = zip(turned, self.text.normed(*text_heads), strict=True)
        q, k, v = (end_to_end(*streams, cut.image.dim) for streams in both)
        # (B, S + L, Z, D): one axis at dim 1, however many the image has
        attended = image.attend(q, k, v, Scores(dims=(1,)), cut.joint)
        x, text = parted(attended, turned[0].shape, cut.image.dim)
        return image.out_of(x, beside, cut.image), self.text.out_of(text, text_beside, cut.text)


@final
class FeedForwards(nn.Module):
    """An mlp of each stream."""

    def __init__(self, image: FeedForward, text: FeedForward, shards: StreamShards) -> None:
        super().__init__()
        self.image, self.text, self.shards = image, text, shards

    def forward(self, x: Tensor, text: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
        return self.image(x, inputs, self.shards.image), self.text(text, inputs, self.shards.text)


def of_both(image: nn.Module, text: nn.Module, shards: StreamShards) -> nn.Module:
    """One sublayer of both streams."""
    if isinstance(image, FeedForward) and isinstance(text, FeedForward):
        return FeedForwards(image, text, shards)
    assert isinstance(image, Attending) and isinstance(text, Attending)
    return JointAttention(image, text, shards)


def alone(x: Tensor, *others: Tensor) -> Tensor:
    """``x`` without the other streams (B, L, H), whose gradients are zero.

    So weights behind the last attention that are a stream's alone have zero gradients, not none.
    """
    return _Alone.apply(x, *others) if others else x


class _Alone(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *others: Tensor) -> Tensor:
        # Zeros are made as a stream lies in memory, (L, B, H).
        ctx.shapes = [other.transpose(0, 1).shape for other in others]
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return grad, *(grad.new_zeros(shape).transpose(0, 1) for shape in ctx.shapes)


def end_to_end(x: Tensor, text: Tensor, first: int) -> Tensor:
    """(B, *axes, Z, D) and (B, L, Z, D) -> (B, S + L, Z, D), dim ``first`` of x the slowest."""
    return _EndToEnd.apply(x, text, first)


def parted(joint: Tensor, shape: Sequence[int], first: int) -> tuple[Tensor, Tensor]:
    """``end_to_end`` undone, for an ``x`` whose batch and axes were those of ``shape``."""
    return _Parted.apply(joint, tuple(shape[1:-2]), first)


def in_a_row(x: Tensor, first: int) -> Tensor:
    """(B, *axes, H) -> (B, S, H), dim ``first`` of x the slowest in S, which lies outermost."""
    moved = x.permute(_order(x.ndim - 2, first)[: x.ndim])
    return moved.flatten(0, -3).transpose(0, 1)


def on_axes(row: Tensor, like: Tensor, first: int) -> Tensor:
    """``in_a_row`` undone, in the shape of ``like``."""
    order = _order(like.ndim - 2, first)[: like.ndim]
    lengths = [like.shape[dim] for dim in order[:-2]]
    return row.transpose(0, 1).unflatten(0, lengths).permute(undone(order))


def _order(axes: int, first: int) -> list[int]:
    """Dims of (B, *axes, Z, D) as they lie: ``first``, the other axes, batch, heads, numbers."""
    # (B, T, S, Z, D) with dim 2 first: 2, 1, 0, 3, 4
    return [first, *(dim for dim in range(1, axes + 1) if dim != first), 0, axes + 1, axes + 2]


def _join(x: Tensor, text: Tensor, first: int) -> Tensor:
    moved = x.permute(_order(x.ndim - 3, first))
    positions = math.prod(x.shape[1:-2])
    # (S + L, B, Z, D) in memory, seen as (B, S + L, Z, D): each stream is copied once, to its part
    joint = x.new_empty(positions + text.shape[1], x.shape[0], *x.shape[-2:])
    joint[:positions].view(moved.shape).copy_(moved)
    joint[positions:].copy_(text.transpose(0, 1))
    return joint.transpose(0, 1)


def _part(joint: Tensor, axes: Sequence[int], first: int) -> tuple[Tensor, Tensor]:
    """Views of ``joint``."""
    order, positions = _order(len(axes), first), math.prod(axes)
    image, text = joint.transpose(0, 1).split([positions, joint.shape[1] - positions])
    # Dim 0 is the batch, so that axis 0 is dim 1.
    lengths = [axes[dim - 1] for dim in order[: len(axes)]]
    # (S, B, Z, D) -> (first, other axes, B, Z, D) -> (B, *axes, Z, D)
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
