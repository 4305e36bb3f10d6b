"""Kernels of attention: which serves, what one call of it gets, what it gives beside its out.

Kernels differ by up to three times: every strategy asks for the same ones in the same order
(docs/decisions/0023). Rings need the log-sum-exp of each row of scores, and backwards of some of
the keys: they call the kernel that ``scaled_dot_product_attention`` would take by its own name;
where it takes none, plain products stand in.

On torch's device ``meta`` attention is one operation, or what a CPU computes, and a GPU's RMS norm
is one: torch would always take them apart there, which no device does that has a kernel for them.

Tensors are (b, Z, S, D): folded batch, heads, positions, head size; log-sum-exps (b, Z, S). Keys
and values may have fewer heads than queries: a divisor of their number. Values, and with them
results, may be of another size than keys; where a kernel takes one size alone, zeros make up for
the difference (``takes_two_sizes``): they change no score and no result.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel

from spbench.comm.compiler import applied
from spbench.workload.mask import Picks, Strip, Tile
from spbench.workload.sharding import shard_sizes

aten = torch.ops.aten
Tensors = tuple[Tensor, ...]

FASTEST_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
"""Kernels of a GPU; the first that takes dtype, head size and mask serves all strategies."""
HOPPER = (9, 0)

AS_ON: ContextVar[str] = ContextVar("AS_ON", default="cuda")
"""The device whose operations a dry run goes through."""
FUSES_NORMS: ContextVar[bool] = ContextVar("FUSES_NORMS", default=True)
"""Whether an RMS norm is a GPU's one kernel there, as torch's is, or its single operations, as the
one that engines for diffusion write for themselves."""


@final
@dataclass(frozen=True, kw_only=True)
class KernelLimits:
    """The most that one call of a kernel takes; kernels of a GPU fail beyond, or compute wrongly.

    A CPU would need none, and keeps to the same, so that its gate proves what a GPU runs.
    """

    folded_batch: int = 65_535
    """Flash and the memory-efficient kernel have the batch along y or z of CUDA's grid, where at
    most 65,535 blocks fit."""
    elements: int = 2**31 - 1
    """Kernels count elements with signed integers of 32 bits."""
    length_multiple: int = 128
    """Flash's backward sums up the queries' gradient in a buffer of such lengths."""
    head_multiple: int = 32
    """Head sizes of that buffer are multiples of this."""


LIMITS = KernelLimits()


def fastest_kernels(device: torch.device) -> AbstractContextManager[None]:
    """Inside, all attention of this process asks for the fastest kernel first.

    cuDNN's is the fastest on an H200, and assumed so on newer GPUs; older ones keep flash.
    """
    if device.type != "cuda":
        return nullcontext()
    is_older = torch.cuda.get_device_capability(device) < HOPPER
    order = FASTEST_FIRST[1:] if is_older else FASTEST_FIRST  # without cuDNN's on older ones
    return sdpa_kernel(order, set_priority=True)


def kernel(q: Tensor, k: Tensor, v: Tensor, *, limits: KernelLimits = LIMITS, **how: Any) -> Tensor:
    """Attention, differentiable, by torch's ``scaled_dot_product_attention``.

    Beyond ``limits`` the folded batch b goes in as few equal chunks as they allow, which are views;
    only what comes out is copied.

    Parameters
    ----------
    q : (b, Z, S, D)
    k : (b, Zkv, K, D), with as many heads as q or a divisor of that
    v : (b, Zkv, K, Dv)
    limits : the most that one call may get
    how : ``is_causal``, or an ``attn_mask`` (1, Z, S, K) that is the same for the whole batch

    Returns
    -------
    (b, Z, S, Dv), which lies in memory as (b, S, Z, Dv)
    """
    size = v.shape[-1]
    if size != q.shape[-1] and not takes_two_sizes(q):
        even = _of_one_size(q, k, v)
        return _first(kernel(*even, limits=limits, scale=q.shape[-1] ** -0.5, **how), size)
    count = chunks(q, v if size > k.shape[-1] else k, limits, masked="attn_mask" in how)
    if count == 1:
        return _call(q, k, v, **how)
    parts = zip(*(x.split(list(shard_sizes(q.shape[0], count))) for x in (q, k, v)), strict=True)
    # Joined in the layout that kernels write, (b, S, Z, D), as one call would leave it.
    return torch.cat([_call(*part, **how).transpose(1, 2) for part in parts]).transpose(1, 2)


def takes_two_sizes(q: Tensor) -> bool:
    """Whether the kernel of such queries takes values of another size than keys.

    A CPU's does not, nor does flash, which serves 16 bits on GPUs before Hopper; cuDNN's and the
    memory-efficient one do.
    """
    if q.is_meta:
        return AS_ON.get() == "cuda"
    is_short = q.dtype in (torch.bfloat16, torch.float16)
    return q.is_cuda and not (is_short and torch.cuda.get_device_capability(q.device) < HOPPER)


def _of_one_size(*xs: Tensor) -> Tensors:
    """With zeros behind each head that is smaller than the largest."""
    size = max(x.shape[-1] for x in xs)
    return tuple(x if x.shape[-1] == size else F.pad(x, (0, size - x.shape[-1])) for x in xs)


def _first(x: Tensor, size: int) -> Tensor:
    """The first numbers of each head; of all no view, which takes a host its time."""
    return x[..., :size] if size < x.shape[-1] else x


def chunks(q: Tensor, k: Tensor, limits: KernelLimits, *, masked: bool) -> int:
    """The smallest number of chunks of the folded batch that are within ``limits``.

    Parameters
    ----------
    q, k : Tensor
        (b, Z, S, D) and (b, Zkv, K, D); in place of keys values, if they are larger.
    limits
        What a kernel takes at most.
    masked : bool
        Whether it is given a mask or a bias.

    Returns
    -------
    int
        1 or more.
    """
    batch, heads, queries, head_dim = q.shape
    rows, keys = (_round_up(n, limits.length_multiple) for n in (queries, k.shape[2]))
    head_dim = max(head_dim, k.shape[-1])
    largest = heads * max(rows, keys) * _round_up(head_dim, limits.head_multiple)
    if masked:  # whose gradient the memory-efficient kernel writes for each of the batch
        largest = max(largest, heads * rows * keys)
    # of one sample's largest tensor as many as 32 bits count, and no more than the grid has blocks
    fitting = max(1, min(limits.folded_batch, limits.elements // max(1, largest)))
    return max(1, _round_up(batch, fitting) // fitting)


def _round_up(number: int, multiple: int) -> int:
    # Floor division of the negated number rounds up: 130 to 256 for a multiple of 128.
    return -(-number // multiple) * multiple


def _call(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
    group = q.shape[1] // k.shape[1]
    # In 32 bits every kernel of a GPU that takes groups would hold all scores.
    only_plain = q.is_cuda and q.dtype not in (torch.bfloat16, torch.float16)
    if group > 1 and ("attn_mask" in how or only_plain):
        k, v = _repeated(k, group), _repeated(v, group)
        group = 1
    attention = one_operation if q.is_meta else F.scaled_dot_product_attention
    return attention(q, k, v, enable_gqa=group > 1, **how)


def _repeated(keys: Tensor, group: int) -> Tensor:
    """(b, Zkv, K, D) -> (b, Zkv group, K, D): each head as often as query heads attend to it."""
    return keys[:, :, None].expand(-1, -1, group, -1, -1).flatten(1, 2)


# Log-sum-exps, and backwards of some of the keys


class LseKernel(NamedTuple):
    """(causal, scale, q, k, v) -> out, lse, and (causal, scale, grad, q, k, v, out, lse) -> dQ, dK,
    dV. Scores are q k x scale."""

    forward: Callable[..., Tensors]
    backward: Callable[..., Tensors]
    takes_groups: bool  # whether k and v may have fewer heads than q


def with_lse(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensors:
    """Attention and its log-sum-exp; under a ``causal`` mask there are as many keys as queries.

    Parameters
    ----------
    q : (b, Z, S, D)
    k : (b, Zkv, K, D), a block of the keys
    v : (b, Zkv, K, Dv)
    causal : whether query i sees the keys 0 to i alone

    Returns
    -------
    out (b, Z, S, Dv), and lse (b, Z, S) in float32 at least: log of the sum of exp(q k / sqrt D)
    """
    scale, size = q.shape[-1] ** -0.5, v.shape[-1]
    if not takes_two_sizes(q):
        q, k, v = _of_one_size(q, k, v)
    kernel, k, v = _served(q, k, v, causal)
    out, lse = kernel.forward(causal, scale, q, k, v)
    return _first(out, size), lse


def gradients_of(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, causal: bool
) -> Tensors:
    """dQ, dK and dV of a block of keys, by the kernel that ``with_lse`` takes.

    Parameters
    ----------
    q : (b, Z, S, D)
    grad, out : (b, Z, S, Dv); out is attention to *all* keys, and grad its gradient
    k, v : (b, Zkv, K, D) and (b, Zkv, K, Dv), the block's
    lse : (b, Z, S), the log-sum-exp over all keys
    causal : whether query i sees the keys 0 to i alone

    Returns
    -------
    what the block adds to dQ (b, Z, S, D), and its dK and dV (b, Zkv, K, D) and (b, Zkv, K, Dv)
    """
    scale, sizes = q.shape[-1] ** -0.5, (q.shape[-1], k.shape[-1], v.shape[-1])
    if not takes_two_sizes(q):
        grad, q, k, v, out = _of_one_size(grad, q, k, v, out)
    kernel, many_k, many_v = _served(q, k, v, causal)
    given = grad, q, many_k, many_v, out, lse.contiguous()
    found = zip(kernel.backward(causal, scale, *given), sizes, strict=True)
    d_q, *d_keys = (_first(gradient, size) for gradient, size in found)
    if many_k.shape[1] > k.shape[1]:
        # A key head's gradient is the sum of those of its copies; summed as (b, K, Zkv, group, D),
        # as kernels lay gradients out, so that dK and dV lie so too.
        by_group = (d.transpose(1, 2).unflatten(2, (k.shape[1], -1)) for d in d_keys)
        d_keys = [d.sum(3).transpose(1, 2) for d in by_group]
    return d_q, *d_keys


def _served(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[LseKernel, Tensor, Tensor]:
    """The kernel, and k and v with as many heads as it wants."""
    kernel, group = _kernel(q, k, v, causal), q.shape[1] // k.shape[1]
    if group == 1 or kernel.takes_groups:
        return kernel, k, v
    k, v = _repeated(k, group), _repeated(v, group)
    return _kernel(q, k, v, causal), k, v


@torch.enable_grad()
def _kernel(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> LseKernel:
    if q.is_meta:
        return KERNELS[SDPBackend.FLASH_ATTENTION]  # one operation, as ``one_operation`` is
    if q.is_cuda and q.shape[-1] % 8:
        return PLAIN  # scaled_dot_product_attention would pad
    how = {"is_causal": causal, "enable_gqa": q.shape[1] != k.shape[1]}
    # torch's own choice among kernels that have a backward: so q is one that wants a gradient.
    chosen = aten._fused_sdp_choice(q.detach().requires_grad_(), k, v, **how)
    return KERNELS.get(SDPBackend(chosen), PLAIN)


def _flash(causal: bool, scale: float, *qkv: Tensor) -> Tensors:
    flash = aten._scaled_dot_product_flash_attention
    if not qkv[0].is_cuda:
        flash = aten._scaled_dot_product_flash_attention_for_cpu
    return flash(*qkv, 0.0, causal, scale=scale)[:2]


def _flash_backward(causal: bool, scale: float, *given: Tensor) -> Tensors:
    _, q, k, *_ = given
    if not q.is_cuda:
        backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
        return backward(*given, 0.0, causal, scale=scale)
    more = None, None, q.shape[2], k.shape[2], 0.0, causal, *_seeds(q)
    return aten._scaled_dot_product_flash_attention_backward(*given, *more, scale=scale)


def _cudnn(causal: bool, scale: float, *qkv: Tensor) -> Tensors:
    how = None, True, 0.0, causal
    out, lse, *_ = aten._scaled_dot_product_cudnn_attention(*qkv, *how, scale=scale)
    return out, lse.view(out.shape[:-1])


def _cudnn_backward(causal: bool, scale: float, *given: Tensor) -> Tensors:
    _, q, k, *_ = given
    more = *_seeds(q), None, None, None, q.shape[2], k.shape[2], 0.0, causal
    given = *given[:-1], given[-1].unsqueeze(-1)
    return aten._scaled_dot_product_cudnn_attention_backward(*given, *more, scale=scale)


def _efficient(causal: bool, scale: float, *qkv: Tensor) -> Tensors:
    how = None, True, 0.0, causal
    out, lse, *_ = aten._scaled_dot_product_efficient_attention(*qkv, *how, scale=scale)
    return out, lse.narrow(-1, 0, out.shape[2])


def _efficient_backward(causal: bool, scale: float, *given: Tensor) -> Tensors:
    grad, q, k, v, out, lse = given
    lse = torch.nn.functional.pad(lse, (0, -lse.shape[-1] % 32), value=torch.inf)  # as in forward
    more = None, out, lse, *_seeds(q), 0.0, [True, True, True, False], causal
    backward = aten._scaled_dot_product_efficient_attention_backward
    return backward(grad, q, k, v, *more, scale=scale)[:3]


def _seeds(q: Tensor) -> Tensors:
    return q.new_empty((2, 2), dtype=torch.int64).unbind()  # of dropout, which is 0


def plain_attention(causal: bool, scale: float, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
    """Out (b, Z, S, Dv), in the memory order of q as a kernel's, and log-sum-exps (b, Z, S).

    In float32 at least, with keys before queries, (b, Z, K, S): softmax along dim 2.
    """
    scores = _scores(causal, scale, q, k)
    # lse = m + log sum exp(score - m), m the largest: no exponential exceeds 1.
    most = scores.amax(-2, keepdim=True)
    weights = scores.sub_(most).exp_()
    total = weights.sum(-2, keepdim=True)
    out = weights.div_(total).mT @ v.to(weights.dtype)
    return like_queries(q, v).copy_(out), most.add_(total.log_()).squeeze(-2)


def like_queries(q: Tensor, v: Tensor) -> Tensor:
    """Memory for results (b, Z, S, Dv), in the order in which ``q`` lies."""
    if q.shape[-1] == v.shape[-1]:
        return torch.empty_like(q)
    strides = q.stride()
    order = sorted(range(3), key=strides.__getitem__, reverse=True)  # the outermost first
    empty = q.new_empty(*(q.shape[dim] for dim in order), v.shape[-1])
    return empty.permute(*(order.index(dim) for dim in range(3)), 3)


def plain_gradients(causal: bool, scale: float, *given: Tensor) -> Tensors:
    """dQ, dK and dV as a kernel's, without gaps as (b, S, Z, D), from the out and lse of all keys.

    ``given``: grad, q, k, v, out and lse. With P = exp(Q K^T / sqrt D - lse), the weights, and O
    the out (Dao et al., FlashAttention, 2022, appendix B.2):

        dV = P^T dO                  dS = P * (dO V^T - rowsum(dO * O))
        dQ = dS K / sqrt D           dK = dS^T Q / sqrt D
    """
    *tensors, lse = given
    dtype = tensors[0].dtype
    grad, q, k, v, out = (x.to(lse.dtype) for x in tensors)
    of_rows = (grad * out).sum(-1)  # rowsum(dO * O), (b, Z, S)
    grad, q, k = (x.contiguous() for x in (grad, q, k))  # each is in two products
    # All transposed, keys before queries, (b, Z, K, S).
    weights = _scores(causal, scale, q, k).sub_(lse[:, :, None]).exp_()
    d_scores = (v @ grad.mT).sub_(of_rows[:, :, None]).mul_(weights).mul_(scale)
    products = ((d_scores.mT, k), (d_scores, q), (weights, grad))
    return tuple(
        (x @ y).transpose(1, 2).contiguous().transpose(1, 2).to(dtype) for x, y in products
    )


def _scores(causal: bool, scale: float, q: Tensor, k: Tensor) -> Tensor:
    """K Q^T x scale, (b, Z, K, S), minus infinity where a key comes after the query."""
    q, k = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (q, k))
    scores = (k @ q.mT).mul_(scale)
    if causal:  # below the diagonal of (K, S) the key's position is the larger one
        scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).tril(-1), -torch.inf)
    return scores


PLAIN = LseKernel(plain_attention, plain_gradients, takes_groups=False)
KERNELS = {
    SDPBackend.CUDNN_ATTENTION: LseKernel(_cudnn, _cudnn_backward, takes_groups=True),
    SDPBackend.FLASH_ATTENTION: LseKernel(_flash, _flash_backward, takes_groups=True),
    SDPBackend.EFFICIENT_ATTENTION: LseKernel(_efficient, _efficient_backward, takes_groups=False),
}


# Parts of attention, and what a window leaves


class Part(NamedTuple):
    """Attention of all queries to some of the keys."""

    out: Tensor
    """(b, Z, S, D)."""
    lse: Tensor
    """(b, Z, S): the log-sum-exp of each row of scores, in float32 at least."""


def attend_block(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Part:
    """Attention of folded queries to a block of keys.

    Parameters
    ----------
    q : Tensor
        (b, Z, S, D).
    k, v : Tensor
        (b, Zkv, K, D), of as many heads or fewer.
    causal : bool
        Whether query i sees the keys 0 to i of the block alone, of which there are as many.

    Returns
    -------
    Part
        Of these keys: out (b, Z, S, D) and log-sum-exp (b, Z, S).
    """
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
    # exp(lse_i - lse) of the new part is the sigmoid of the gap: out + weight (new out - out).
    gap = part.lse - lse
    out.lerp_(part.out.to(out.dtype), gap.sigmoid()[..., None])
    torch.logaddexp(lse, part.lse, out=lse)
    return total


def block_gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, whole: Part, *, causal: bool = False
) -> tuple[Tensor, ...]:
    """What a block adds to dQ, and its dK and dV.

    Parameters
    ----------
    grad, q : (b, Z, S, D), the queries and the gradient of their out
    k, v : (b, Zkv, K, D), the block
    whole : these queries' merge of all blocks
    causal : whether query i sees the keys 0 to i alone
    """
    count = chunks(q, k, LIMITS, masked=False)
    return _in_chunks(partial(gradients_of, causal=causal), count, grad, q, k, v, *whole)


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


def attend_apart(q: Tensor, k: Tensor, v: Tensor, tiles: Sequence[Tile]) -> Tensor:
    """``attend_tiles`` without sinks where no two tiles have a query or a key in common, and all
    queries are in one: each by the kernel of a whole attention.

    Parameters
    ----------
    q : (b, Z, S, D)
    k, v : (b, Zkv, K, D) and (b, Zkv, K, Dv)
    tiles : in which a query sees all keys, or those up to its own column

    Returns
    -------
    (b, Z, S, Dv), which lies in memory as (b, S, Z, Dv)
    """
    outs = []
    for tile in tiles:
        assert tile.sees != "late", "a query that sees no key up to its own is in two tiles"
        given = (x.flatten(0, 1) for x in (*_stretches(tile.rows, q), *_stretches(tile.keys, k, v)))
        out = kernel(*given, is_causal=tile.sees == "early").unflatten(0, (len(q), -1))
        outs.append(_joined(out).transpose(1, 2))
    joined = torch.cat(outs, 1)
    if (order := _order((*tiles,))) is not None:
        joined = joined.index_select(1, _index(order, joined.device))
    return joined.transpose(1, 2)


def attend_tiles(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, tiles: Sequence[Tile]
) -> Tensor:
    """Attention of each query to the keys that ``tiles`` show it, differentiable.

    Parameters
    ----------
    q : (b, Z, S, D)
    k, v : (b, Zkv, K, D) and (b, Zkv, K, Dv)
    sinks : (Z,), a score of each head that has no value; None: there are none
    tiles : of all pairs that see each other, each once

    Returns
    -------
    (b, Z, S, Dv)
    """
    out: Tensor = applied(_OfTiles, q, k, v, sinks, tiles)
    return out


def tiles_part(q: Tensor, k: Tensor, v: Tensor, tiles: Sequence[Tile]) -> Part:
    """The out and log-sum-exps of ``attend_tiles``, without sinks; of rows without keys 0, and
    minus infinity."""
    total = nothing_seen(q, v)
    add_tiles(total, q, k, v, tiles)
    return total


def nothing_seen(q: Tensor, v: Tensor) -> Part:
    """The part of no keys, in float32 at least: 0, of weight 0."""
    wide = torch.promote_types(q.dtype, torch.float32)
    rows = q.new_zeros(*q.shape[:-1], v.shape[-1], dtype=wide)
    return Part(rows, rows.new_full(q.shape[:-1], -torch.inf))


def add_tiles(total: Part, q: Tensor, k: Tensor, v: Tensor, tiles: Sequence[Tile]) -> None:
    """Merges what these tiles give into ``total``, in its memory."""
    for tile in tiles:
        given = _given(tile, [q], [k, v])
        part = Part(*(_turned(tile, x) for x in attend_block(*given, causal=tile.sees != "whole")))
        own = Part(*_stretches(tile.rows, *total))
        many = len(own.out)
        merge(own, Part(*(x.unflatten(0, (many, -1)) for x in part)))
        if isinstance(tile.rows, Picks):  # what was merged into is a copy
            for whole, rows in zip(total, own, strict=True):
                whole.index_copy_(2, _index(tile.rows, whole.device), _joined(rows))


def add_gradients_of_tiles(
    sums: Sequence[Tensor], rows: Sequence[Tensor], keys: Sequence[Tensor], tiles: Sequence[Tile]
) -> None:
    """Adds what these tiles give to dQ, dK and dV, in their memory.

    ``rows``: grad, q, out and lse; ``keys``: k and v.
    """
    for tile in tiles:
        grad, q, out, lse, k, v = _given(tile, rows, keys)
        found = block_gradients(grad, q, k, v, Part(out, lse), causal=tile.sees != "whole")
        places = tile.rows, tile.keys, tile.keys
        for total, where, gradient in zip(sums, places, found, strict=True):
            part = _turned(tile, gradient).unflatten(0, (len(total), -1))
            if isinstance(where, Picks):
                total.index_add_(2, _index(where, total.device), _joined(part).to(total.dtype))
            else:
                _stretches(where, total)[0].add_(part)


def with_sinks(total: Part, sinks: Tensor | None) -> Part:
    """``total``, whose softmax has one more score in each row: a head's (Z,), without a value."""
    if sinks is None:
        return total
    lse = torch.logaddexp(total.lse, sinks.detach().to(total.lse.dtype)[:, None])
    return Part(total.out * (total.lse - lse).exp()[..., None], lse)


