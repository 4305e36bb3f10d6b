"""Projections and norms of queries and keys, whole or cut by heads or columns.

A weight keeps the dims that mean something, (*out, *in): q, k and v of a self-attention are
one weight (Z + 2 Zkv, D, H). The first dim out of a projection into a sublayer, and the first into
a projection out of one, belongs to heads or columns. Every strategy's form of a weight loads from
the same whole one, and a parameter that holds only a part carries ``shard`` to tell which: the gate
compares gradients weight by weight.

Where neighbours cut weights (the groups of the mesh's last axis, each alike), a rank has some
columns into a sublayer and some rows out. How the input comes to the columns, and how the sum over
the rows goes to the ranks, is the strategy's.

An RMS norm of queries and keys is of each head by itself, or of all heads together. Across heads, a
rank that has only some of the heads needs the others' squares: forward sums two numbers a position
over the ranks, one of the queries and one of the keys; backward sums their gradients.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from spbench.comm.collectives import Collectives
from spbench.comm.deferred import Deferred
from spbench.layers.kernels import rms_norm
from spbench.layers.memory_order import in_memory_order
from spbench.workload.block import Attention, Sublayer
from spbench.workload.fields import ACROSS_HEADS, DTYPE_BYTES
from spbench.workload.mesh import PP, Mesh
from spbench.workload.sharding import Shard, Sizes, runs_of, shard_sizes
from spbench.workload.traffic import Transfer
from spbench.workload.workload import Workload


class Stretch(NamedTuple):
    """Places of a dim that are shared out by units: groups of heads with one key, or columns."""

    units: int
    width: int = 1
    """Places of a unit: with g query heads to a key, g."""

    @property
    def length(self) -> int:
        return self.units * self.width

    def lengths(self, ranks: int) -> Sizes:
        """Places of each rank."""
        return tuple(count * self.width for count in shard_sizes(self.units, ranks))


@dataclass(frozen=True, kw_only=True)
class LinearSpec:
    """A product from the dims ``in_shape`` to the dims ``out_shape``, with bias."""

    in_shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    stretches: tuple[Stretch, ...]
    """The dim that can be cut is these end to end: query, key and value heads; columns."""

    def part(self, dim: int, ranks: int) -> Shard:
        """A rank's part, a run of every stretch, where the cut dim is ``dim`` of a tensor."""
        starts = accumulate((stretch.length for stretch in self.stretches), initial=0)
        by_stretch = [
            [(start + first, held) for first, held in runs_of(stretch.lengths(ranks))]
            for start, stretch in zip(starts, self.stretches, strict=False)
        ]
        # From runs by stretch to runs by rank: rank 0 has the first queries, keys and values.
        return Shard(dim, tuple(zip(*by_stretch, strict=True)))


def cut_by_neighbours(spec: LinearSpec, dim: int, comm: Collectives) -> Shard:
    """Each rank's part of a weight that every group of the mesh's last axis cuts alike."""
    size = comm.mesh.size_of(comm.mesh.last)
    # neighbours are of the mesh's last axis: rank 5 with groups of 4 holds what rank 1 holds
    return spec.part(dim, size).among([rank % size for rank in range(comm.size)])


def part_of(parameter: nn.Parameter) -> Shard | None:
    """This rank's part of the whole weight; None: all of it."""
    return getattr(parameter, "shard", None)


def is_of_heads(parameter: nn.Parameter) -> bool:
    """Whether every head adds to its gradient: a rank with some of the heads has a part of it."""
    return getattr(parameter, "of_heads", False)


def mark_of_heads(*parameters: nn.Parameter) -> None:
    for parameter in parameters:
        parameter.of_heads = True  # type: ignore[attr-defined]


def mark_of_all_stages(*parameters: nn.Parameter) -> None:
    """Each stage of a pipeline has them, and a part of their gradients."""
    for parameter in parameters:
        parameter.of_all_stages = True  # type: ignore[attr-defined]


def summed_over(parameter: nn.Parameter, mesh: Mesh, holds_whole: bool) -> tuple[str, ...]:
    """The axes of the mesh whose ranks each compute a part of a gradient.

    ``holds_whole``: whether neighbours hold all positions of their group.
    """
    is_repeated = holds_whole and not is_of_heads(parameter)
    is_cut = part_of(parameter) is not None or is_repeated
    axes = mesh.without(mesh.last) if is_cut else mesh.names
    of_all_stages = getattr(parameter, "of_all_stages", False)
    return axes if of_all_stages else tuple(axis for axis in axes if axis != PP)


def empty_parameter(shape: tuple[int, ...], part: Shard | None, rank: int = 0) -> nn.Parameter:
    """An unset parameter of the whole ``shape``, or of this rank's part of it."""
    if part is not None:
        shape = (*shape[: part.dim], part.sizes[rank], *shape[part.dim + 1 :])
    parameter = nn.Parameter(torch.empty(shape))
    parameter.shard = part  # type: ignore[attr-defined]
    return parameter


