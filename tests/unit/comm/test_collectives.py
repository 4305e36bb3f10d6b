"""Collectives against plain tensor slicing, in values, gradients and counted bytes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from helpers.examples import examples
from helpers.late_transport import LateTransport
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from spbench.comm.collectives import Collectives
from spbench.comm.fake import SilentTransport
from spbench.comm.gradient_buckets import GradientSum
from spbench.comm.packing import Cut, by_rank, pack, splits, unpacked
from spbench.comm.threaded import ThreadTransport, run_rank_threads
from spbench.workload.mesh import ALL, Members, Mesh
from spbench.workload.sharding import Shard
from spbench.workload.traffic import Traffic, Transfer, along, count

SHAPES = st.tuples(*[st.integers(1, 3), st.integers(4, 9), st.integers(4, 9), st.integers(1, 3)])


def whole_tensor(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


@examples(25)
@given(SHAPES, st.integers(1, 4), st.booleans())
def test_switch_reshards(shape: tuple[int, ...], ranks: int, other_way: bool) -> None:
    """Each rank's part along one dim becomes its part along the other, and back in backward."""
    x, weight = whole_tensor(shape), whole_tensor(shape) ** 2
    first, second = Shard.even(1, shape[1], ranks), Shard.even(2, shape[2], ranks)
    before, after = (second, first) if other_way else (first, second)

    def rank_main(transport: ThreadTransport) -> None:
        comm = Collectives(transport)
        mine = comm.take(x, before).contiguous().requires_grad_()
        (switched,) = comm.switch(mine, before=before, after=after)
        assert torch.equal(switched, comm.take(x, after))
        switched.backward(comm.take(weight, after))
        assert mine.grad is not None
        assert torch.equal(mine.grad, comm.take(weight, before))
        there = Transfer.all_to_all(x.nbytes, before.sizes, after.sizes)
        back = Transfer.all_to_all(x.nbytes, after.sizes, before.sizes)
        assert transport.sent == count([there, back], comm.rank)

    run_rank_threads(ranks, rank_main)


@examples(15)
@given(SHAPES, st.integers(1, 4))
def test_tensors_travel_together(shape: tuple[int, ...], ranks: int) -> None:
    """Tensors of equal or other lengths in one all-to-all arrive as they would alone, as views of
    one; so do their gradients."""
    before = Shard.even(1, shape[1], ranks)
    for lengths in [(shape[2], 4, 5), (4, 4, 4)]:
        xs = [whole_tensor((*shape[:2], length, shape[3])) for length in lengths]
        after = [Shard.even(2, length, ranks) for length in lengths]
        run_rank_threads(ranks, partial(_travel, xs=xs, before=before, after=after))


def _travel(
    transport: ThreadTransport, xs: Sequence[Tensor], before: Shard, after: Sequence[Shard]
) -> None:
    comm = Collectives(transport)
    mine = [comm.take(x, before).clone().requires_grad_() for x in xs]
    switched = comm.switch(*mine, before=before, after=after)
    wholes = [comm.take(x, shard) for x, shard in zip(xs, after, strict=True)]
    assert all(torch.equal(y, whole) for y, whole in zip(switched, wholes, strict=True))
    assert sum(transport.calls.values()) == (1 if transport.sent else 0)
    torch.autograd.backward(switched, [2 * whole for whole in wholes])
    for x, part in zip(xs, mine, strict=True):
        assert part.grad is not None
        assert torch.equal(part.grad, 2 * comm.take(x, before))


@examples(10)
@given(SHAPES, st.integers(1, 4), st.booleans())
def test_a_switch_leaves_its_outermost_dim_outermost(
    shape: tuple[int, ...], ranks: int, other_way: bool
) -> None:
    """Either dim may be it; gradients come in the order in which the tensor lay."""
    x = whole_tensor(shape)
    first, second = Shard.even(1, shape[1], ranks), Shard.even(2, shape[2], ranks)
    before, after = (second, first) if other_way else (first, second)

    def rank_main(transport: ThreadTransport) -> None:
        comm = Collectives(transport)
        for outermost in (1, 2):
            mine = comm.take(x, before).movedim(outermost, 0).contiguous().movedim(0, outermost)
            mine.requires_grad_()
            (switched,) = comm.switch(mine, before=before, after=after, outermost=outermost)
            assert torch.equal(switched, comm.take(x, after))
            switched.backward(switched.detach())
            assert mine.grad is not None
            assert torch.equal(mine.grad, mine)
            for each in (switched, mine.grad):
                assert each.movedim(outermost, 0).is_contiguous()

    run_rank_threads(ranks, rank_main)

    run_rank_threads(ranks, rank_main)


