"""How blockwise strategies compute: what overlaps, what is left out, and how errors add up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.comm.fake import SilentTransport
from spbench.comm.threaded import ThreadTransport, run_rank_threads
from spbench.comm.transport import Several
from spbench.layers import blockwise
from spbench.layers.attention import Scores, attend_whole
from spbench.strategies.registry import load
from spbench.workload.catalogue import find
from spbench.workload.sharding import Shard

LENGTH, RANKS = 32, 4
HEADS = 32
"""Enough that a mean error does not hang on a few rows."""
SHORT = find("attention-only", "verify")
SEQUENCE = SHORT.model_copy(update={"axes": dict.fromkeys(SHORT.axes, 4096)})
"""Any workload that is long enough: what is asked of plans here goes by ranks alone."""


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a rank does, in order: transfers that it posts and waits for, blocks."""
    done: list[str] = []

    def noted(what: Callable[..., str], right: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **more: Any) -> Any:
            done.append(what(*args))
            return right(*args, **more)

        return run

    def post(name: str, right: Callable[..., Any]) -> Callable[..., Any]:
        def run(self: SilentTransport, *tensors: Any) -> Several:
            right(self, *tensors)
            done.append(f"post {name}")
            return Several([], [lambda: done.append(f"wait {name}")])

        return run

    for op, name in {"_shift": "hop", "_all_gather": "gather", "_reduce_scatter": "sum"}.items():
        monkeypatch.setattr(SilentTransport, op, post(name, getattr(SilentTransport, op)))
    shape: Callable[..., str] = lambda q, k, *_: f"{q.shape[2]} x {k.shape[2]}"  # noqa: E731
    monkeypatch.setattr(blockwise, "attend_block", noted(shape, blockwise.attend_block))
    given: Callable[..., str] = lambda _, *qkv: f"back {shape(*qkv)}"  # noqa: E731
    monkeypatch.setattr(blockwise, "block_gradients", noted(given, blockwise.block_gradients))
    return done


