"""A causal ring computes every visible score once, evenly over the ranks."""

from __future__ import annotations

import math
import re
import threading

import pytest
import torch
from helpers.examples import examples
from helpers.golden import Golden
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from spbench.comm.threaded import ThreadRendezvous, ThreadTransport, run_rank_threads
from spbench.comm.transport import Transports
from spbench.layers.rsa_rows import Band
from spbench.strategies.registry import load
from spbench.worker.step import Step
from spbench.workload.catalogue import find, with_settings
from spbench.workload.sharding import Shard

CPU = torch.device("cpu")


@st.composite
def bands(draw: st.DrawFn) -> list[Band]:
    """The bands of all ranks, along any of one to three attended dims."""
    lengths = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    dims = tuple(range(1, len(lengths) + 1))
    along = draw(st.sampled_from(dims))
    ranks = draw(st.integers(1, lengths[along - 1]))
    cut = draw(st.sampled_from([Shard.even, Shard.causal]))
    shard = cut(along, lengths[along - 1], ranks)
    causal = draw(st.booleans())
    return [
        Band(shard=shard, rank=rank, dims=dims, lengths=lengths, causal=causal)
        for rank in range(ranks)
    ]


@examples(300)
@given(bands())
def test_tiles_cover_what_is_seen_once(every: list[Band]) -> None:
    """Each score of a query and a key it may see is in one tile; all others masked or in
    one that is skipped."""
    ranks = range(len(every))
    places = torch.cat([every[0]._positions(rank, CPU) for rank in ranks])
    assert sorted(places.tolist()) == list(range(len(places)))
    for band in every:
        mine = band._positions(band.rank, CPU)
        computed = torch.zeros(len(mine), len(places), dtype=torch.int64)
        seen = torch.zeros_like(computed, dtype=torch.bool)
        for owner, tile in ((r, tile) for r in ranks for tile in band.tiles(r)):
            (row, rows), (column, columns) = tile.rows, tile.columns
            part = (slice(row, row + rows), slice(column, column + columns))
            computed[part] += 1
            seen[part] = ~band.hidden(tile, owner, CPU) if tile.masked else True
        assert computed.max() <= 1
        wanted = mine[:, None] >= places if band.causal else torch.ones_like(seen)
        assert torch.equal(seen, wanted)
        for tile in (tile for r in ranks for tile in band.tiles(r, hidden=True)):
            computed.narrow(0, *tile.rows).narrow(1, *tile.columns).add_(1)
        assert torch.equal(computed, torch.ones_like(computed))


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 32])
@pytest.mark.parametrize("name", ["gpt-7b", "llama3-8b"])
def test_a_causal_ring_is_balanced(name: str, ranks: int) -> None:
    """The slowest rank's scores are within 5 % of the mean, and near half of the square."""
    work = find(name)
    (length,) = work.axes.values()
    shard = load("rsa").on(work, ranks).shard("sequence")  # type: ignore[attr-defined]
    scores = []
    for rank in range(ranks):
        band = Band(shard=shard, rank=rank, dims=(1,), lengths=(length,), causal=True)
        scores.append(sum(tile.rows[1] * tile.columns[1] for tile in band.all_tiles))
    assert max(scores) <= 1.05 * sum(scores) / ranks
    assert sum(scores) == pytest.approx((0.5 + 1 / (4 * ranks)) * length**2, rel=1e-6)


@given(st.integers(2, 16), st.integers(1, 200))
def test_no_length_is_shared_worse_than_in_single_runs(ranks: int, more: int) -> None:
    """Chunks that do not divide: never worse than straight, and even from 32 a rank on."""
    length = ranks + more
    zigzag, straight = (cut(1, length, ranks) for cut in (Shard.causal, Shard.even))
    assert min(zigzag.sizes) >= 1
    assert max(zigzag.scores) <= max(straight.scores)
    assert Shard.causal(1, 32 * ranks + more, ranks).score_imbalance < 1.06


def test_what_is_lopsided_is_said(golden: Golden) -> None:
    """Few positions a rank cannot be shared evenly; then the strategy says how unevenly."""
    rsa = load("rsa")
    few = with_settings(find("causal", "verify"), ["axes.sequence=12"])
    golden(rsa.on(few, 8).notes)
    assert rsa.on(find("gpt-7b"), 8).notes.endswith("(zigzag)")


@pytest.mark.parametrize("axes", ["{time: 30, space: 1600}", "{time: 33, h: 45, w: 80}"])
def test_whichever_joined_axis_is_sharded_half_is_left_out(axes: str) -> None:
    """Joint and causal: the work is near half of the square along every axis."""
    lengths = tuple(int(n) for n in re.findall(r"\d+", axes))
    dims = tuple(range(1, len(lengths) + 1))
    for along in dims:
        shard = Shard.causal(along, lengths[along - 1], 8)
        total = 0
        for rank in range(8):
            band = Band(shard=shard, rank=rank, dims=dims, lengths=lengths, causal=True)
            total += sum(tile.rows[1] * tile.columns[1] for tile in band.all_tiles)
        assert total <= 0.57 * math.prod(lengths) ** 2


@pytest.mark.parametrize("ranks", [2, 4])
def test_counted_operations_of_a_causal_ring_are_balanced(ranks: int) -> None:
    """Operations of a step as torch counts them: the busiest rank is within 5 % of the mean."""
    work = with_settings(find("gpt-7b-small"), ["depth=1"])
    second = ThreadRendezvous(ranks)
    lock = threading.Lock()

    def operations(transport: ThreadTransport) -> int:
        transports = Transports(
            strategy=transport, gradients=ThreadTransport(transport.rank, second)
        )
        step = Step(load("rsa").on(work, ranks), transports, CPU)
        mine, cotangent = step.seeded_inputs()
        with lock:  # entering the mode patches modules
            counter = FlopCounterMode(display=False)
        with counter:
            step(mine, cotangent)
        return counter.get_total_flops()

    counted = run_rank_threads(ranks, operations)
    assert max(counted) <= 1.05 * sum(counted) / ranks


def test_straight_shards_would_be_lopsided() -> None:
    """Zigzag is needed: with single runs the last of 8 ranks computes near twice the mean."""
    bands_ = [
        Band(shard=Shard.even(1, 4096, 8), rank=rank, dims=(1,), lengths=(4096,), causal=True)
        for rank in range(8)
    ]
    scores = [sum(t.rows[1] * t.columns[1] for t in band.all_tiles) for band in bands_]
    assert max(scores) > 1.7 * sum(scores) / 8