def gradient_of_sinks(
    grad: Tensor, out: Tensor, lse: Tensor, sinks: Tensor | None
) -> Tensor | None:
    """The gradient of a head's sink, from the out and lse that have it in them."""
    if sinks is None:
        return None
    # A score's gradient is P (dO v - rowsum(dO * O)), with P = exp(score - lse), and v = 0.
    weight = (sinks.detach().to(lse.dtype)[:, None] - lse).exp()
    of_rows = (grad.to(lse.dtype) * out.to(lse.dtype)).sum(-1)
    return -(weight * of_rows).sum((0, 2)).to(sinks.dtype)


class _OfTiles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *how: Any) -> Tensor:
        sinks, ctx.tiles = how
        total = with_sinks(tiles_part(q, k, v, ctx.tiles), sinks)
        out = like_queries(q, v).copy_(total.out)
        ctx.save_for_backward(q, k, v, out, total.lse, sinks)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse, sinks = ctx.saved_tensors
        sums = [x.new_zeros(x.shape, dtype=lse.dtype) for x in (q, k, v)]
        add_gradients_of_tiles(sums, (grad, q, out, lse), (k, v), ctx.tiles)
        d_q, d_k, d_v = (x.to(q.dtype) for x in sums)
        return d_q, d_k, d_v, gradient_of_sinks(grad, out, lse, sinks), None


