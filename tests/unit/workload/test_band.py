"""Tiles of a window: each pair that sees each other once, and no other."""

from __future__ import annotations

import numpy as np
import pytest

from spbench.workload.band import Band, Reach, tiles
from spbench.workload.mask import Strip, Tile
from spbench.workload.sharding import Run

REACHES = [(0, 0), (1, 0), (0, 1), (4, 0), (2, 1), (2, 2), (9, 0), (30, 30)]


def seen(found: list[Tile], queries: int, keys: int) -> np.ndarray:
    """How often each pair is in a tile."""
    counts = np.zeros((queries, keys), int)
    for rows, columns, sees in found:
        assert isinstance(rows, Strip) and isinstance(columns, Strip)
        assert rows.times == columns.times
        for time in range(rows.times):
            row, column = rows.first + time * rows.step, columns.first + time * columns.step
            square = np.ones((rows.size, columns.size), int)
            shape = {"whole": square, "early": np.tril(square), "late": np.triu(square)}[sees]
            counts[row : row + rows.size, column : column + columns.size] += shape
    return counts


@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize("rows", [(0, 1), (0, 7), (0, 20), (5, 9), (13, 6)])
@pytest.mark.parametrize("keys", [(0, 20), (0, 7), (4, 11), (18, 2), (10, 25)])
def test_each_pair_is_in_one_tile(reach: Reach, rows: Run, keys: Run) -> None:
    places = np.arange(rows[0], sum(rows))[:, None] - np.arange(keys[0], sum(keys))
    wanted = (places <= reach[0]) & (places >= -reach[1])
    assert (seen(tiles(rows, keys, reach), rows[1], keys[1]) == wanted).all()


@pytest.mark.parametrize("rows", [(0, 1), (0, 7), (5, 9), (13, 6)])
@pytest.mark.parametrize("keys", [(0, 20), (0, 7), (4, 11), (18, 2), (10, 25)])
def test_no_key_behind_the_query(rows: Run, keys: Run) -> None:
    """Without a window, of runs that differ: all keys before a query, and its own."""
    places = np.arange(rows[0], sum(rows))[:, None] - np.arange(keys[0], sum(keys))
    found = tiles(rows, keys, (40, 0))
    assert (seen(found, rows[1], keys[1]) == (places >= 0)).all()


@pytest.mark.parametrize("reach", REACHES)
def test_pairs_are_counted(reach: Reach) -> None:
    for length in (1, 2, 9, 40):
        run = (0, length)
        assert (
            Band(documents=(length,), before=reach[0], after=reach[1]).pairs((run,))
            == seen(tiles(run, run, reach), length, length).sum()
        )


def test_long_sequences_are_a_few_tiles() -> None:
    """131,072 positions and a window of 128: all blocks but the first are one batch."""
    run = (0, 131_072)
    found = tiles(run, run, (127, 0))
    assert len(found) <= 4
    assert max(tile.rows.times for tile in found) == 1023