@examples(20)
@given(SHAPES, st.integers(1, 4), st.integers(1, 2))
def test_gather_and_scatter_are_each_others_backward(
    shape: tuple[int, ...], ranks: int, dim: int
) -> None:
    """all_gather gives the whole; its backward sums the ranks' gradients, and the reverse."""
    x = whole_tensor(shape)
    shard = Shard.even(dim, shape[dim], ranks)
    parts = [whole_tensor(shape) * (rank + 1) for rank in range(ranks)]
    total = torch.stack(parts).sum(0)

    def rank_main(transport: ThreadTransport) -> None:
        comm = Collectives(transport)
        mine = comm.take(x, shard).contiguous().requires_grad_()
        gathered = comm.all_gather(mine, shard)
        assert torch.equal(gathered, x)
        gathered.backward(parts[comm.rank])
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad, comm.take(total, shard))
        partial = parts[comm.rank].clone().requires_grad_()
        summed = comm.reduce_scatter(partial, shard)
        torch.testing.assert_close(summed, comm.take(total, shard))
        summed.backward(comm.take(x, shard))
        assert partial.grad is not None
        assert torch.equal(partial.grad, x)
        pair = [
            Transfer.all_gather(x.nbytes, shard.sizes),
            Transfer.reduce_scatter(x.nbytes, shard.sizes),
        ]
        assert transport.sent == count(pair * 2, comm.rank)

    run_rank_threads(ranks, rank_main)


@examples(15)
@given(SHAPES, st.integers(1, 5).filter(lambda n: n <= 4), st.integers(1, 2))
def test_a_ring_brings_every_block(shape: tuple[int, ...], ranks: int, dim: int) -> None:
    """In rank order, with the bytes that the formula says, and in memory shard by shard."""
    x = whole_tensor(shape)
    shard = Shard.even(dim, shape[dim], ranks)

    def rank_main(transport: ThreadTransport) -> None:
        comm = Collectives(transport)
        whole = comm.ring(comm.take(x, shard), shard)
        assert torch.equal(whole, x)
        assert whole.movedim(dim, 0).is_contiguous()
        assert transport.sent == count([Transfer.ring(x.nbytes, shard.sizes)], comm.rank)

    run_rank_threads(ranks, rank_main)


@examples(20)
@given(SHAPES, st.integers(1, 4), st.integers(1, 2), st.booleans(), st.sampled_from([0, 10**6]))
def test_a_gather_part_by_part(
    shape: tuple[int, ...], ranks: int, dim: int, at_once: bool, least: int
) -> None:
    """Each row comes once, right, this rank's own first, whatever it is sent from; the bytes are
    those of a gather, and what has left is waited for."""
    x = whole_tensor(shape)
    shard = Shard.even(dim, shape[dim], ranks)

    def rank_main(transport: ThreadTransport) -> None:
        late = LateTransport(transport.rank, transport.meeting, at_once=at_once)
        comm = Collectives(late)
        for lets_go in (False, True):
            gather = comm.start_all_gather(comm.take(x, shard), shard, lets_go=lets_go)
            found = torch.full_like(x.movedim(dim, 0), torch.nan)
            order = []
            for rows, part in gather.arriving(least):
                assert found[rows].isnan().all()
                found[rows] = part
                order.append((rows.start, rows.stop))
            assert torch.equal(found.movedim(0, dim), x)
            assert late.pending == 0
            assert torch.equal(gather.wait(), x)
            first = shard.offset(comm.rank), shard.offset(comm.rank) + shard.sizes[comm.rank]
            assert order[0] == (first if least == 0 else (0, shape[dim]))
            if least == 0 and not at_once:
                assert len(order) == ranks
        gathers = [Transfer.all_gather(x.nbytes, shard.sizes)] * 2
        assert late.sent == count(gathers, comm.rank)
        assert sum(late.calls.values()) == (2 if ranks > 1 else 0)

    run_rank_threads(ranks, rank_main)


