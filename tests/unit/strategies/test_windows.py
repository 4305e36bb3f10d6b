"""Windows under strategies that pass or gather keys: exact, and blocks that nobody sees stay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from helpers.gate_on_threads import prove, why_wrong
from torch import Tensor

from spbench.strategies import kv_gather, ring
from spbench.strategies.registry import load
from spbench.workload.edges import Edges
from spbench.workload.traffic import by_busiest
from spbench.workload.workload import Workload

ATTENTION: dict[str, Any] = {"attention": "sequence", "causal": True, "window": 6, "sinks": True}
PASSING = ["ring", "ring:half-gradients", "kv-gather", "kv-gather:gather-again", "attention-2d"]
PASSING += ["usp:ulysses=2", "usp:ulysses=2:across=kv-gather", "halo:whole=ring"]
PASSING += ["halo:whole=kv-gather"]


def decoder(**fields: Any) -> Workload:
    """One windowed attention of 8 heads, 2 of keys, and an mlp."""
    return Workload.model_validate(
        {
            "name": "windows",
            "axes": {"sequence": 37},
            "hidden": 32,
            "heads": 8,
            "kv_heads": 2,
            "depth": 1,
            "block": [ATTENTION, {"mlp": 2}],
            "dtype": "float64",
            **fields,
        }
    )


def wrong(work: Workload, strategy: str, ranks: int) -> str:
    outcomes = prove(work, load(strategy), ranks)
    assert max(outcome.worst.relative for outcome in outcomes) < 1e-12
    return why_wrong(outcomes)


@pytest.mark.parametrize("ranks", [4, 6])
@pytest.mark.parametrize("window", [1, 6, 30])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("strategy", PASSING)
def test_windows_over_several_ranks(strategy: str, ranks: int, window: int, causal: bool) -> None:
    """Shards of single runs; 37 positions on 6 ranks are 7 and 6."""
    block = [ATTENTION | {"window": window, "causal": causal}, {"mlp": 2}]
    assert not wrong(decoder(block=block), strategy, ranks)


@pytest.mark.parametrize("checkpointing", ["none", "selective"])
@pytest.mark.parametrize("strategy", PASSING)
def test_windows_beside_whole_attention(strategy: str, checkpointing: str) -> None:
    """As gpt-oss has it: shards are zigzag, and both kinds of layers have sinks."""
    block = [ATTENTION, {"mlp": 2}, ATTENTION | {"window": None}]
    work = decoder(block=block, checkpointing=checkpointing, v_head_dim=3, batch=2)
    assert not wrong(work, strategy, 4)


@pytest.mark.parametrize(
    ("window", "causal", "hops"), [(1, True, 0), (5, True, 1), (6, True, 2), (3, False, 7)]
)
def test_a_ring_stops_behind_the_last_rank_that_sees_a_block(
    window: int, causal: bool, hops: int
) -> None:
    """Of 32 positions each of 8 ranks holds 4: a query sees the 4 before it, or 5, which lie on two
    ranks. What lies behind a query comes from the next rank, to which the ring comes at last."""
    block = [ATTENTION | {"window": window, "causal": causal, "sinks": False}]
    work = decoder(block=block, axes={"sequence": 32})
    plan = load("ring").on(work, 8)
    both = work.key_value_bytes // 8  # of a shard
    sent = by_busiest(plan.traffic)
    assert sent["forward"] == hops * both
    assert sent["backward"] == 2 * hops * both
    assert not wrong(work, "ring", 8)


def test_a_ring_of_a_causal_window_has_single_runs() -> None:
    """Each query sees as many keys, so that early and late chunks would only cost bytes; beside a
    whole causal attention they are zigzag."""
    assert {len(runs) for runs in load("ring").on(decoder(), 4).shard("sequence").runs} == {1}
    mixed = decoder(block=[ATTENTION, ATTENTION | {"window": None}])
    assert {len(runs) for runs in load("ring").on(mixed, 4).shard("sequence").runs} == {2}


def test_a_block_that_stops_too_early_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: the ring goes on one rank too few, as is predicted."""
    monkeypatch.setattr(Edges, "hops", property(lambda edges: 1))
    assert "differs" in wrong_values("ring", 8)


def test_gradients_that_do_not_come_home_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: the sums of the last rank that sees a block go to another than the owner."""
    right = ring.Collectives.start_shift

    def to_the_next(self: Any, x: Tensor, length: int, by: int = 1) -> Any:
        return right(self, x, length, -1 if by < 0 else by)

    monkeypatch.setattr(ring.Collectives, "start_shift", to_the_next)
    work = decoder(axes={"sequence": 32})
    assert "gradient" in why_wrong(prove(work, load("ring"), 8))


@pytest.mark.parametrize("module", [ring, kv_gather])
def test_a_sink_that_counts_on_two_ranks_is_caught(
    monkeypatch: pytest.MonkeyPatch, module: Any
) -> None:
    right = module.with_sinks
    twice = lambda total, sinks: right(right(total, sinks), sinks)  # noqa: E731
    monkeypatch.setattr(module, "with_sinks", twice)
    strategy = "ring" if module is ring else "kv-gather"
    assert "differs" in wrong_values(strategy, 4)


def test_a_window_one_key_too_short_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: what a rank computes of the others' keys lacks the farthest of the band."""
    right = kv_gather._shown
    monkeypatch.setattr(
        kv_gather, "_shown", lambda mask, *how: right(replace(mask, before=mask.before - 1), *how)
    )
    assert "differs" in wrong_values("kv-gather", 4)


def wrong_values(strategy: str, ranks: int) -> str:
    return why_wrong(prove(decoder(), load(strategy), ranks))