def _stretches(where: Strip | Picks, *tensors: Tensor) -> list[Tensor]:
    """(b, Z, S, ...) as stretches, (b, count, Z, size, ...): of a strip as views."""
    if isinstance(where, Picks):
        # As kernels leave them, (b, S, Z, ...), all heads of a position are in one piece.
        moved = (x.movedim(1, 2) for x in tensors)
        picked = (x.index_select(1, _index(where, x.device)) for x in moved)
        return [x.unflatten(1, where.places.shape).movedim(3, 2) for x in picked]
    strip, length = where, (where.times - 1) * where.step + where.size
    apart = (x.narrow(2, strip.first, length).unfold(2, strip.size, strip.step) for x in tensors)
    # (b, Z, count, ..., size): the stretch that unfolds goes last
    return [x.movedim(-1, 3).transpose(1, 2) for x in apart]


def _index(picks: Picks, device: torch.device) -> Tensor:
    """The places end to end, on a device."""
    if device.type == "meta":  # a dry run counts it each time, whatever ran before
        return torch.empty(picks.times * picks.size, dtype=torch.int64, device=device)
    return _brought(picks, device)


@lru_cache(maxsize=200)
def _brought(picks: Picks, device: torch.device) -> Tensor:
    return torch.as_tensor(picks.places.reshape(-1), device=device)


