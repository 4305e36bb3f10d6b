"""Attention in blocks of keys: the part of each, the merge of parts, the gradients of each.

A softmax over all keys is one over each block, weighted by what the block has of the whole:

    lse_i = log sum exp(q k_i)      out_i = softmax(q k_i) v_i
    lse = log sum_i exp(lse_i)      out = sum_i exp(lse_i - lse) out_i

Backward of a block needs no other: from the merged out and lse a kernel's backward gives what the
block adds to dQ, and its dK and dV. Tensors are folded, (b, Z, S, D).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from spbench.layers.kernels import LIMITS, chunks
from spbench.layers.lse_kernels import gradients_of, with_lse
from spbench.workload.sharding import shard_sizes


class Part(NamedTuple):
    """Attention of all queries to some of the keys."""

    out: Tensor
    """(b, Z, S, D)."""
    lse: Tensor
    """(b, Z, S): the log-sum-exp of each row of scores, in float32 at least."""


def attend_block(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Part:
    """Attention of (b, Z, S, D) to a block of keys, which may have fewer heads."""
    count = chunks(q, k, LIMITS, masked=False)
    return Part(*_in_chunks(partial(with_lse, causal=causal), count, q, k, v))


def merge(total: Part | None, part: Part, row: int = 0) -> Part:
    """``total`` and a part of its rows from ``row`` on, in the memory of ``total``.

    In float32 at least: each is rounded once, whatever their number. The sigmoid of a gap between
    log-sum-exps is right for any gap; log(1 + exp(x)) overflows above 88.
    """
    if total is None:
        return part
    total = Part(total.out.to(total.lse.dtype), total.lse)
    out, lse = from_row(total.out, row), from_row(total.lse, row)
    gap = part.lse - lse
    out.lerp_(part.out.to(out.dtype), gap.sigmoid()[..., None])
    torch.logaddexp(lse, part.lse, out=lse)
    return total


def block_gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, whole: Part, *, causal: bool = False
) -> tuple[Tensor, ...]:
    """What a block adds to dQ, and its dK and dV. ``whole``: these queries' merge of all blocks."""
    count = chunks(q, k, LIMITS, masked=False)
    return _in_chunks(partial(gradients_of, causal=causal), count, grad, q, k, v, *whole)


def added(total: Tensor | None, part: Tensor, row: int) -> Tensor:
    """``total`` and a part of its rows from ``row`` on, in float32 at least and in its memory."""
    if total is None:
        return part
    total = total.to(torch.promote_types(total.dtype, torch.float32))
    from_row(total, row).add_(part)
    return total


def from_row(x: Tensor, row: int) -> Tensor:
    """The rows of (b, Z, S, ...) from ``row`` on; of all no view, which takes a host its time."""
    return x[:, :, row:] if row else x


def _in_chunks(
    call: Callable[..., tuple[Tensor, ...]], count: int, *tensors: Tensor
) -> tuple[Tensor, ...]:
    """``call`` of as many equal chunks of the folded batch."""
    if count == 1:
        return call(*tensors)
    sizes = list(shard_sizes(len(tensors[0]), count))
    parts = zip(*(x.split(sizes) for x in tensors), strict=True)
    return tuple(torch.cat(same) for same in zip(*(call(*part) for part in parts), strict=True))
