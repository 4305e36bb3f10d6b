"""What runs while transfers are under way: chunks of a switch, and work that was deferred."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.examples import examples
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from spbench.comm.collectives import Collectives
from spbench.comm.deferred import MOST, Deferred
from spbench.comm.pending import Pending
from spbench.comm.started_switches import can_be_in_chunks
from spbench.comm.threaded import ThreadTransport, run_rank_threads
from spbench.comm.transport import DONE
from spbench.layers.linear import LinearSpec, WholeLinear
from spbench.workload.sharding import Shard, Stretch


@examples(20)
@given(st.integers(2, 4), st.integers(2, 4), st.integers(1, 3), st.integers(2, 4), st.booleans())
def test_a_switch_in_chunks_is_the_switch(
    ranks: int, chunks: int, inner: int, batch: int, other_way: bool
) -> None:
    """In values, gradients and bytes, whichever of the two dims is the outermost."""
    shape = (batch, ranks * chunks, ranks * inner, 3)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    first, second = (Shard.even(dim, shape[dim], ranks) for dim in (1, 2))
    before, after = (second, first) if other_way else (first, second)

    def rank_main(transport: ThreadTransport) -> None:
        comm = Collectives(transport)
        for outermost in (1, 2):
            # (3, 2) rows of 5 on 2 ranks cannot leave in 4 chunks: then it goes whole
            if not can_be_in_chunks(before, after, outermost, chunks):
                continue
            mine = comm.take(x, before).movedim(outermost, 0).contiguous().movedim(0, outermost)
            results = []
            for in_chunks in (False, True):
                transport.reset()
                leaf = mine.clone(memory_format=torch.preserve_format).requires_grad_()
                if in_chunks:
                    switch = comm.switch_in_chunks(before, after, outermost, chunks)
                    for part in switch.parts(leaf):
                        switch.leave(part.sin())
                    out = switch.arrived()
                else:
                    (out,) = comm.switch(leaf.sin(), before=before, after=after)
                out.backward(out.detach().cos())
                assert leaf.grad is not None
                results.append((out.detach(), leaf.grad, dict(transport.sent)))
            (out, grad, sent), (other_out, other_grad, other_sent) = results
            assert torch.equal(out, other_out) and torch.equal(grad, other_grad)
            assert sent == other_sent
            assert other_out.movedim(outermost, 0).is_contiguous()

    run_rank_threads(ranks, rank_main)


def test_uneven_shards_leave_whole() -> None:
    """As do chunks that some rank has no position for."""
    even, uneven = Shard.even(1, 8, 2), Shard.even(2, 7, 2)
    assert can_be_in_chunks(even, Shard.even(2, 8, 2), 1, 4)
    assert not can_be_in_chunks(even, uneven, 1, 2)
    assert not can_be_in_chunks(even, Shard.even(2, 8, 2), 1, 5)
    assert not can_be_in_chunks(even, Shard.even(2, 8, 2), 1, 1)


def test_a_started_switch_is_the_switch() -> None:
    """Of several tensors; a gradient is under way from its end to its beginning."""
    x = torch.randn(2, 8, 6, 3, generator=torch.Generator().manual_seed(7))
    before, after = Shard.even(1, 8, 2), Shard.even(2, 6, 2)

    def rank_main(transport: ThreadTransport) -> None:
        comm = Collectives(transport)
        grads = []
        for is_started in (False, True):
            leaf = comm.take(x, before).clone().requires_grad_()
            both = (leaf, leaf * 2)
            if is_started:
                outs = comm.start_switch(*both, before=before, after=after).wait()
            else:
                outs = comm.switch(*both, before=before, after=after)
            assert torch.equal(outs[1], 2 * comm.take(x, after))
            torch.autograd.backward(outs, [out.detach() for out in outs])
            grads.append(leaf.grad)
        assert torch.equal(*grads)

    run_rank_threads(2, rank_main)


def linear(width: int, comm: Collectives) -> WholeLinear:
    spec = LinearSpec(in_shape=(width,), out_shape=(width,), stretches=(Stretch(width),))
    made = WholeLinear(spec, comm).double()
    for parameter in made.parameters():
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(parameter.ndim))
    return made


def gradients_of(layers: list[WholeLinear], run: Any) -> list[Tensor]:
    for layer in layers:
        layer.zero_grad()
    run().backward()
    grads = [parameter.grad for layer in layers for parameter in layer.parameters()]
    assert all(grad is not None for grad in grads)
    return [grad.clone() for grad in grads if grad is not None]


@pytest.mark.parametrize("recomputed", [False, True])
def test_deferred_gradients_are_autograds(recomputed: bool) -> None:
    """Of more layers than are deferred, of one that is used twice, with and without checkpoints;
    each parameter is told of once, when its whole gradient is there."""
    comm = Collectives(ThreadTransport(0, _alone()))
    layers = [linear(4, comm) for _ in range(MOST + 2)]
    told: list[Tensor] = []
    comm.deferred.on_gradient = told.append
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)

    def run() -> Tensor:
        y = x
        for layer in [*layers, layers[0]]:
            y = checkpoint(layer, y, None, use_reentrant=False) if recomputed else layer(y, None)
            y = y.tanh()
        return y.sum()

    deferred = gradients_of(layers, run)
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    assert len(told) == len(parameters)
    assert {id(parameter) for parameter in told} == {id(parameter) for parameter in parameters}
    for layer in layers:
        layer.deferred = None  # type: ignore[assignment]
    for grad, right in zip(deferred, gradients_of(layers, run), strict=True):
        torch.testing.assert_close(grad, right)


def _alone() -> Any:
    from spbench.comm.threaded import ThreadRendezvous

    return ThreadRendezvous(1)


def test_a_transfer_hides_what_is_left() -> None:
    """At the end of backward nothing is left."""
    deferred, done = Deferred(), list[int]()

    class Left(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(_ctx: Any, *grads: Tensor) -> Tensor:
            for number in range(3):
                deferred.add(lambda number=number: done.append(number))
            assert not done
            Pending(DONE, [], deferred).wait()
            assert done == [0, 1, 2]
            deferred.add(lambda: done.append(3))
            return grads[0]

    Left.apply(torch.ones(1, requires_grad=True)).backward()
    assert done == [0, 1, 2, 3]