@examples(20)
@given(SHAPES, st.integers(1, 4), st.integers(1, 2), st.booleans(), st.sampled_from([0, 10**6]))
def test_a_sum_whose_parts_are_computed_as_they_leave(
    shape: tuple[int, ...], ranks: int, dim: int, at_once: bool, least: int
) -> None:
    """Each row is asked for once, this rank's own last, or all at once; the bytes are those of a
    reduce-scatter."""
    shard = Shard.even(dim, shape[dim], ranks)
    parts = [whole_tensor(shape) * (rank + 1) for rank in range(ranks)]
    total = torch.stack(parts).sum(0)

    def rank_main(transport: ThreadTransport) -> None:
        late = LateTransport(transport.rank, transport.meeting, at_once=at_once)
        comm = Collectives(late)
        x = torch.full_like(parts[comm.rank], torch.nan)
        asked: list[slice] = []

        def fill(rows: slice) -> None:
            asked.append(rows)
            x.movedim(dim, 0)[rows] = parts[comm.rank].movedim(dim, 0)[rows]

        pending = comm.start_reduce_scatter(x, shard, fill, least=least)
        assert torch.equal(x, parts[comm.rank])
        torch.testing.assert_close(pending.wait(), comm.take(total, shard))
        positions = [place for rows in asked for place in range(rows.start, rows.stop)]
        assert sorted(positions) == list(range(shape[dim]))
        apart = ranks > 1 and least == 0 and not at_once
        assert len(asked) == (ranks if apart else 1)
        assert asked[-1].start == (shard.offset(comm.rank) if apart else 0)
        sums = [Transfer.reduce_scatter(x.nbytes, shard.sizes)]
        assert late.sent == count(sums, comm.rank)

    run_rank_threads(ranks, rank_main)


@examples(15)
@given(SHAPES, st.integers(1, 4), st.integers(1, 2))
def test_blocks_of_a_ring_come_one_after_another(
    shape: tuple[int, ...], ranks: int, dim: int
) -> None:
    """This rank's own first, then those of the ranks before it; others are not there yet."""
    x = whole_tensor(shape)
    shard = Shard.even(dim, shape[dim], ranks)

    def rank_main(transport: ThreadTransport) -> None:
        late = LateTransport(transport.rank, transport.meeting)
        comm = Collectives(late)
        ring = comm.start_ring(comm.take(x, shard), shard)
        wholes = x.movedim(dim, 0).split(list(shard.sizes))
        owners = []
        for owner in ring.arriving():
            owners.append(owner)
            assert torch.equal(ring.blocks[owner], wholes[owner])
        assert owners == [(comm.rank - step) % ranks for step in range(ranks)]
        assert torch.equal(ring.wait(), x)
        assert late.pending == 0
        assert late.sent == count([Transfer.ring(x.nbytes, shard.sizes)], comm.rank)

    run_rank_threads(ranks, rank_main)


def test_outermost_dims_are_not_copied() -> None:
    """With the sharded axis outermost a switch packs once, or unpacks once, never both."""
    x = torch.randn(1, 6, 8, 5)
    outer, inner = Cut(x, 1, Shard.even(1, 6, 2)), Cut(x, 2, Shard.even(2, 8, 2))
    assert pack([outer]).data_ptr() == x.data_ptr()
    assert pack([inner]).data_ptr() != x.data_ptr()
    assert unpacked([outer])[0].data_ptr() == x.data_ptr()
    assert pack([Cut(x[:, 1:, 2:], 1, Shard.even(1, 5, 2))]).data_ptr() != x[:, 1:, 2:].data_ptr()