def another(parameter: nn.Parameter) -> nn.Parameter:
    """A parameter with the same numbers, cut and summed alike: that of another block of a kind."""
    made = nn.Parameter(parameter.detach())
    vars(made).update(vars(parameter))
    return made


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None, inner: int, deferred: Deferred | None = None
) -> Tensor:
    """(…, *in) times a weight (*out, *in), whose last ``inner`` dims are summed over.

    Parameters
    ----------
    x : Tensor
        (…, *in), in any order of its dims in memory, which the result keeps.
    weight : Tensor
        (*out, *in).
    bias : Tensor, optional
        (*out).
    inner : int
        How many dims ``in`` has.
    deferred : Deferred, optional
        Where the gradients of weight and bias are left, which then are parameters; None: they are
        computed with that of ``x``.

    Returns
    -------
    Tensor
        (…, *out).
    """
    out_shape = weight.shape[: weight.ndim - inner]
    matrix = weight.reshape(math.prod(out_shape), -1)
    vector = None if bias is None else bias.flatten()

    def times(x: Tensor) -> Tensor:
        is_needed = weight.is_leaf and weight.requires_grad and x.requires_grad
        # In compiled code the compiler orders what its graphs compute.
        is_plain = torch.compiler.is_dynamo_compiling() or not torch.is_grad_enabled()
        if deferred is None or deferred.is_off or not is_needed or is_plain:
            return F.linear(x, matrix, vector)
        # In tuples, where autograd does not see them: it has no gradients of theirs to wait for.
        out: Tensor = _Factors.apply(x, (weight, bias), deferred)
        return (
            _Product.apply(out, (x.detach(), matrix.detach(), bias))
            if deferred.saves_first
            else out
        )

    return in_memory_order(lambda x: times(x.flatten(-inner)).unflatten(-1, out_shape), x, inner)


def _plain_product(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, matrix, None if bias is None else bias.detach().view(-1))


class _Factors(torch.autograd.Function):
    """F.linear, whose backward computes the gradient of the input, and leaves the others.

    Where ``saves_first``, a tensor without numbers stands for the product: recomputation stops at
    the last tensor that is saved, which is the input, and a function saves behind its forward. So
    ``_Product``, behind it, is not run for nothing.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, parameters: tuple[Tensor, Tensor | None], deferred: Deferred
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.to = *parameters, deferred
        weight, bias = parameters
        deferred.expect(*(each for each in parameters if each is not None and each.requires_grad))
        matrix = weight.view(-1, x.shape[-1])
        if deferred.saves_first:
            return x.new_empty(1).expand(*x.shape[:-1], len(matrix))
        return _plain_product(x, matrix, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,), (weight, bias, deferred) = ctx.saved_tensors, ctx.to
        matrix = weight.detach().view(grad.shape[-1], -1)
        rows, inputs = grad.flatten(0, -2), x.flatten(0, -2)
        d_x = (rows @ matrix).view(x.shape)

        @torch.no_grad()
        def of_weights() -> None:
            deferred.take_gradient(weight, (rows.t() @ inputs).view(weight.shape))
            if bias is not None and bias.requires_grad:
                deferred.take_gradient(bias, rows.sum(0).view(bias.shape))

        # An input that is wider than the result, as an mlp's second one, is let go at once: kept
        # until the next exchange it would raise the peak of memory. Widths decide, which are the
        # same on all ranks: sums of gradients leave in one order.
        if matrix.shape[1] > matrix.shape[0]:
            of_weights()
        else:
            deferred.add(of_weights)
        return d_x, None, None


class _Product(torch.autograd.Function):
    """The product for which its ``_Factors`` stand; they have its gradients."""

    @staticmethod
    def forward(_ctx: Any, _: Tensor, factors: tuple[Tensor, Tensor, Tensor | None]) -> Tensor:
        return _plain_product(*factors)

    @staticmethod
    def backward(_ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


@final
class WholeLinear(nn.Module):
    """A plain linear layer, whatever the shard."""

    def __init__(self, spec: LinearSpec, comm: Collectives) -> None:
        super().__init__()
        self.inner, self.deferred = len(spec.in_shape), comm.deferred
        self.weight = empty_parameter(spec.out_shape + spec.in_shape, None)
        self.bias = empty_parameter(spec.out_shape, None)

    def forward(self, x: Tensor, shard: Shard | None) -> Tensor:
        return product(x, self.weight, self.bias, self.inner, self.deferred)


# Weights that neighbours cut

Times = Callable[[Tensor, Tensor, Tensor, Shard], Tensor]
"""The product of an input with a rank's columns (columns, H), with their bias."""
RowTimes = Callable[[Tensor, Tensor, Tensor, Shard], Tensor]
"""The sum over the ranks of an input (…, *in held) times their rows (H, *in held), with the bias,
in this rank's part of the shard."""


