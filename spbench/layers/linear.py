"""Projections and norms of queries and keys, whole or cut by heads or columns.

A weight keeps the dims that mean something, (*out, *in): q, k and v of a self-attention are
one weight (Z + 2 Zkv, D, H). The first dim out of a projection into a sublayer, and the first into
a projection out of one, belongs to heads or columns. Every strategy's form of a weight loads from
the same whole one, and a parameter that holds only a part carries ``shard`` to tell which: the gate
compares gradients weight by weight.

Where neighbours cut weights (the groups of the mesh's last axis, each alike), a rank has some
columns into a sublayer and some rows out. How the input comes to the columns, and how the sum over
the rows goes to the ranks, is the strategy's.

Where there are more ranks than key heads, several hold a copy of one:

    8 query heads, 2 of keys, 4 ranks     queries 0 1 | 2 3 | 4 5 | 6 7     keys 0 | 0 | 1 | 1

A rank computes what its own queries add to the gradient of a key head's rows. Holders of a head
sum that up: each sums one part of the rows and hands it to the others, as an all-reduce among them
does, 2 (c - 1) / c of the rows with c holders. Ranks that hold two heads, as where 3 ranks share 8
queries, take part in both sums; so all of them are two all-to-alls, in which most ranks have
nothing for most others.

An RMS norm of queries and keys is of each head by itself, or of all heads together. Across heads, a
rank that has only some of the heads needs the others' squares: forward sums two numbers a position
over the ranks, one of the queries and one of the keys; backward sums their gradients.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Any, Self, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from spbench.comm.collectives import Collectives
from spbench.comm.compiler import applied
from spbench.comm.deferred import Deferred
from spbench.comm.packing import Cut
from spbench.layers.kernels import rms_norm
from spbench.layers.memory_order import in_memory_order
from spbench.workload.block import Attention, Sublayer
from spbench.workload.fields import ACROSS_HEADS, DTYPE_BYTES
from spbench.workload.mesh import PP, Mesh
from spbench.workload.sharding import Run, Shard, Stretch, shard_sizes
from spbench.workload.traffic import Transfer
from spbench.workload.workload import Workload


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
        by_rank: list[list[Run]] = [[] for _ in range(ranks)]
        # Rank 0 has the first queries, keys and values.
        for start, stretch in zip(starts, self.stretches, strict=False):
            for own, runs in zip(by_rank, stretch.runs(ranks), strict=True):
                own += [(start + first, held) for first, held in runs]
        return Shard(dim, tuple(map(tuple, by_rank)))


def cut_by_neighbours(spec: LinearSpec, dim: int, comm: Collectives) -> Shard:
    """Each rank's part of a weight that every group of the mesh's last axis cuts alike."""
    size = comm.mesh.size_of(comm.mesh.last)
    # neighbours are of the mesh's last axis: rank 5 with groups of 4 holds what rank 1 holds
    return spec.part(dim, size).among([rank % size for rank in range(comm.size)])


def part_of(parameter: nn.Parameter) -> Shard | None:
    """This rank's part of the whole weight; None: all of it."""
    return getattr(parameter, "shard", None)


def whole_bytes(parameter: nn.Parameter, rank: int) -> int:
    """Bytes of the whole weight, of which this rank may hold a part."""
    part = part_of(parameter)
    return parameter.nbytes if part is None else parameter.nbytes // part.sizes[rank] * part.length


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
        neighbours = comm.along(comm.mesh.last)
        in_group = part.among(comm.mesh.members(comm.rank, comm.mesh.last))
        self.copies = CopiedRows.of(in_group, neighbours.rank)
        self.neighbours = neighbours
        self.weight = empty_parameter(spec.out_shape + spec.in_shape, part, comm.rank)
        self.bias = empty_parameter(spec.out_shape, part, comm.rank)

    def forward(self, x: Tensor, shard: Shard | None) -> Tensor:
        if shard is None:
            return product(x, self.weight, self.bias, self.inner)
        weight, bias = self.weight.flatten(0, -2), self.bias.flatten()
        if self.copies.is_shared:
            weight, bias = applied(SumOfCopies, weight, bias, self.copies, self.neighbours)
        out = self.times(x, weight, bias, shard)
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


# Rows that several ranks hold


@final
@dataclass(frozen=True)
class CopiedRows:
    """Rows of a weight that several ranks hold, as each rank has them."""

    holders: tuple[tuple[int, ...], ...]
    """The ranks that hold each of them."""
    own: tuple[tuple[int, Run], ...]
    """For each that this rank holds, its number and its rows in this rank's part."""

    @classmethod
    def of(cls, part: Shard, rank: int = 0) -> Self:
        """The copies of ``rank`` in a weight whose rows the ranks hold by ``part``."""
        holders: dict[Run, list[int]] = {}
        for other, runs in enumerate(part.runs):
            for run in runs:
                holders.setdefault(run, []).append(other)
        copied = {run: tuple(ranks) for run, ranks in holders.items() if len(ranks) > 1 and run[1]}
        numbers = {run: number for number, run in enumerate(copied)}
        starts = accumulate((length for _, length in part.runs[rank]), initial=0)
        placed = zip(part.runs[rank], starts, strict=False)
        own = tuple((numbers[run], (at, run[1])) for run, at in placed if run in numbers)
        return cls(tuple(copied.values()), own)

    @property
    def is_shared(self) -> bool:
        """Whether any rank holds a copy: then all take part in the sums."""
        return bool(self.holders)