@examples(40)
@given(SHAPES, st.integers(1, 4), st.integers(1, 2), st.integers(1, 3))
def test_packing_is_undone(shape: tuple[int, ...], ranks: int, dim: int, tensors: int) -> None:
    """Rank by rank the parts, joined along their dim and flattened; unpacking puts each back."""
    lengths = [shape[dim] + i for i in range(tensors)]
    cuts = [
        Cut(whole_tensor((*shape[:dim], n, *shape[dim + 1 :])), dim, Shard.even(dim, n, ranks))
        for n in lengths
    ]
    packed = pack(cuts)
    expected = torch.cat([torch.cat(list(parts), dim).reshape(-1) for parts in by_rank(cuts)])
    assert torch.equal(packed, expected)
    assert sum(splits(cuts) or [len(packed)]) == len(packed)
    outs = [Cut(torch.zeros_like(cut.tensor), dim, cut.shard) for cut in cuts]
    flat, unpack = unpacked(outs)
    flat.copy_(packed)
    unpack()
    assert all(torch.equal(o.tensor, c.tensor) for o, c in zip(outs, cuts, strict=True))


@pytest.mark.parametrize("shape", [(2, 0, 4, 3), (0, 5, 4, 3)])
def test_a_rank_that_holds_nothing_packs_nothing(shape: tuple[int, ...]) -> None:
    """As one of four ranks on a pair tensor of three rows; several tensors, and cut evenly."""
    cuts = [Cut(torch.zeros(shape), 2, Shard.even(2, 4, 2)) for _ in range(2)]
    assert pack(cuts).numel() == 0
    flat, unpack = unpacked(cuts)
    unpack()
    assert flat.numel() == 0


def test_even_shards_cost_one_copy() -> None:
    """q, k and v of 16 ranks are packed together by one copy, as for any number of ranks."""
    cuts = [Cut(torch.randn(1, 4, 16, 8), 2, Shard.even(2, 16, 16)) for _ in range(3)]
    with CopiesMode() as seen:
        pack(cuts)
    assert seen.copies == 1
    assert splits(cuts) is None


def test_the_hosts_work_does_not_grow_with_ranks() -> None:
    """A switch of even shards calls torch as often on 128 ranks as on 8."""
    calls = set()
    for ranks in (8, 64, 128):
        after = Shard.even(2, 128, ranks)
        xs = [torch.zeros(2, 256, 128, 1) for _ in range(3)]
        with CopiesMode() as seen:
            pack([Cut(x, 2, after) for x in xs])
            _, unpack = unpacked([Cut(x, 2, after) for x in xs])
            unpack()
        calls.add(seen.calls)
    assert len(calls) == 1


class CopiesMode(TorchDispatchMode):
    """Counts copies, and all calls of torch."""

    copies = calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.copies += func in (torch.ops.aten.copy_.default, torch.ops.aten.cat.out)
        self.calls += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("bucket_bytes", [1, 40, 10**9])
def test_gradient_sum(bucket_bytes: int, ranks: int) -> None:
    """For any bucket size each gradient is the sum over the ranks, step after step."""
    total = sum(range(1, ranks + 1))

    def rank_main(transport: ThreadTransport) -> None:
        weights = [torch.nn.Parameter(torch.ones(n)) for n in (3, 4, 5)]
        summed = GradientSum(weights, Collectives(transport), bucket_bytes)
        for step in (1.0, 2.0):
            for weight in weights:
                weight.grad = None
            loss = sum(
                (w * (transport.rank + 1) * step * (i + 1)).sum() for i, w in enumerate(weights)
            )
            assert isinstance(loss, Tensor)
            loss.backward()
            summed.finish()
            for i, weight in enumerate(weights):
                assert weight.grad is not None
                assert torch.equal(weight.grad, torch.full_like(weight, total * step * (i + 1)))
        assert set(transport.sent) == {("gradients", "all_reduce", ALL)}
        sent = round(transport.sent["gradients", "all_reduce", ALL])
        assert sent == 2 * 2 * 12 * 4 * (ranks - 1) / ranks

    run_rank_threads(ranks, rank_main)