@lru_cache(maxsize=100)
def _order(tiles: tuple[Tile, ...]) -> Picks | None:
    """Where each position is in the tiles end to end; None: all are in order."""
    rows = [tile.rows.places.reshape(-1) for tile in tiles if isinstance(tile.rows, Picks)]
    return Picks(np.argsort(np.concatenate(rows))[None]) if rows else None


def _joined(stretches: Tensor) -> Tensor:
    """(b, count, Z, size, ...) -> (b, Z, count x size, ...)."""
    return stretches.transpose(1, 2).flatten(2, 3)


def _given(tile: Tile, rows: Sequence[Tensor], keys: Sequence[Tensor]) -> list[Tensor]:
    """Its stretches as a folded batch; turned round where a query sees later keys, so that these
    are the earlier ones."""
    stretches = _stretches(tile.rows, *rows) + _stretches(tile.keys, *keys)
    return [_turned(tile, x.flatten(0, 1)) for x in stretches]


def _turned(tile: Tile, x: Tensor) -> Tensor:
    return x.flip(2) if tile.sees == "late" else x


# What stands for kernels on tensors without data


@contextmanager
def norms_of_single_operations() -> Iterator[None]:
    """Inside, dry runs take an RMS norm apart; outside it is one kernel again, also in a process
    that goes on."""
    before = FUSES_NORMS.set(False)
    try:
        yield
    finally:
        FUSES_NORMS.reset(before)