@final
class SumOfCopies(torch.autograd.Function):
    """A weight (rows, H) and its bias as they are; backward sums the gradients of copied rows."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, *how: Any) -> tuple[Tensor, Tensor]:
        ctx.how = how
        return weight.view_as(weight), bias.view_as(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_weight: Tensor, d_bias: Tensor) -> tuple[Tensor, Tensor, None, None]:
        copies, comm = ctx.how
        mine = {
            number: torch.cat([x.narrow(0, *rows).flatten() for x in (d_weight, d_bias)])
            for number, rows in copies.own
        }
        sums = _summed(mine, copies.holders, comm, d_bias)
        d_weight, d_bias = d_weight.clone(), d_bias.clone()
        for number, (at, count) in copies.own:
            of_weight, of_bias = sums[number].split([count * d_weight.shape[1], count])
            d_weight.narrow(0, at, count).copy_(of_weight.view(count, -1))
            d_bias.narrow(0, at, count).copy_(of_bias)
        return d_weight, d_bias, None, None


def _summed(
    mine: dict[int, Tensor], holders: Sequence[tuple[int, ...]], comm: Collectives, like: Tensor
) -> dict[int, Tensor]:
    """The sum over its holders of each of these, flat and of the dtype of ``like``; every rank must
    call it."""
    rank, parts = comm.rank, {}
    for number, x in mine.items():
        parts[number] = x.split(list(shard_sizes(x.numel(), len(holders[number]))))
    place = {number: holders[number].index(rank) for number in mine}

    def shared_with(other: int) -> list[int]:
        return [number for number in mine if other != rank and other in holders[number]]

    def part_of(number: int, other: int) -> Tensor:
        return parts[number][holders[number].index(other)]

    others = [shared_with(other) for other in range(comm.size)]
    # Each holder gets its part of every other's rows, and sums them up, in 32 bits at least.
    sent = [[part_of(n, other) for n in numbers] for other, numbers in enumerate(others)]
    sizes = [[part_of(n, rank).numel() for n in numbers] for numbers in others]
    arrived = _exchanged(sent, sizes, comm, like)
    totals = {}
    for number in mine:
        own = part_of(number, rank)
        totals[number] = own.to(torch.promote_types(own.dtype, torch.float32))
    for numbers, come in zip(others, arrived, strict=True):
        for number, part in zip(numbers, come, strict=True):
            totals[number] = totals[number] + part
    done = {number: x.to(mine[number].dtype) for number, x in totals.items()}
    # And hands the sum to every other.
    sent = [[done[n] for n in numbers] for numbers in others]
    sizes = [[part_of(n, other).numel() for n in numbers] for other, numbers in enumerate(others)]
    arrived = _exchanged(sent, sizes, comm, like)
    found: dict[int, list[Tensor]] = {number: [*parts[number]] for number in mine}
    for number, total in done.items():
        found[number][place[number]] = total
    for other, (numbers, come) in enumerate(zip(others, arrived, strict=True)):
        for number, part in zip(numbers, come, strict=True):
            found[number][holders[number].index(other)] = part
    return {number: torch.cat(of_holders) for number, of_holders in found.items()}


def _exchanged(
    sent: Sequence[Sequence[Tensor]],
    coming: Sequence[Sequence[int]],
    comm: Collectives,
    like: Tensor,
) -> list[Sequence[Tensor]]:
    """What comes from each rank, of so many numbers each; ``sent``: what goes to each."""
    leaving = torch.cat([like[:0], *(x for parts in sent for x in parts)])
    arriving = comm.transport.empty(like, (sum(map(sum, coming)),))
    to_each, from_each = [sum(x.numel() for x in parts) for parts in sent], [*map(sum, coming)]
    out = Cut(leaving, 0, Shard.of_sizes(0, tuple(to_each)))
    into = Cut(arriving, 0, Shard.of_sizes(0, tuple(from_each)))
    comm.transport.all_to_all([into], [out]).wait()
    by_rank = zip(arriving.split(from_each), coming, strict=True)
    return [whole.split([*sizes]) for whole, sizes in by_rank]


def copies_traffic(sublayer: Sublayer, workload: Workload, ranks: int) -> list[Transfer]:
    """Transfers of ``SumOfCopies`` in backward of a sublayer."""
    if not isinstance(sublayer, Attention) or ranks <= workload.key_heads:
        return []
    scattered, gathered = [0] * ranks, [0] * ranks
    _, *copied = workload.qkv_stretches
    for stretch in copied:
        rows = Shard(0, stretch.runs(ranks))
        numbers = stretch.width * (workload.hidden + 1)  # of the weight's rows and of its bias
        for holders in CopiedRows.of(rows).holders:
            parts = shard_sizes(numbers, len(holders))
            for rank, own in zip(holders, parts, strict=True):
                scattered[rank] += numbers - own  # each of the others gets its part
                gathered[rank] += (len(holders) - 1) * own
    sums = [
        Transfer(op="all_to_all", sent=_by_rank(sent, DTYPE_BYTES[workload.dtype]))
        for sent in (scattered, gathered)
    ]
    return sums * (2 if workload.text else 1)  # each stream has a product of its own


def _by_rank(numbers: Sequence[int], number_bytes: int) -> tuple[Fraction, ...]:
    """Bytes of each rank; equal ones are one object."""
    same = {count: Fraction(count * number_bytes) for count in set(numbers)}
    return tuple(same[count] for count in numbers)


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
        # On more ranks than key heads it would count copies twice: ``cut_why_not`` declines that.
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