@pytest.mark.parametrize("ranks", [2, 3])
def test_sums_of_a_number_and_of_integers(ranks: int) -> None:
    """In place, whatever the tensor."""

    def rank_main(transport: ThreadTransport) -> None:
        comm = Collectives(transport)
        for one in (torch.tensor(1.0), torch.ones(2, 3).long()):
            comm.all_reduce_(one).wait()
            assert torch.equal(one, torch.full_like(one, ranks))

    run_rank_threads(ranks, rank_main)


def test_groups_of_a_mesh_move_and_count_apart() -> None:
    """Ranks 2 x 3: each axis gathers among its own members, and is counted under its name."""
    mesh = Mesh.of({"ring": 2, "heads": 3})
    x = whole_tensor((6, 2))
    shard = Shard.of_sizes(0, (1,) * 6)

    def rank_main(transport: ThreadTransport) -> None:
        comm = Collectives(transport, mesh)
        mine = comm.take(x, shard)
        for axis in ("ring", "heads"):
            members = mesh.members(comm.rank, axis)
            part = comm.along(axis)
            assert (part.size, members[part.rank]) == (len(members), comm.rank)
            assert torch.equal(part.all_gather(mine, shard.among(members)), x[list(members)])
            with transport.phase("backward"):
                assert torch.equal(part.all_reduce(mine)[0], x[list(members)].sum(0))

        def of_group(members: Members) -> Traffic:
            gather = Transfer.all_gather(16 * len(members), shard.among(members).sizes)
            return [gather], [Transfer.all_reduce(16, len(members)).during("backward")]

        ways = [along(axis, mesh.groups(axis), of_group) for axis in ("ring", "heads")]
        assert transport.sent == count([x for both in ways for way in both for x in way], comm.rank)
        assert sum(transport.calls.values()) == 4

    run_rank_threads(6, rank_main)


def test_a_thread_that_fails_ends_the_waiting_in_groups() -> None:
    """Those who wait in a group of a mesh, or come to wait there later, fail as well."""
    mesh = Mesh.of({"ring": 2, "heads": 2})
    of_rank_0 = ValueError("rank 0 is gone")

    def rank_main(transport: ThreadTransport) -> None:
        if transport.rank == 0:
            raise of_rank_0
        Collectives(transport, mesh).along("ring").all_reduce(torch.ones(1))
        Collectives(transport, mesh).along("heads").all_reduce(torch.ones(1))

    with pytest.raises(ValueError) as raised:
        run_rank_threads(4, rank_main)
    assert raised.value is of_rank_0


def test_a_sum_over_one_rank_goes_to_no_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a strategy of sums take longer on one rank than the others."""
    monkeypatch.setattr(SilentTransport, "all_reduce", None)
    x = torch.arange(3.0)
    Collectives(SilentTransport(0, 1)).all_reduce_(x).wait()
    assert x.tolist() == [0.0, 1.0, 2.0]


def test_silent_counts_but_keeps_shapes() -> None:
    """Silent collectives give finite data of the right shape and count what would be sent."""
    comm = Collectives(SilentTransport(1, 4))
    before, after = Shard.even(1, 9, 4), Shard.even(2, 7, 4)
    x = torch.randn(2, before.sizes[1], 7, 3)
    (switched,) = comm.switch(x, before=before, after=after)
    assert switched.shape == (2, 9, after.sizes[1], 3)
    assert torch.isfinite(switched).all()
    expected = Transfer.all_to_all(2 * 9 * 7 * 3 * 4, before.sizes, after.sizes)
    assert comm.transport.sent == count([expected], 1)


def test_a_failing_rank_fails_the_others() -> None:
    """The first real error is raised, not the waiting of the others for it."""

    def rank_main(transport: ThreadTransport) -> None:
        if transport.rank == 1:
            raise ZeroDivisionError("rank 1")
        Collectives(transport).all_gather(torch.ones(1, 2), Shard.even(1, 6, 3))

    with pytest.raises(ZeroDivisionError, match="rank 1"):
        run_rank_threads(3, rank_main)
    assert threading.active_count() < 20


def test_threads_find_all_operators_made() -> None:
    """Two threads that make one at once crash torch, now and then."""
    found = run_rank_threads(2, lambda _: "int_out" in vars(torch.ops.aten.softmax))
    assert found == [True, True]
