"""Shards hold every position once, as evenly as can be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spbench.workload.sharding import Shard, shard_sizes

LENGTHS = st.integers(min_value=1, max_value=10_000)
RANKS = st.integers(min_value=1, max_value=64)


@given(LENGTHS, RANKS)
def test_every_position_belongs_to_one_rank(length: int, ranks: int) -> None:
    """Sizes add up, differ by one at the most, and the longer shards come first."""
    sizes = shard_sizes(length, ranks)
    assert (len(sizes), sum(sizes)) == (ranks, length)
    assert max(sizes) - min(sizes) <= 1
    assert list(sizes) == sorted(sizes, reverse=True)


@given(LENGTHS, RANKS)
def test_shards_lie_end_to_end(length: int, ranks: int) -> None:
    """A shard starts where the one before it ends, the first at 0."""
    shard = Shard.even(1, length, ranks)
    assert shard.length == length
    assert shard.offset(0) == 0
    for rank in range(1, ranks):
        assert shard.offset(rank) == shard.offset(rank - 1) + shard.sizes[rank - 1]
    assert shard.offset(ranks) == length


@pytest.mark.parametrize(
    ("length", "ranks", "sizes"),
    [(13, 4, (4, 3, 3, 3)), (8, 4, (2, 2, 2, 2)), (2, 4, (1, 1, 0, 0)), (7, 1, (7,))],
)
def test_known_sizes(length: int, ranks: int, sizes: tuple[int, ...]) -> None:
    """The remainder goes to the first ranks; with too short an axis the last ranks hold nothing."""
    assert shard_sizes(length, ranks) == sizes


@pytest.mark.parametrize(("sizes", "imbalance"), [((4, 3, 3, 3), 16 / 13), ((2, 2), 1.0)])
def test_imbalance_is_largest_over_mean(sizes: tuple[int, ...], imbalance: float) -> None:
    """Even shards have imbalance 1; uneven shards have the longest over the mean."""
    assert Shard.of_sizes(1, sizes).imbalance == pytest.approx(imbalance)


@given(LENGTHS, st.integers(1, 8), st.integers(1, 8), st.booleans())
def test_shards_are_split_and_found_again(
    length: int, ranks: int, parts: int, causal: bool
) -> None:
    """The parts of a rank's runs, end to end, are its runs; each as long as the others, or by 1."""
    whole = (Shard.causal if causal else Shard.even)(1, max(length, ranks), ranks)
    shard = whole.split(parts)
    for rank, runs in enumerate(whole.runs):
        among = shard.among(range(rank * parts, (rank + 1) * parts))
        positions = [at for own in among.runs for first, n in own for at in range(first, first + n)]
        assert positions == [at for first, n in runs for at in range(first, first + n)]
        assert among.sizes == shard_sizes(whole.sizes[rank], parts)
        assert (among.dim, among.length) == (1, whole.sizes[rank])
    joined = shard.joined(parts)
    assert joined.sizes == whole.sizes
    assert joined.split(parts).sizes == shard.sizes
