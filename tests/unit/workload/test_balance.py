"""Shards that are even by work: as predicted, as kernels are given, and right."""

from __future__ import annotations

import pytest
from helpers.gate_on_threads import prove, why_wrong

from spbench.projection.dryrun.trace import work as counted
from spbench.strategies.fixed_axis import FixedPlan
from spbench.strategies.registry import load
from spbench.workload.balance import PositionWork, by_work
from spbench.workload.catalogue import find, with_settings
from spbench.workload.sharding import Shard
from spbench.workload.workload import Workload

DRAWN = "{mean: 90, seed: 2}"


def packed(*settings: str, documents: str = DRAWN) -> Workload:
    """Documents of 512 positions, in one block."""
    attention = f"{{attention: sequence, causal: true, documents: {documents}}}"
    block = f"block=[{attention}, {{mlp: 2}}]"
    return with_settings(find("llama3-8b-small"), ["depth=1", block, *settings])


def plan_of(strategy: str, work: Workload, ranks: int) -> FixedPlan:
    plan = load(strategy).on(work, ranks)
    assert isinstance(plan, FixedPlan)
    return plan


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("strategy", ["ring", "kv-gather", "attention-2d"])
def test_ranks_have_as_much_work(strategy: str, ranks: int) -> None:
    """By tokens the busiest rank has 2 to 12 % more than the mean, by work less than 0.02 %."""
    shape = find("llama3-8b-packed")
    work = PositionWork(shape, "sequence")
    by = {
        balance: work.imbalance(
            plan_of(f"{strategy}:balance={balance}", shape, ranks).shard("sequence")
        )
        for balance in ("tokens", "work")
    }
    assert by["work"] < 1.0002
    assert by["tokens"] > 1.02


@pytest.mark.parametrize("mode", ["forward", "train"])
@pytest.mark.parametrize(
    "documents", ["", ", documents: {mean: 90, seed: 2}", ", documents: [400, 112]", ", window: 40"]
)
@pytest.mark.parametrize("strategy", ["ring", "kv-gather"])
@pytest.mark.parametrize("balance", ["tokens", "work"])
def test_operations_are_those_of_the_kernels(
    mode: str, documents: str, strategy: str, balance: str
) -> None:
    """Predicted of each of four ranks, and so of the busiest, as a dry run of its own step counts
    them, to the last: attention, and the products beside it."""
    block = f"block=[{{attention: sequence, causal: true{documents}}}, {{mlp: 2}}]"
    shape = with_settings(find("llama3-8b-small"), ["depth=2", block, f"mode={mode}"])
    name = f"{strategy}:balance={balance}"
    own, plan = load(name), plan_of(name, shape, 4)
    work = PositionWork(shape, "sequence")
    behind = 2 * shape.hidden * shape.out_channels * (3 if mode == "train" else 1)
    every = []
    for rank, runs in enumerate(plan.shard("sequence").runs):
        done, positions = counted(shape, own, 4, rank), sum(n for _, n in runs)
        assert done.flops("attention") == work.attention(runs)
        assert done.flops("gemm") == (work.beside // shape.tokens + behind) * positions
        every.append(done.operations)
    assert counted(shape, own, 4).operations == max(every)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("across", ["ring", "kv-gather", "attention-2d"])
def test_documents_by_work_are_right(across: str, ranks: int) -> None:
    """Equal to one device at 1e-12, bytes as predicted, alone and across groups."""
    sizes = ["axes.sequence=61", "dtype=float64", "hidden=16", "heads=4", "kv_heads=2"]
    shape = packed(*sizes, documents="[45, 16]")
    names = [f"{across}:balance=work"]
    if ranks == 4:
        names.append(f"usp:ulysses=2:across={across}:balance=work")
    for name in names:
        outcomes = prove(shape, load(name), ranks)
        assert not why_wrong(outcomes), (name, why_wrong(outcomes))
        assert max(outcome.worst.relative for outcome in outcomes) < 1e-12
        assert plan_of(name, shape, ranks).shard("sequence") != plan_of(
            name.replace("work", "tokens"), shape, ranks
        ).shard("sequence")


def test_heads_of_another_rank_are_cut_alike() -> None:
    """Groups of 12 heads on 5 ranks have 3 and 2: work of the shards is that of all heads."""
    shape = with_settings(packed(), ["heads=12", "kv_heads=12", "hidden=120", "axes.sequence=600"])
    plan = plan_of("usp:ulysses=5:balance=work", shape, 20)
    for heads in (3, 2):
        part = shape.model_copy(update={"heads": heads, "kv_heads": heads, "head_dim": 10})
        assert plan.across.with_heads_of(part).shard("sequence") == plan.across.shard("sequence")  # type: ignore[attr-defined]


@pytest.mark.parametrize("depth", [1, 2, 7])
def test_blocks_of_a_kind_are_cut_alike(depth: int) -> None:
    """However many: so a few of them stand for all in a dry run."""
    shard = plan_of("ring:balance=work", packed(f"depth={depth}"), 3).shard("sequence")
    assert shard == plan_of("ring:balance=work", packed(), 3).shard("sequence")


def test_without_a_mask_both_are_the_same() -> None:
    """Every position has as much to do."""
    shape = with_settings(packed(), ["block=[{attention: sequence}, {mlp: 2}]"])
    assert PositionWork(shape, "sequence").uneven == {}
    even = Shard.even(1, 512, 3)
    assert by_work(shape, "sequence", even) is even
    assert plan_of("ring:balance=work", shape, 3).notes == ""


def test_cuts_of_a_few_positions() -> None:
    """As many positions as ranks: one each, whatever they have to do."""
    shape = with_settings(
        packed(), ["axes.sequence=5", "block=[{attention: sequence, causal: true}]"]
    )
    assert plan_of("ring:balance=work", shape, 5).shard("sequence").sizes == (1,) * 5


def test_the_note_says_how_even_ranks_are() -> None:
    """Documents of 8K tokens on 4 ranks: attention is a fifth of a step."""
    by_tokens, by_work_ = (
        plan_of(f"ring:balance={balance}", find("llama3-8b-packed"), 4).notes
        for balance in ("tokens", "work")
    )
    assert by_tokens == (
        "each rank holds an early and a late chunk of sequence (zigzag); the busiest has 1.49 "
        "times the mean of operations of attention, 1.10 of all"
    )
    assert by_work_ == (
        "each rank holds one run of sequence; the busiest has 1.20 times the mean of operations "
        "of attention, 1.00 of all, 1.05 of tokens"
    )


def test_an_unknown_balance_is_refused() -> None:
    for name in ("ring", "kv-gather", "attention-2d", "usp"):
        why = load(f"{name}:balance=bytes").declines(packed(), 2)
        assert why == "balance=bytes is not known; it may be tokens or work"


def test_sharp_scores_by_work() -> None:
    """Scores that differ by hundreds, in uneven shards."""
    sizes = ["axes.sequence=64", "hidden=64", "dtype=float64"]
    shape = packed(*sizes, documents="[50, 14]")
    assert not why_wrong(prove(shape, load("ring:balance=work"), 3, sharpness=8.0))
