"""Predicted bytes against the formulas of the papers."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from helpers.golden import Golden
from helpers.variants import suited
from hypothesis import given
from hypothesis import strategies as st

from spbench.strategies.describe import lanes
from spbench.strategies.registry import BUILT_IN, load
from spbench.workload.catalogue import find, with_settings
from spbench.workload.sharding import shard_sizes
from spbench.workload.traffic import (
    PHASES,
    Transfer,
    busiest_rank,
    by_busiest,
    by_op,
    by_phase,
    count,
)
from spbench.workload.workload import Workload

RANKS = st.integers(1, 9)


def one_layer(ranks: int, **settings: object) -> Workload:
    """A time/space layer whose axes and heads divide by ``ranks``; attention and mlp twice."""
    work = find("axes-2d", "verify")
    block = "[{attention: space}, {mlp: 4}, {attention: time}, {mlp: 4}]"
    fields = {
        "axes": f"{{time: {2 * ranks}, space: {3 * ranks}}}",
        "heads": ranks,
        "hidden": 4 * ranks,
        "depth": 1,
        "block": block,
    }
    return with_settings(work, [f"{k}={v}" for k, v in (fields | settings).items()])


def sent(strategy: str, work: Workload, ranks: int) -> dict[str, int]:
    return by_phase(count(load(strategy).on(work, ranks).traffic, 0))


HUGE = {
    "heads": ({"hidden": 2**28, "heads": 2**28, "kv_heads": 2**27}, 8),
    "depth": ({"depth": 1000}, 8),
    "ranks": ({"axes": "{time: 100000, space: 131072}", "hidden": 2**16, "heads": 2**16}, 30_000),
}


@pytest.mark.parametrize("strategy", [*BUILT_IN])
@pytest.mark.parametrize("what", HUGE)
def test_huge_numbers_are_planned_at_once(what: str, strategy: str) -> None:
    """The time to predict a step grows little with heads, depth and ranks. Where shards are even,
    all ranks send as much as the first."""
    fields, ranks = HUGE[what]
    shape = with_settings(find("axes-2d", "verify"), [f"{k}={v}" for k, v in fields.items()])
    work = suited(strategy, shape)
    began_s = time.process_time()
    (lane,) = lanes(work, [strategy], ranks)
    assert time.process_time() - began_s < 5
    assert lane.why_not is None
    assert lane.step_bytes["forward"] >= sent(strategy, work, ranks)["forward"] > 0


@pytest.mark.parametrize("ranks", [1, 3, 5])
@pytest.mark.parametrize("strategy", [*BUILT_IN])
def test_the_busiest_rank_is_found_among_all(strategy: str, ranks: int) -> None:
    """Looking at each kind of rank once gives what looking at every rank does."""
    work = suited(strategy, find("axes-2d-uneven", "verify"))
    traffic = load(strategy).on(work, ranks).traffic
    each = [by_phase(count(traffic, rank)) for rank in range(ranks)]
    assert by_busiest(traffic) == {phase: max(sent[phase] for sent in each) for phase in PHASES}
    every = [sum(transfer.sent[rank] for transfer in traffic) for rank in range(ranks)]
    assert busiest_rank(traffic) == every.index(max(every))


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_volumes_of_a_layer(ranks: int) -> None:
    """Forward: DSP 2M/N (less its last switch), Ulysses 4M/N, rings and K/V gather 2M, Megatron
    8M, times f."""
    work = one_layer(ranks)
    M, f = work.activation_bytes, Fraction(ranks - 1, ranks)
    assert sent("dsp", work, ranks)["forward"] == f * M / ranks
    assert sent("dsp", work.model_copy(update={"depth": 5}), ranks)["forward"] == 9 * f * M / ranks
    assert sent("ulysses", work, ranks)["forward"] == 4 * f * M / ranks
    assert sent("ulysses:every-attention", work, ranks)["forward"] == 8 * f * M / ranks
    for name in ("rsa", "ring", "kv-gather"):
        assert sent(name, work, ranks)["forward"] == 2 * f * M
    for name in ("megatron-sp", "megatron-tp"):
        assert sent(name, work, ranks)["forward"] == 8 * f * M


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_volumes_of_a_backward(ranks: int) -> None:
    """Backward: Ulysses as forward, RSA 6M or 4M, Megatron 12M or 8M, times f."""
    work = one_layer(ranks)
    M, f = work.activation_bytes, Fraction(ranks - 1, ranks)
    assert sent("dsp", work, ranks)["backward"] == f * M / ranks
    assert sent("ulysses", work, ranks)["backward"] == 4 * f * M / ranks
    assert sent("rsa", work, ranks)["backward"] == 6 * f * M
    assert sent("rsa:reduce-scatter", work, ranks)["backward"] == 4 * f * M
    assert sent("megatron-sp", work, ranks)["backward"] == 12 * f * M
    for name in ("megatron-sp:keep-input", "megatron-tp"):
        assert sent(name, work, ranks)["backward"] == 8 * f * M
    assert sent("kv-gather", work, ranks)["backward"] == 2 * f * M
    assert sent("kv-gather:gather-again", work, ranks)["backward"] == 4 * f * M


@pytest.mark.parametrize(("dtype", "wide", "half"), [("bfloat16", 6, 4), ("float32", 4, 4)])
def test_gradients_round_a_ring_have_four_bytes(dtype: str, wide: int, half: int) -> None:
    """Backward of a ring: 2M of K and V, and 2M of their gradients or twice that in 16 bits."""
    work = one_layer(4, dtype=dtype)
    unit = Fraction(3, 4) * work.activation_bytes
    assert sent("ring", work, 4)["backward"] == wide * unit
    assert sent("ring:half-gradients", work, 4)["backward"] == half * unit


@pytest.mark.parametrize("group", [1, 2, 4, 8])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_gather_of_keys_over_ulysses(ranks: int, group: int) -> None:
    """N/(g+1) of its bytes, with g queries for a key head: fewer where groups outnumber ranks."""
    block = "[{attention: [time, space]}]"
    heads = {"heads": group * ranks, "hidden": 4 * group * ranks, "kv_heads": ranks}
    work = one_layer(ranks, block=block, **heads)
    ulysses, gather = (sent(name, work, ranks)["forward"] for name in ("ulysses", "kv-gather"))
    assert Fraction(gather, ulysses) == Fraction(ranks, group + 1)


@pytest.mark.parametrize("ranks", [2, 4])
def test_volumes_where_heads_are_wider_than_hidden(ranks: int) -> None:
    """Heads of 12 numbers where hidden has 4 of each: what moves heads sends thrice as much."""
    plain, wide = one_layer(ranks), one_layer(ranks, head_dim=12)
    for phase in ("forward", "backward"):
        for strategy, times in (("dsp", 1), ("megatron-sp", 1), ("ulysses", 3), ("rsa", 3)):
            assert sent(strategy, wide, ranks)[phase] == times * sent(strategy, plain, ranks)[phase]


@pytest.mark.parametrize("ranks", [2, 4])
def test_volumes_of_an_attention_alone(ranks: int, golden: Golden) -> None:
    """As published for one attention: Ulysses (2 Q + 2 K) / N, a ring 2 K, times f; no weights."""
    block = "[{attention: space, alone: true}]"
    fields = {"axes": f"{{space: {3 * ranks}}}", "heads": 2 * ranks, "kv_heads": ranks, "depth": 1}
    work = one_layer(ranks, block=block, head_dim=4, **fields, hidden=16 * ranks)
    Q, K, f = work.query_bytes, work.key_bytes, Fraction(ranks - 1, ranks)
    assert (work.activation_bytes, 2 * K) == (Q + 2 * K, Q)
    for phase in ("forward", "backward"):
        assert sent("ulysses", work, ranks)[phase] == f * (2 * Q + 2 * K) / ranks
    assert sent("rsa", work, ranks)["forward"] == 2 * f * K
    for name in ("ulysses", "rsa"):
        assert sent(name, work, ranks)["gradients"] == 0
    why = load("megatron-sp").why_not(work, ranks)
    assert why is not None
    golden(why)


@pytest.mark.parametrize("ranks", [2, 4])
def test_volumes_of_an_mlp_beside_an_attention(ranks: int) -> None:
    """Megatron-SP gathers and scatters once for both; what others send knows no mlp."""
    block = "[{attention: space, beside: {mlp: 4}}, {attention: time, beside: {mlp: 4}}]"
    apart, beside = one_layer(ranks), one_layer(ranks, block=block)
    for phase in ("forward", "backward"):
        assert (
            2 * sent("megatron-sp", beside, ranks)[phase]
            == sent("megatron-sp", apart, ranks)[phase]
        )
        for strategy in ("dsp", "ulysses", "rsa"):
            assert sent(strategy, beside, ranks)[phase] == sent(strategy, apart, ranks)[phase]


@pytest.mark.parametrize(("dtype", "number_bytes"), [("bfloat16", 4), ("float64", 8)])
def test_a_norm_across_cut_heads(dtype: str, number_bytes: int) -> None:
    """Megatron-SP sums two numbers a position for each attention, there and back; no other does."""
    ranks, settings = 4, {"dtype": dtype, "mode": "train"}
    plain = one_layer(ranks, **settings)
    across = one_layer(ranks, qk_norm="across_heads", **settings)
    for strategy in ("dsp", "ulysses", "rsa"):
        assert sent(strategy, across, ranks)["forward"] == sent(strategy, plain, ranks)["forward"]
    summed = 2 * 2 * Fraction(3, 4) * 2 * across.batch * across.tokens * number_bytes
    for phase in ("forward", "backward"):
        before, after = (sent("megatron-sp", work, ranks)[phase] for work in (plain, across))
        assert after - before == summed


def test_small_twin_of_the_paper_model() -> None:
    """dsp-720m-small: DSP to Ulysses 1 to 2 but for the saved last switch; Megatron-SP 8M."""
    work, ranks = find("dsp-720m-small"), 4
    M, f = work.activation_bytes, Fraction(3, 4)
    layers = work.depth
    assert sent("dsp", work, ranks)["forward"] == (2 * layers - 1) * f * M / ranks
    assert sent("ulysses", work, ranks)["forward"] == 4 * layers * f * M / ranks
    assert sent("rsa", work, ranks)["forward"] == 2 * layers * f * M
    assert sent("megatron-sp", work, ranks)["forward"] == 8 * layers * f * M


def test_forward_mode_sends_nothing_back() -> None:
    """Inference has neither a backward nor a gradient phase."""
    for name in BUILT_IN:
        by_phase = sent(name, suited(name, one_layer(4, mode="forward")), 4)
        assert by_phase["forward"] > 0
        assert by_phase["backward"] == by_phase["gradients"] == 0


def test_cut_weights_need_no_sum() -> None:
    """Replicated weights pay 2f x their bytes; Megatron-SP only for norms, biases and the like."""
    work, ranks = find("dsp-720m-small"), 2
    whole = sent("dsp", work, ranks)["gradients"]
    assert whole == sent("rsa", work, ranks)["gradients"]
    assert sent("megatron-sp", work, ranks)["gradients"] < whole / 5


@given(st.lists(st.integers(1, 7), min_size=1, max_size=8), st.integers(1, 40))
def test_nothing_is_lost_on_the_way(sizes: list[int], unit: int) -> None:
    """Bytes of all ranks together follow each operation's definition."""
    whole = unit * sum(sizes)
    n = len(sizes)
    gather = Transfer.all_gather(whole, tuple(sizes))
    scatter = Transfer.reduce_scatter(whole, tuple(sizes))
    ring = Transfer.ring(whole, tuple(sizes))
    assert sum(gather.sent) == sum(scatter.sent) == sum(ring.sent) == (n - 1) * whole


