"""Parts of attention that are merged, and gradients of blocks, against one softmax in float64."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from spbench.layers import kernels
from spbench.layers.blockwise import (
    Part,
    add_gradients,
    added,
    attend_block,
    block_gradients,
    by_position,
    by_rank,
    folded_shard,
    merge,
    pack,
    put,
    tile,
    tiles,
    unpack,
    widths,
)
from spbench.layers.kernels import KERNELS, KernelLimits
from spbench.workload.mesh import Mesh
from spbench.workload.sharding import Shard

TOLERANCE = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 1e-2}
BLOCKS = (0, 3, 4, 9)
"""Where blocks of nine keys begin and end."""


def example(dtype: torch.dtype, queries: int = 6) -> list[Tensor]:
    """q, k, v and a gradient; two key heads for four of queries, and two in the folded batch."""
    q, grad = torch.randn(2, 2, 4, queries, 8).to(dtype)
    k, v = torch.randn(2, 2, 2, BLOCKS[-1], 8).to(dtype)
    return [q, k, v, grad]


def exact(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> list[Tensor]:
    """Out, dQ, dK and dV of one softmax over all keys, in float64."""
    given = [x.double().requires_grad_() for x in (q, k, v)]
    out = F.scaled_dot_product_attention(*given, enable_gqa=True)
    return [out.detach(), *torch.autograd.grad(out, given, grad.double())]


def in_blocks(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, bounds: Sequence[int] = BLOCKS
) -> list[Tensor]:
    """The same of blocks of keys, each by itself."""
    total, d_q, d_keys = None, None, []
    blocks = [(k[:, :, a:b], v[:, :, a:b]) for a, b in pairwise(bounds)]
    for keys in blocks:
        total = merge(total, attend_block(q, *keys))
    assert total is not None
    whole = Part(total.out.to(q.dtype), total.lse)
    for keys in blocks:
        d, *of_keys = block_gradients(grad, q, *keys, whole)
        d_q = added(d_q, d, 0)
        d_keys.append(of_keys)
    assert d_q is not None
    return [total.out, d_q, *(torch.cat(each, 2) for each in zip(*d_keys, strict=True))]


def error(found: Tensor, right: Tensor) -> float:
    """The root mean square of the difference over that of what is right."""
    return float((found.double() - right).norm() / right.norm())


@pytest.mark.parametrize("kernel", [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_blocks_are_one_softmax(dtype: torch.dtype, kernel: SDPBackend) -> None:
    """Out and gradients of uneven blocks, by a kernel and by plain products, in each dtype."""
    given = example(dtype)
    with sdpa_kernel([kernel]):
        found = in_blocks(*given)
    assert max(map(error, found, exact(*given))) < TOLERANCE[dtype]


@pytest.mark.parametrize("kernel", [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])
def test_a_block_on_the_diagonal_is_masked(kernel: SDPBackend) -> None:
    """A query sees itself and earlier keys: out and gradients."""
    q, k, v, grad = example(torch.float64, queries=BLOCKS[-1])
    given = [x.requires_grad_() for x in (q, k, v)]
    right = F.scaled_dot_product_attention(*given, is_causal=True, enable_gqa=True)
    with sdpa_kernel([kernel]), torch.no_grad():
        part = attend_block(q, k, v, causal=True)
        found = block_gradients(grad, q, k, v, part, causal=True)
    assert error(part.out, right.detach()) < 1e-14
    assert max(map(error, found, torch.autograd.grad(right, given, grad))) < 1e-14


def test_large_batches_go_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What exceeds a kernel's limits is computed by parts of the folded batch."""
    given = example(torch.float64)
    monkeypatch.setattr(kernels, "LIMITS", KernelLimits(folded_batch=1))
    assert max(map(error, in_blocks(*given), exact(*given))) < 1e-14


@pytest.mark.parametrize("gap", [-2000.0, -89.0, 0.0, 89.0, 2000.0])
def test_any_gap_between_blocks(gap: float) -> None:
    """The merge of two parts is finite and right, and one of rows leaves the others alone."""
    rows, more = torch.randn(2, 1, 1, 3, 4, dtype=torch.float64)
    lse = torch.tensor([[[1.0, 2.0, 3.0]]], dtype=torch.float64)
    total = merge(Part(rows.clone(), lse.clone()), Part(more[:, :, 1:], lse[:, :, 1:] + gap), 1)
    weight = torch.tensor(gap, dtype=torch.float64).sigmoid()
    right = rows + torch.tensor([0.0, 1.0, 1.0])[:, None] * weight * (more - rows)
    joint = torch.logaddexp(lse, lse + gap)
    joint[:, :, 0] = lse[:, :, 0]
    assert torch.allclose(total.out, right, rtol=1e-14, atol=1e-14)
    assert torch.allclose(total.lse, joint, rtol=1e-14, atol=0)