def is_on_gpu(x: Tensor) -> bool:
    """Whether a GPU holds ``x``, or would hold what stands for it in a dry run."""
    return x.is_cuda or (x.is_meta and AS_ON.get() == "cuda")


def rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float) -> Tensor:
    """torch's; where a GPU would have a kernel for it, a layer norm's stands for that."""
    stands = x.is_meta and is_on_gpu(x) and FUSES_NORMS.get()
    return (F.layer_norm if stands else F.rms_norm)(x, [*shape], weight, eps=eps)


def one_operation(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    enable_gqa: bool,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """The operation that the device would run, in place of ``scaled_dot_product_attention``.

    With a mask a GPU runs the memory-efficient one, which has the mask's gradient and takes no
    groups. A CPU has no such operation: where that gradient is wanted, it does compute products.
    """
    assert attn_mask is None or not enable_gqa
    flash = aten._scaled_dot_product_flash_attention_for_cpu
    if attn_mask is None:
        return flash(q, k, v, 0.0, is_causal, scale=scale)[0]
    if AS_ON.get() == "cpu":
        if attn_mask.requires_grad:
            return _products(q, k, v, attn_mask, scale or q.shape[-1] ** -0.5)
        return flash(q, k, v, 0.0, is_causal, attn_mask=attn_mask, scale=scale)[0]
    bias = attn_mask.expand(*q.shape[:3], k.shape[2])
    how = bias, True, 0.0, is_causal
    return aten._scaled_dot_product_efficient_attention(q, k, v, *how, scale=scale)[0]


def _products(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
    """What torch computes on a CPU, in 32 bits at least. Under a dispatch mode torch itself would
    not add the bias in place."""
    dtype, wide = q.dtype, torch.promote_types(q.dtype, torch.float32)
    q, k, v = (x.to(wide) for x in (q, k, v))
    q = aten.mul.Scalar(q, scale**0.5)
    scores = q @ aten.mul.Scalar(k.transpose(-2, -1), scale**0.5)
    scores += bias
    scores = aten._safe_softmax(scores, -1)
    _also_returned = scores.to(dtype)
    return (scores @ v).to(dtype)