@given(RANKS, st.integers(1, 50), st.integers(1, 50), st.integers(1, 9))
def test_a_switch_sends_all_but_what_stays(ranks: int, a: int, b: int, unit: int) -> None:
    """An all-to-all sends what rank r holds, less the part that stays on rank r."""
    before, after = shard_sizes(a, ranks), shard_sizes(b, ranks)
    forth = Transfer.all_to_all(a * b * unit, before, after)
    back = Transfer.all_to_all(a * b * unit, after, before)
    for rank in range(ranks):
        stays = before[rank] * after[rank] * unit
        assert forth.sent[rank] == before[rank] * b * unit - stays
        assert back.sent[rank] == a * after[rank] * unit - stays
    assert sum(forth.sent) == sum(back.sent)


def test_one_rank_sends_nothing() -> None:
    """Every collective over one rank is free."""
    for transfer in (
        Transfer.all_to_all(24, (4,), (6,)),
        Transfer.all_gather(24, (4,)),
        Transfer.reduce_scatter(24, (4,)),
        Transfer.ring(24, (4,)),
        Transfer.all_reduce(24, 1),
    ):
        assert transfer.sent == (0,)
        assert count([transfer], 0) == {}


def test_fractions_are_rounded_once() -> None:
    """Three all-reduces of 4 bytes over 3 ranks are 16 bytes, not 3 x 5."""
    transfers = [Transfer.all_reduce(4, 3).during("gradients")] * 3
    assert by_phase(count(transfers, 0))["gradients"] == 16
    assert by_op(count(transfers, 0))["all_reduce"] == 16