@pytest.mark.parametrize("backend", KERNELS)
def test_kernels_of_a_gpu_take_what_they_are_given(backend: SDPBackend) -> None:
    """The arguments of each, and the shapes that it gives, as far as torch knows without a GPU."""
    device = "cuda:0" if backend == SDPBackend.FLASH_ATTENTION else "meta"
    with FakeTensorMode():
        q, out = (torch.empty(2, 4, 70, 64, dtype=torch.float16, device=device) for _ in range(2))
        k, v = (torch.empty(2, 4, 90, 64, dtype=torch.float16, device=device) for _ in range(2))
        kernel = KERNELS[backend]
        found, lse = kernel.forward(False, 0.125, q, k, v)
        gradients = kernel.backward(False, 0.125, out, q, k, v, out, lse)
    assert (found.shape, lse.shape, lse.dtype) == (q.shape, q.shape[:-1], torch.float32)
    assert [each.shape for each in gradients] == [q.shape, k.shape, v.shape]


@pytest.mark.parametrize(("length", "ranks"), [(2, 2), (7, 4), (13, 3), (16, 4), (24, 3), (9, 8)])
def test_tiles_are_what_a_mask_leaves(length: int, ranks: int) -> None:
    """Each query with each key that it sees, once, of folded positions too; nothing else."""
    shard = Shard.causal(1, length, ranks)
    keys = folded_shard(shard, 2 * shard.sizes[0], 0)
    places = by_rank(torch.arange(2 * length), keys).split(list(keys.sizes))
    for rank in range(ranks):
        seen = torch.zeros(len(places[rank]), 2 * length, dtype=torch.int64)
        for owner in range(ranks):
            row, count, causal = tile(keys, rank, owner, causal=True)
            square = torch.ones(len(places[rank]) - row, count, dtype=torch.int64)
            at = places[owner][:count]
            seen[row:, at] += square.tril() if causal else square
        assert torch.equal(seen, (places[rank][:, None] >= torch.arange(2 * length)).long())


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (2, 4), (4, 4), (1, 6), (6, 1), (3, 5)])
@pytest.mark.parametrize("length", [30, 61, 96])
def test_six_tiles_of_a_grid_are_what_a_mask_leaves(rows: int, columns: int, length: int) -> None:
    """Each query of a row with each key of a column that it sees, once, in six products at most."""
    shard = Shard.causal(0, length, rows * columns)
    mesh = Mesh.of({"rows": rows, "columns": columns})
    for rank in range(mesh.size):
        queries, keys = (shard.among(mesh.members(rank, axis)) for axis in ("columns", "rows"))
        q, k = (
            torch.cat([torch.arange(at, at + n) for at, n in held.merged])
            for held in (queries, keys)
        )
        seen = torch.zeros(len(q), len(k), dtype=torch.int64)
        found = list(tiles(queries, keys, causal=True))
        for (row, count), (column, width), causal in found:
            square = torch.ones(count, width, dtype=torch.int64)
            seen[row : row + count, column : column + width] += square.tril() if causal else square
        assert torch.equal(seen, (q[:, None] >= k).long())
        assert len(found) <= 6


def test_positions_of_some_ranks_come_back() -> None:
    """In order of positions along any dim, and in rank order again."""
    held = Shard.causal(0, 37, 5).among((1, 3, 4))
    x = torch.cat([torch.arange(at, at + n) for runs in held.runs for at, n in runs])
    ordered = by_position(x.expand(2, 3, -1), held, 2)
    assert torch.equal(ordered, x.sort().values.expand(2, 3, -1))
    assert torch.equal(by_rank(ordered, held, 2), x.expand(2, 3, -1))


@pytest.mark.parametrize("value_size", [4, 3, 6])
def test_packed_keys_come_back(value_size: int) -> None:
    """Packed and unpacked, in order of ranks and of positions, summed and put in place; values of
    another size too."""
    k, v = torch.randn(3, 2, 7, 4), torch.randn(3, 2, 7, value_size)
    packed, sizes = pack(k, v), widths(k, v)
    assert packed.numel() == k.numel() + v.numel()
    assert all(map(torch.equal, unpack(packed, sizes), (k, v)))
    shard = Shard.causal(0, 7, 2)
    assert torch.equal(by_position(by_rank(packed, shard), shard), packed)
    more = [torch.randn(3, 2, 5, size) for size in sizes]
    total = add_gradients(packed.clone(), more)
    for found, before, new in zip(unpack(total, sizes), (k, v), more, strict=True):
        assert torch.equal(found[:, :, :5], before[:, :, :5] + new)
        assert torch.equal(found[:, :, 5:], before[:, :, 5:])
    assert add_gradients(packed, ()) is packed
    put(more, unpack(packed, sizes), [(0, 2), (4, 3)])
    for found, before, new in zip(unpack(packed, sizes), (k, v), more, strict=True):
        assert torch.equal(found[:, :, [0, 1, 4, 5, 6]], new)
        assert torch.equal(found[:, :, 2:4], before[:, :, 2:4])
