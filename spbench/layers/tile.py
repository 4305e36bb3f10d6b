"""A part of a score matrix that is computed by one product."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple


@dataclass(frozen=True)
class Tile:
    """Scores to compute: local rows, columns in rank order, and whether some are masked."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    masked: bool


class Slices(NamedTuple):
    """A tile as slices of the scores."""

    rows: slice
    columns: slice


def merged(tiles: list[Tile]) -> list[Tile]:
    """Unmasked neighbours as one: fewer and larger products."""
    found: list[Tile] = []
    for tile in tiles:
        if found and not (found[-1].masked or tile.masked):
            last = found[-1]
            (row, rows), (column, columns) = last.rows, last.columns
            if last.columns == tile.columns and row + rows == tile.rows[0]:
                found[-1] = replace(last, rows=(row, rows + tile.rows[1]))
                continue
            if last.rows == tile.rows and column + columns == tile.columns[0]:
                found[-1] = replace(last, columns=(column, columns + tile.columns[1]))
                continue
        found.append(tile)
    return found
