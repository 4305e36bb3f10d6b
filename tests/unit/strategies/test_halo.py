"""A halo exchange: bytes, edges over several ranks, and planted faults that the gate catches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from helpers.gate_on_threads import prove, why_wrong
from torch import Tensor

from spbench.layers import heads
from spbench.layers.attention import Scores
from spbench.strategies import halo
from spbench.strategies.registry import load
from spbench.workload.band import Band
from spbench.workload.edges import Edges
from spbench.workload.sharding import Shard
from spbench.workload.traffic import by_busiest
from spbench.workload.workload import Workload

ATTENTION: dict[str, Any] = {"attention": "sequence", "causal": True, "window": 6, "sinks": True}


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
            "batch": 2,
            "dtype": "float64",
            **fields,
        }
    )


@pytest.mark.parametrize("ranks", [8, 32])
def test_an_edge_is_what_a_rank_sends(ranks: int) -> None:
    """As the sizes of gpt-oss have it: each way 127 positions of keys and of values a layer, by any
    number of ranks; of those a window of 128 keys sees beside the query itself."""
    sizes = {"axes": {"sequence": 131_072}, "hidden": 2880, "heads": 64, "kv_heads": 8}
    block = [ATTENTION | {"window": 128}, {"mlp": 2}]
    work = decoder(**sizes, head_dim=64, block=block, batch=1, dtype="bfloat16")
    sent = by_busiest(load("halo").on(work, ranks).traffic)
    assert sent["forward"] == sent["backward"] == 2 * 127 * (8 * 64) * 2


@pytest.mark.parametrize("ranks", [2, 5, 8])
@pytest.mark.parametrize("window", [1, 2, 6, 30, 64])
@pytest.mark.parametrize("causal", [False, True])
def test_windows_over_several_ranks(ranks: int, window: int, causal: bool) -> None:
    """37 positions on 8 ranks are 5 and 4: a window of 30 reaches over seven of them."""
    block = [ATTENTION | {"window": window, "causal": causal}, {"mlp": 2}]
    outcomes = prove(decoder(block=block), load("halo"), ranks)
    assert not why_wrong(outcomes)
    assert max(outcome.worst.relative for outcome in outcomes) < 1e-12


@pytest.mark.parametrize("checkpointing", ["full", "selective"])
def test_attention_computed_again_sends_its_edges_again(checkpointing: str) -> None:
    block = [ATTENTION, {"mlp": 2}, ATTENTION | {"window": None}]
    work = decoder(block=block, checkpointing=checkpointing, v_head_dim=3)
    assert not why_wrong(prove(work, load("halo"), 3))


@pytest.mark.parametrize("window", [6, 11])
def test_edges_of_runs_at_both_ends(window: int) -> None:
    """Of zigzag shards each run has an edge of its own: every position that is seen is held, or
    comes once."""
    shard = Shard.causal(0, 37, 4)
    edges = Edges.of(shard.runs, Band(documents=(37,), before=window - 1, after=0))
    for rank, runs in enumerate(shard.runs):
        own = {i for first, n in runs for i in range(first, first + n)}
        needed = {j for i in own for j in range(max(0, i - window + 1), i + 1)} - own
        came = [i for edge in edges.coming(rank) for i in range(edge.run[0], sum(edge.run))]
        assert set(came) == needed


@pytest.mark.parametrize("ranks", [3, 8])
def test_an_edge_that_is_not_sent_back_is_caught(
    monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    """A planted fault: gradients of the edges are zeros, as many bytes as are predicted."""
    right = halo._start

    def wrong(rows: Tensor, *how: Any) -> Any:
        is_back = rows.abs().sum() > 0 and how[-1].transport.phase_now == "backward"
        return right(0 * rows if is_back else rows, *how)

    monkeypatch.setattr(halo, "_start", wrong)
    assert "gradient" in why_wrong(prove(decoder(), load("halo"), ranks))


def test_an_edge_too_short_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: a key less than the window has, in what is sent and predicted alike."""
    right = Edges.of
    monkeypatch.setattr(
        Edges, "of", staticmethod(lambda held, band: right(held, replace(band, before=4)))
    )
    assert "differs" in why_wrong(prove(decoder(), load("halo"), 3))


def test_a_sink_that_counts_on_two_ranks_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: the parts of a row that come from two ranks each have it."""
    right = halo.with_sinks
    work = decoder()
    assert not why_wrong(prove(work, load("halo"), 2))
    monkeypatch.setattr(halo, "with_sinks", lambda total, sinks: right(right(total, sinks), sinks))
    assert "differs" in why_wrong(prove(work, load("halo"), 2))


def test_gradients_of_sinks_that_two_ranks_add_up_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A planted fault: each rank that shares heads out has the gradient of all of them."""
    right = heads.sinks_of_heads

    def wrong(scores: Scores, queries: Any, rank: int) -> Scores:
        own = right(scores, queries, rank).sinks
        assert own is not None and scores.sinks is not None
        total = scores.sinks.sum()
        return replace(scores, sinks=own + total - total.detach())

    monkeypatch.setattr(heads, "sinks_of_heads", wrong)
    assert "gradient of blocks.0.residuals.0.sublayer.sinks" in why_wrong(
        prove(decoder(), load("ulysses"), 2)
    )