@final
class ColumnCut(nn.Module):
    """This rank's columns. An input without shard is whole, and wants no gradient."""

    def __init__(self, spec: LinearSpec, comm: Collectives, times: Times) -> None:
        super().__init__()
        self.times, self.inner = times, len(spec.in_shape)
        part = cut_by_neighbours(spec, 0, comm)
        self.weight = empty_parameter(spec.out_shape + spec.in_shape, part, comm.rank)
        self.bias = empty_parameter(spec.out_shape, part, comm.rank)

    def forward(self, x: Tensor, shard: Shard | None) -> Tensor:
        if shard is None:
            return product(x, self.weight, self.bias, self.inner)
        out = self.times(x, self.weight.flatten(0, -2), self.bias.flatten(), shard)
        return out.unflatten(-1, self.bias.shape)


@final
class RowCut(nn.Module):
    """This rank's rows, and the sum over the ranks."""

    def __init__(self, spec: LinearSpec, comm: Collectives, times: RowTimes) -> None:
        super().__init__()
        self.times = times
        part = cut_by_neighbours(spec, len(spec.out_shape), comm)
        self.weight = empty_parameter(spec.out_shape + spec.in_shape, part, comm.rank)
        self.bias = empty_parameter(spec.out_shape, None)

    def forward(self, x: Tensor, shard: Shard) -> Tensor:
        return self.times(x, self.weight, self.bias, shard)


# RMS norms of queries and keys

EPS = 1e-6
SUMMED_BYTES = 4
"""Least bytes of a number that is summed over the ranks: squares of 16 bits are summed in 32."""


@final
class EachHeadNorm(nn.Module):
    """An RMS norm of each head's query and of each head's key, its scale shared by the heads."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.q_norm, self.k_norm = nn.RMSNorm(head_dim, eps=EPS), nn.RMSNorm(head_dim, eps=EPS)
        mark_of_heads(*self.parameters())

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return _normed(q, self.q_norm.weight), _normed(k, self.k_norm.weight)


@final
class AcrossHeadsNorm(nn.Module):
    """An RMS norm of all heads' queries at a position, and one of all keys, with their scales."""

    def __init__(self, workload: Workload, comm: Collectives, *, is_cut: bool) -> None:
        """``is_cut``: whether this rank has some of the heads, by whole groups of them."""
        super().__init__()
        self.comm, self.is_cut = comm, is_cut
        self.numbers = [n * workload.head_size for n in (workload.heads, workload.key_heads)]
        self.q_norm = self._scale(workload, workload.heads)
        self.k_norm = self._scale(workload, workload.key_heads)

    def _scale(self, workload: Workload, heads: int) -> nn.Module:
        units, shape = workload.key_heads, (heads, workload.head_size)
        spec = LinearSpec(in_shape=(), out_shape=shape, stretches=(Stretch(units, heads // units),))
        part = cut_by_neighbours(spec, 0, self.comm) if self.is_cut else None
        holder = nn.Module()
        holder.weight = empty_parameter(shape, part, self.comm.rank)
        return holder

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.q_norm.get_parameter("weight"), self.k_norm.get_parameter("weight")
        if not self.is_cut:
            return _normed(q, weights[0]), _normed(k, weights[1])
        others = self.comm.along(self.comm.mesh.last)
        squares = others.all_reduce(torch.stack([_squares(q), _squares(k)]))
        # rms norm over all heads: x / sqrt(mean of squares + eps) * weight, the mean over all ranks
        means = (total / numbers for total, numbers in zip(squares, self.numbers, strict=True))
        q, k = (
            x * (mean + EPS).rsqrt().to(x.dtype)[..., None, None] * weight
            for x, mean, weight in zip((q, k), means, weights, strict=True)
        )
        return q, k


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    return in_memory_order(lambda x: rms_norm(x, weight.shape, weight, EPS), x, 2)


def _squares(x: Tensor) -> Tensor:
    """The sum of squares of a rank's heads at each position, in 32 bits or more."""
    return x.to(torch.promote_types(x.dtype, torch.float32)).square().sum((-2, -1))


def cut_norm_sums(
    sublayer: Sublayer, workload: Workload, tokens: int, ranks: int
) -> list[Transfer]:
    """Transfers of ``AcrossHeadsNorm`` where heads are cut: the same in forward and in backward.

    ``tokens``: those of a sample that the ranks work on.
    """
    if not isinstance(sublayer, Attention) or workload.qk_norm != ACROSS_HEADS:
        return []
    number_bytes = max(SUMMED_BYTES, DTYPE_BYTES[workload.dtype])
    # one number of the queries and one of the keys at each position
    return [Transfer.all_reduce(2 * workload.samples * tokens * number_bytes, ranks)]
