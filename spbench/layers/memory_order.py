"""Work on activations in the order in which their positions lie in memory.

The sharded axis is the outermost in memory, wherever it stands among the dims: so collectives take
and give activations as they are. What treats each position alike need not know, and would copy a
tensor whose dims lie otherwise; what joins or splits tensors would give them another order.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from spbench.comm.packing import in_words, memory_order, undone
from spbench.layers.kernels import is_on_gpu


def in_memory_order(function: Callable[[Tensor], Tensor], x: Tensor, features: int = 1) -> Tensor:
    """``function`` of ``x``, which gets and keeps the dims but ``features`` in memory's order."""
    order = memory_order(x, features)
    return restored(function(permuted(x, order)), order[: x.ndim - features])


def split_in_memory_order(
    x: Tensor, widths: Sequence[int], dim: int, features: int = 1
) -> list[Tensor]:
    """Stretches of ``x`` along a feature ``dim`` (negative); gradients join in memory's order.

    Parameters
    ----------
    x : Tensor
        Of any order of dims in memory.
    widths
        Of the stretches, in order.
    dim : int
        The one that is split, negative.
    features : int
        How many dims, the last ones, lie last in memory.

    Returns
    -------
    list of Tensor
        Views of ``x``.
    """
    order = memory_order(x, features)
    whole = permuted(x, order)
    # In a graph the compiler joins gradients, and nothing can ask it where they lie.
    in_a_graph = torch.compiler.is_compiling()
    parts = whole.split(list(widths), dim) if in_a_graph else _Split.apply(whole, widths, dim)
    return [restored(part, order[: x.ndim - features]) for part in parts]


class _Split(torch.autograd.Function):
    """Views, whose gradients are joined by one copy, and by none where they lie end to end."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, widths: Sequence[int], dim: int) -> tuple[Tensor, ...]:
        ctx.dim = dim
        return x.split(list(widths), dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _joined(grads, ctx.dim), None, None


def heads_in_memory_order(
    x: Tensor, widths: Sequence[int], sizes: Sequence[int]
) -> tuple[Tensor, ...]:
    """Stretches of ``x`` (…, numbers) as heads (…, Z, D); gradients join in memory's order.

    Parameters
    ----------
    x : Tensor
        Of any order of dims in memory.
    widths, sizes
        Numbers of each stretch, and of a head of it.

    Returns
    -------
    tuple of Tensor
        Views of ``x``.
    """
    order = memory_order(x, 1)
    whole = permuted(x, order)
    in_a_graph = torch.compiler.is_compiling()
    parts = _heads(whole, widths, sizes) if in_a_graph else _Heads.apply(whole, widths, sizes)
    return tuple(restored(part, order[: x.ndim - 1]) for part in parts)


def _heads(x: Tensor, widths: Sequence[int], sizes: Sequence[int]) -> tuple[Tensor, ...]:
    flat = zip(x.split(list(widths), -1), sizes, strict=True)
    return tuple(part.unflatten(-1, (-1, size)) for part, size in flat)


class _Heads(torch.autograd.Function):
    """Views, whose gradients are joined by one copy, whatever the order of their dims; by none
    where they lie end to end."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *how: Sequence[int]) -> tuple[Tensor, ...]:
        ctx.are_alike = len(set(how[1])) == 1
        return _heads(x, *how)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        if ctx.are_alike:  # heads of one size end to end
            return _joined(grads, -2).flatten(-2), None, None
        return _joined([grad.flatten(-2) for grad in grads], -1), None, None


def _joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    whole = end_to_end(parts, dim)
    return torch.cat([*in_words(parts)], dim).view(parts[0].dtype) if whole is None else whole


def end_to_end(parts: Sequence[Tensor], dim: int) -> Tensor | None:
    """The tensor of which ``parts`` are the stretches along ``dim``, in order; None: they lie
    otherwise in memory."""
    head, place = parts[0], parts[0].storage_offset()
    step = head.stride(dim)
    for part in parts:
        is_next = part.storage_offset() == place and part.stride() == head.stride()
        if not is_next or part.untyped_storage()._cdata != head.untyped_storage()._cdata:
            return None
        place += part.shape[dim] * step
    shape = list(head.shape)
    shape[dim] = sum(part.shape[dim] for part in parts)
    return head.as_strided(shape, head.stride(), head.storage_offset())


def joined_in_memory_order(parts: Sequence[Tensor], features: int = 1) -> Tensor:
    """Parts end to end along the last dim, in the order of the first."""
    order = memory_order(parts[0], features)
    if _is_sorted(order):
        return torch.cat(list(parts), -1)
    leading = order[: parts[0].ndim - features]
    return restored(torch.cat([part.permute(order) for part in parts], -1), leading)


def reshaped(x: Tensor, shape: Sequence[int]) -> Tensor:
    """``x`` in another shape; where that is no view, a GPU copies it in longer words."""
    if not is_on_gpu(x) or torch.compiler.is_compiling():
        return x.reshape(*shape)
    try:
        return x.view(*shape)
    except RuntimeError:
        return _Dense.apply(x).view(*shape)


class _Dense(torch.autograd.Function):
    """A copy without gaps, whose gradient is handed back as it comes."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        (words,) = in_words([x])
        return words.contiguous().view(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(_ctx: Any, grad: Tensor) -> Tensor:
        return grad


def put_outermost(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """``x`` with ``dim`` outermost in memory and the others in their order; a copy unless it is."""
    moved = x.movedim(dim, 0).to(dtype or x.dtype, memory_format=torch.contiguous_format)
    return moved.contiguous().movedim(0, dim)


def _is_sorted(order: Sequence[int]) -> bool:
    return all(dim == place for place, dim in enumerate(order))


def permuted(x: Tensor, order: Sequence[int]) -> Tensor:
    """``x`` with its dims in ``order``; itself where they are so already."""
    return x if _is_sorted(order) else x.permute(*order)


def restored(x: Tensor, leading: Sequence[int]) -> Tensor:
    """``x``, whose ``leading`` dims were permuted, as it was before."""
    return x if _is_sorted(leading) else x.permute(*undone(leading), *range(len(leading), x.ndim))