def run_alone(strategy: str, rank: int, *, causal: bool, dtype: torch.dtype = torch.float32) -> Any:
    """Attention and its gradients on one of four ranks, which sends nothing; its transport."""
    transport = SilentTransport(rank, RANKS)
    shard = (Shard.causal if causal else Shard.even)(1, LENGTH, RANKS)
    mine = [torch.randn(1, LENGTH // RANKS, 2, 8, dtype=dtype) for _ in range(3)]
    q, k, v = (x.requires_grad_() for x in mine)
    scores = Scores(dims=(1,), causal=causal)
    out = load(strategy).on(SEQUENCE, RANKS).attend(q, k, v, scores, shard, Collectives(transport))
    with transport.phase("backward"):
        out.sum().backward()
    return transport


def test_a_ring_computes_while_the_next_block_comes(events: list[str]) -> None:
    """Each hop is posted before the block at hand is computed, and waited for after it; gradients
    hop while the next block is computed."""
    run_alone("ring", 1, causal=False)
    once = ["post hop", "8 x 8", "wait hop"]
    assert events[:10] == [*once * 3, "8 x 8"]
    backward = events[10:]
    own, first = ["post hop", "back 8 x 8", "wait hop"], ["post hop", "back 8 x 8", "post hop"]
    later = ["wait hop", "post hop", "back 8 x 8", "wait hop", "post hop"]
    last = ["wait hop", "back 8 x 8", "wait hop", "post hop", "wait hop"]
    assert backward == [*own, *first, *later, *last]


@pytest.mark.parametrize("strategy", ["ring", "kv-gather"])
def test_what_is_masked_is_not_computed(strategy: str, events: list[str]) -> None:
    """Under a mask every rank computes as much: the square of its own positions and half of the
    others'."""
    for rank in range(RANKS):
        events.clear()
        run_alone(strategy, rank, causal=True)
        for prefix in ("", "back "):
            shapes = [one.removeprefix(prefix) for one in events if one.startswith(prefix)]
            sizes = [[int(n) for n in one.split(" x ")] for one in shapes if one[0].isdigit()]
            assert sum(rows * keys for rows, keys in sizes) == 8 * 8 + 3 * 8 * 8 / 2


def test_a_gather_comes_while_own_keys_are_attended(events: list[str]) -> None:
    """Under a mask, forward and backward; without one there is a single block."""
    run_alone("kv-gather:gather-again", 1, causal=True)
    mine = ["post gather", "8 x 8", "wait gather", "8 x 4", "4 x 16"]
    sums = ["post sum", "wait sum"] * 2  # one after the other: dK is gone before dV's parts come
    assert events == [*mine, *(f"back {one}" if one[0].isdigit() else one for one in mine), *sums]
    events.clear()
    run_alone("kv-gather", 1, causal=False)
    assert events == ["post gather", "wait gather", "8 x 32", "back 8 x 32", *sums]


@pytest.mark.parametrize(("strategy", "bytes_each"), [("ring", 4), ("ring:half-gradients", 2)])
def test_gradients_travel_in_float32_unless_halved(strategy: str, bytes_each: int) -> None:
    """K, V and their gradients of 16 bits: as many hops, and twice the bytes or as many."""
    transport = run_alone(strategy, 2, causal=False, dtype=torch.bfloat16)
    numbers = 2 * (RANKS - 1) * LENGTH // RANKS * 2 * 8
    sent = {phase: count for (phase, *_), count in transport.sent.items()}
    assert sent == {"forward": 2 * numbers, "backward": (2 + bytes_each) * numbers}
    assert list(transport.calls.values()) == [RANKS - 1, 2 * (RANKS - 1)]


def gapped(blocks: int, gap: float) -> list[Tensor]:
    """q, k, v and a gradient in bfloat16; scores of one block of keys are above those of the next
    by ``gap`` and more, in no order of the blocks."""
    q, k, v, grad = (torch.randn(1, 64, HEADS, 16).bfloat16() for _ in range(4))
    q[..., 0] = 8.0
    heights = torch.randperm(blocks).repeat_interleave(64 // blocks)
    k[..., 0] = (gap * heights * 16**0.5 / 8.0)[:, None]  # a score is the product over sqrt(16)
    return [q, k, v, grad]


def errors(strategy: str, ranks: int, given: list[Tensor]) -> list[float]:
    """Relative to one softmax in float64, of out, dQ, dK and dV; root mean squares."""
    exact = [x.double().requires_grad_() for x in given[:3]]
    out = attend_whole(*exact, Scores(dims=(1,)))
    right = [out.detach(), *torch.autograd.grad(out, exact, given[3].double())]
    shard = Shard.even(1, given[0].shape[1], ranks)
    plan = load(strategy).on(SEQUENCE, ranks)

    def rank_main(transport: ThreadTransport) -> list[Tensor]:
        comm = Collectives(transport, plan.mesh)
        *mine, grad = (comm.take(x, shard) for x in given)
        q, k, v = (x.detach().requires_grad_() for x in mine)
        out = plan.attend(q, k, v, Scores(dims=(1,)), shard, comm)
        return [out.detach(), *torch.autograd.grad(out, [q, k, v], grad)]

    whole = [torch.cat(parts, 1) for parts in zip(*run_rank_threads(ranks, rank_main), strict=True)]
    pairs = zip(whole, right, strict=True)
    return [float((found.double() - exact).norm() / exact.norm()) for found, exact in pairs]


@pytest.mark.parametrize("strategy", ["ring", "attention-2d"])
@pytest.mark.parametrize("gap", [0.0, 200.0])
def test_the_error_does_not_grow_with_ranks(strategy: str, gap: float) -> None:
    """A ring of 32 blocks in bfloat16, or a grid of 4 x 8, is as near to float64 as one device,
    whatever the gaps between the blocks' log-sum-exps."""
    given = gapped(32, gap)
    by_ranks = {ranks: errors(strategy, ranks, given) for ranks in (1, 2, 8, 32)}
    for ranks in (2, 8, 32):
        for found, alone in zip(by_ranks[ranks], by_ranks[1], strict=True):
            assert found < 1.5 * alone, by_ranks
    assert by_ranks[32][0] < 0.003


def test_halved_gradients_are_rounded_at_each_hop() -> None:
    """Of dK and dV on 32 ranks at least 1.5 times the error of float32; out and dQ are the same."""
    given = gapped(32, 0.0)
    whole, halved = (errors(name, 32, given) for name in ("ring", "ring:half-gradients"))
    assert halved[:2] == whole[:2]
    assert all(1.5 * x < y < 0.02 for x, y in zip(whole[2:], halved[2:], strict=True))
