"""Windows of several axes: who sees whom, as the shifted windows of Swin and of Aurora have it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from spbench.workload.boxes import Boxes
from spbench.workload.mask import Picks, Runs

CASES = [
    Boxes(lengths=(7,), window=(3,), shift=(0,), wraps=(False,)),
    Boxes(lengths=(7,), window=(3,), shift=(2,), wraps=(False,)),
    Boxes(lengths=(7,), window=(3,), shift=(2,), wraps=(True,)),
    Boxes(lengths=(4, 6), window=(2, 3), shift=(1, 2), wraps=(False, True)),
    Boxes(lengths=(3, 4, 5), window=(2, 2, 3), shift=(1, 0, 1), wraps=(False, False, True)),
]


def seen(boxes: Boxes) -> np.ndarray:
    """Which positions see each other, said of each pair by itself: along each axis both are in one
    stretch, counted from the shift."""
    places = [*product(*map(range, boxes.lengths))]

    def stretch(place: int, axis: int) -> int:
        back = place - boxes.shift[axis]
        if back < 0 and boxes.wraps[axis]:
            back += boxes.lengths[axis]
        return -1 if back < 0 else back // boxes.window[axis]

    def same(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
        return all(stretch(one[i], i) == stretch(other[i], i) for i in range(len(one)))

    return np.array([[same(one, other) for other in places] for one in places])


def runs_of(length: int) -> list[Runs]:
    """All positions, two runs of them, and one."""
    return [((0, length),), ((1, length // 3), (length // 2, length // 4)), ((2, 1),)]


@pytest.mark.parametrize("boxes", CASES)
def test_each_pair_of_a_box_is_in_one_tile(boxes: Boxes) -> None:
    wanted = seen(boxes)
    every = runs_of(len(wanted))
    for rows, keys in product(every, every):
        of_rows, of_keys = (
            [place for first, n in runs for place in range(first, first + n)]
            for runs in (rows, keys)
        )
        counts = np.zeros((len(of_rows), len(of_keys)), int)
        for tile in boxes.tiles(rows, keys):
            assert isinstance(tile.rows, Picks) and isinstance(tile.keys, Picks)
            for queries, others in zip(tile.rows.places, tile.keys.places, strict=True):
                counts[np.ix_(queries, others)] += 1
        assert (counts == wanted[np.ix_(of_rows, of_keys)]).all()


@pytest.mark.parametrize("boxes", CASES)
def test_what_is_needed_and_how_many_pairs(boxes: Boxes) -> None:
    wanted = seen(boxes)
    for runs in runs_of(len(wanted)):
        rows = [place for first, n in runs for place in range(first, first + n)]
        needed = boxes.needed(runs)
        assert [place for first, n in needed for place in range(first, first + n)] == [
            *np.flatnonzero(wanted[rows].any(0))
        ]
        assert boxes.pairs(runs) == wanted[rows].sum()


def test_a_shift_is_a_roll_with_a_mask() -> None:
    """As Swin computes it: positions are rolled by the shift, cut into windows, and what a roll
    brought together from both ends is masked. A stretch over the end is two."""
    boxes = Boxes(lengths=(12,), window=(4,), shift=(2,), wraps=(False,))
    rolled = np.roll(np.arange(12), -2).reshape(3, 4)
    wanted = np.zeros((12, 12), bool)
    for window in rolled:
        for i, j in product(window, window):
            wanted[i, j] = abs(i - j) < 4  # others were brought together by the roll
    assert (seen(boxes) == wanted).all()
    wrapped = Boxes(lengths=(12,), window=(4,), shift=(2,), wraps=(True,))
    for window in rolled:
        wanted[np.ix_(window, window)] = True
    assert (seen(wrapped) == wanted).all()


def test_many_boxes_are_few_tiles() -> None:
    """Aurora's grid: 1,800 boxes of 144 positions in one batch; shifted, eight kinds."""
    sizes = {"lengths": (4, 180, 360), "window": (2, 6, 12)}
    every = ((0, 4 * 180 * 360),)
    plain = Boxes(**sizes, shift=(0, 0, 0), wraps=(False,) * 3)
    (tile,) = plain.tiles(every, every)
    assert (tile.rows.times, tile.rows.size, tile.sees) == (1800, 144, "whole")
    shifted = Boxes(**sizes, shift=(1, 3, 6), wraps=(False, False, True))
    assert len(shifted.tiles(every, every)) <= 4
