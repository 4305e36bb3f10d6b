"""Documents along an axis: drawn lengths, and what is seen of each."""

from __future__ import annotations

import numpy as np
import pytest

from spbench.workload.band import Band, Reach
from spbench.workload.catalogue import find, with_settings
from spbench.workload.documents import drawn, resized
from spbench.workload.mask import Strip, Tile
from spbench.workload.reduced import reductions
from spbench.workload.sharding import Run

DOCUMENTS = (4, 1, 9, 6)


def seen(found: list[Tile], queries: int, keys: int) -> np.ndarray:
    """How often each pair is in a tile."""
    counts = np.zeros((queries, keys), int)
    for rows, columns, sees in found:
        assert isinstance(rows, Strip) and isinstance(columns, Strip)
        square = np.ones((rows.size, columns.size), int)
        shape = {"whole": square, "early": np.tril(square), "late": np.triu(square)}[sees]
        for time in range(rows.times):
            row, column = rows.first + time * rows.step, columns.first + time * columns.step
            counts[row : row + rows.size, column : column + columns.size] += shape
    return counts


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("reach", [None, (1, 0), (2, 2), (30, 30)])
@pytest.mark.parametrize("rows", [(0, 20), (0, 3), (4, 1), (3, 13), (18, 2)])
@pytest.mark.parametrize("keys", [(0, 20), (5, 9), (12, 8)])
def test_each_pair_of_a_document_is_in_one_tile(
    rows: Run, keys: Run, reach: Reach | None, causal: bool
) -> None:
    of = np.repeat(range(len(DOCUMENTS)), DOCUMENTS)
    i, j = np.arange(rows[0], sum(rows))[:, None], np.arange(keys[0], sum(keys))
    before, after = reach or (20, 0 if causal else 20)
    wanted = (of[i] == of[j]) & (i - j <= before) & (j - i <= after)
    band = Band(documents=DOCUMENTS, before=before, after=after)
    assert (seen([*band.tiles((rows,), (keys,))], rows[1], keys[1]) == wanted).all()
    every = np.arange(20)
    all_seen = (of[i] == of[every]) & (i - every <= before) & (every - i <= after)
    assert band.pairs((rows,)) == all_seen.sum()
    needed = {place for first, n in band.needed((rows,)) for place in range(first, first + n)}
    assert needed == {*np.flatnonzero(all_seen.any(0))}


def test_drawn_lengths() -> None:
    """They fill the sequence, have about the mean that is asked for, and are their seed's own."""
    lengths = drawn(1_000_000, 1000, 1)
    assert sum(lengths) == 1_000_000
    assert 900 < np.mean(lengths) < 1100
    assert min(lengths) >= 1
    assert drawn(20, 6, 1) == (1, 11, 8)  # as on any other machine
    assert drawn(20, 6, 2) != (1, 11, 8)
    assert drawn(7, 1, 0) == drawn(7, 1, 0)


@pytest.mark.parametrize("length", [1, 2, 41, 8191, 8192, 20_000])
def test_documents_of_another_length(length: int) -> None:
    shorter = resized((4000, 3000, 1192), length)
    assert sum(shorter) == length
    assert min(shorter) >= 1
    assert resized(shorter, length) == shorter


@pytest.mark.parametrize("documents", ["[4000, 3000, 1192]", "{mean: 900, seed: 1}"])
def test_reduced_forms_have_documents(documents: str) -> None:
    """All forms that the gate may compare are valid, and have several documents."""
    block = f"block=[{{attention: sequence, causal: true, documents: {documents}}}, {{mlp: 2}}]"
    work = with_settings(find("llama3-8b"), ["axes.sequence=8192", block])
    forms = list(reductions(work, 3))
    assert len(forms) > 3
    for form in forms:
        assert sum(form.packing("sequence")) == form.axes["sequence"]
        assert len(form.packing("sequence")) > 1
