"""Attention as plain products, in the memory of an operand: scores are too large to hold twice.

RSA multiplies rows of scores in parts. A whole attention is multiplied where no kernel serves it,
or on a CPU where keys are few: its kernel goes through scores in vectors of keys, and takes one by
one those that fill no vector. Here keys come before queries, (b, Z, K, S), so that a softmax goes
along vectors of queries; scores of so few keys hardly take more memory than the queries. To torch
this is one operation, as its kernel is, and so it is to a dry run and to a calibration.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.backends.cuda import flash_sdp_enabled  # a CPU's, too
from torch.library import Library

from spbench.layers.dispatch_modes import is_on_gpu
from spbench.workload.sharding import runs_of, shard_sizes

PARTS, LEAST_ELEMENTS = 8, 2**20
"""Parts of a row of scores whose gradients are computed one after another, unless that makes them
smaller than this: a processor's cache holds a part, and memory for a whole row costs more time."""

Tensors = tuple[Tensor, ...]
FEW_KEYS, NARROW = 16, 16
"""Keys below which a vector of a CPU is not full, and the largest head size with which products
then take less time than the kernel: 0.5 to 0.9 of it (docs/decisions/0047-few-keys.md)."""
SMALL = range(150, 400)
"""Multiplications of two matrices that torch does number by number on a CPU, since they are fewer
than 400, in up to four times the time of its library with zeros enough to make them 400."""


def summed_products(
    products: Sequence[tuple[slice, Tensor, Tensor]], length: int, dim: int
) -> Tensor:
    """(b, m, n), which has ``length`` along ``dim``, from products that belong to slices of it.

    They are summed in float32 at least.
    """
    (_, left, right), *more = products
    shape = [len(left), left.shape[1], right.shape[2]]
    if not more and shape[dim] == length:
        return _product(left, right, dim)
    shape[dim] = length
    total = left.new_zeros(shape, dtype=torch.promote_types(left.dtype, torch.float32))
    for place, left, right in products:
        part = total.narrow(dim, place.start, place.stop - place.start)
        part += left @ right  # baddbmm_ makes as many products as heads, since parts have gaps
    return total.to(right.dtype)


def _product(left: Tensor, right: Tensor, dim: int) -> Tensor:
    """(b, m, k) times (b, k, n); small ones with zeros: rows that are left out again, or, where
    ``dim`` is 2 and the result is to lie without gaps, more to sum over."""
    (_, m, k), n = left.shape, right.shape[2]
    if m * k * n not in SMALL or left.element_size() < 4:
        return left @ right
    if dim == 1:
        return (F.pad(left, (0, 0, 0, -(-SMALL.stop // (k * n)) - m)) @ right)[:, :m]
    zeros = (0, 0, 0, -(-SMALL.stop // (m * n)) - k)
    return F.pad(left.mT, zeros).mT @ F.pad(right, zeros)


def softmax_backward_(weights: Tensor, gradient_of: Callable[[slice], Tensor]) -> Tensor:
    """Overwrites softmax's result (b, m, n) with the gradient of its input.

    ``gradient_of``: that of some of the batch of ``weights``. No more of it is held at a time.
    """
    count = max(1, min(PARTS, len(weights), weights.numel() // LEAST_ELEMENTS))
    for first, length in runs_of(shard_sizes(len(weights), count)):
        part = slice(first, first + length)
        grad, own = gradient_of(part), weights[part]
        torch.ops.aten._softmax_backward_data.out(grad, own, -1, own.dtype, grad_input=own)
    return weights


def has_few_keys(q: Tensor, k: Tensor, causal: bool) -> bool:
    """Whether a CPU is faster with products than with its kernel, and they are not ``SMALL``."""
    if is_on_gpu(q) or q.dtype != torch.float32 or causal or not flash_sdp_enabled():
        return False
    (queries, size), keys = q.shape[-2:], k.shape[-2]
    return keys < FEW_KEYS and size <= NARROW and queries * keys * size >= SMALL.stop


def plain_attention(causal: bool, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
    """Out (b, Z, S, D), in the memory order of q as a kernel's, and log-sum-exps (b, Z, S)."""
    most = (scores := _scores(causal, q, k)).amax(-2, keepdim=True)
    total = (weights := scores.sub_(most).exp_()).sum(-2, keepdim=True)
    product = weights.div_(total).mT @ v.to(weights.dtype)
    return torch.empty_like(q).copy_(product), most.add_(total.log_()).squeeze(-2)


def plain_gradients(causal: bool, *given: Tensor) -> Tensors:
    """dQ, dK and dV as a kernel's, without gaps as (b, S, Z, D). ``given``: the gradient of out, q,
    k, v, and the out and log-sum-exps of all keys."""
    grad, q, k, v, out, lse = (x.to(given[-1].dtype) for x in given)
    of_rows = (grad * out).sum(-1)
    grad, q, k = (x.contiguous() for x in (grad, q, k))  # each is in two products
    weights = _scores(causal, q, k).sub_(lse[:, :, None]).exp_()
    d_scores = (v @ grad.mT).sub_(of_rows[:, :, None]).mul_(weights).mul_(q.shape[-1] ** -0.5)
    products, dtype = ((d_scores.mT, k), (d_scores, q), (weights, grad)), given[0].dtype
    return tuple(
        (x @ y).transpose(1, 2).contiguous().transpose(1, 2).to(dtype) for x, y in products
    )


def _scores(causal: bool, q: Tensor, k: Tensor) -> Tensor:
    q, k = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (q, k))
    scores = (k @ q.mT).mul_(q.shape[-1] ** -0.5)
    later = torch.ones_like(scores, dtype=torch.bool).tril(-1) if causal else None
    return scores if later is None else scores.masked_fill_(later, -torch.inf)


LIBRARY = Library("spbench", "DEF")
LIBRARY.define("plain_attention(bool causal, Tensor q, Tensor k, Tensor v) -> (Tensor, Tensor)")
LIBRARY.define(
    "plain_attention_backward(bool causal, Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out,"
    " Tensor lse) -> (Tensor, Tensor, Tensor)"
)
LIBRARY.impl("plain_attention", plain_attention, "CompositeExplicitAutograd")
LIBRARY.impl("plain_attention_backward", plain_gradients, "CompositeExplicitAutograd")
