"""Windows of several axes: boxes that fill the grid of positions, in each of which all see all.

Every axis is cut into stretches of its window's length; a shift moves where they begin, so that
what two layers see in turn overlaps (Liu et al., Swin, 2021). The stretch that goes over the end is
two: one there, and one at the beginning. Along an axis whose ends are neighbours, as longitudes
are, the two are one window that wraps (Pangu-Weather, Bi et al., 2023; Aurora, Bodnar et al.,
2025):

    an axis of 12, window 4              aaaa bbbb cccc
    shift 2                              aa bbbb cccc dd
    shift 2, its ends are neighbours     aa bbbb cccc aa
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import final

import numpy as np

from spbench.workload.mask import Mask, Picks, Runs, Tile


@final
@dataclass(frozen=True, kw_only=True)
class Boxes(Mask):
    """Boxes of a grid; each field has an entry for each of its axes, in tensor order."""

    lengths: tuple[int, ...]
    """Positions of the axis."""
    window: tuple[int, ...]
    """Positions of a box along it."""
    shift: tuple[int, ...]
    """The first position where a box begins, smaller than a box."""
    wraps: tuple[bool, ...]
    """An entry for each axis: whether its ends are neighbours."""

    @property
    def is_apart(self) -> bool:
        return True

    def tiles(self, rows: Runs, keys: Runs) -> tuple[Tile, ...]:
        return _tiles(self, rows, keys)

    def needed(self, rows: Runs) -> Runs:
        numbers = _numbers(self)
        are_seen = np.zeros(numbers.max() + 1, bool)
        are_seen[_at(numbers, rows)] = True
        places = np.flatnonzero(are_seen[numbers])
        # Runs begin where a place is not the one behind the place before it.
        ends = [0, *(np.flatnonzero(np.diff(places) > 1) + 1).tolist(), len(places)]
        parts = pairwise(ends)
        return tuple((int(places[low]), high - low) for low, high in parts if high > low)

    def pairs(self, rows: Runs) -> int:
        numbers = _numbers(self)
        return int(np.bincount(numbers)[_at(numbers, rows)].sum())


@lru_cache(maxsize=32)
def _numbers(boxes: Boxes) -> np.ndarray:
    """The number of each position's box, in tensor order."""
    total = np.zeros(boxes.lengths, np.int64)
    for axis, (length, window) in enumerate(zip(boxes.lengths, boxes.window, strict=True)):
        places = np.arange(length) - boxes.shift[axis]
        # Of positions before the first box, which are below 0, a wrapped one is behind the last.
        along = places % length // window if boxes.wraps[axis] else places // window + 1
        shape = [1] * len(boxes.lengths)
        shape[axis] = length
        total = total * (along.max() + 1) + along.reshape(shape)
    return total.reshape(-1)


def _at(numbers: np.ndarray, runs: Runs) -> np.ndarray:
    """The numbers of these positions."""
    parts = [numbers[first : first + n] for first, n in runs]
    return np.concatenate(parts) if parts else numbers[:0]


@lru_cache(maxsize=200)  # asked for by each layer of a stack, forward and backward
def _tiles(boxes: Boxes, rows: Runs, keys: Runs) -> tuple[Tile, ...]:
    """A tile of all boxes with as many of these queries and as many of these keys."""
    numbers = _numbers(boxes)
    (rows_order, *of_rows), (keys_order, *of_keys) = (
        _by_box(_at(numbers, runs)) for runs in (rows, keys)
    )
    _, in_rows, in_keys = np.intersect1d(
        of_rows[0], of_keys[0], assume_unique=True, return_indices=True
    )
    row_starts, row_counts = (x[in_rows] for x in of_rows[1:])
    key_starts, key_counts = (x[in_keys] for x in of_keys[1:])
    found = []
    for count, others in sorted({*zip(row_counts.tolist(), key_counts.tolist(), strict=True)}):
        alike = (row_counts == count) & (key_counts == others)
        found.append(
            Tile(
                Picks(rows_order[row_starts[alike, None] + np.arange(count)]),
                Picks(keys_order[key_starts[alike, None] + np.arange(others)]),
                "whole",
            )
        )
    return tuple(found)


def _by_box(numbers: np.ndarray) -> tuple[np.ndarray, ...]:
    """Places in order of their boxes; these boxes, where each begins in that order, and its places'
    number."""
    order = np.argsort(numbers, kind="stable")
    return order, *np.unique(numbers[order], return_index=True, return_counts=True)
