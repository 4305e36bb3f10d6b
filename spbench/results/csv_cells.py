"""A cell of runs.csv as a figure, or why it is none.

A spreadsheet writes 123 as 123.0, and where the decimal sign is a comma, 1.5 as 1,5. What else
Python takes for a number, as 1_5 or digits of other scripts, none of them writes. A figure
that makes no sense, as a negative time, is damage: it would be drawn and divided by.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from spbench.results.record import COLUMNS, column_types

ABOVE_0 = frozenset(
    name
    for name in COLUMNS
    if name in ("schema_version", "batch", "compute_ms")
    or name.startswith(("step_ms", "samples_per_s", "tokens_per_s"))
    or name.endswith("_size")
)
"""Others may be 0."""
MAY_BE_NEGATIVE = frozenset(("exposed_comm_ms", "gpu_temperature_c"))
BEYOND_REASON = 1e30
"""Sums and ratios of smaller figures are finite."""
WHOLE = re.compile(r"([-+]?[0-9]{1,18})\.0*|([-+]?[0-9]+)")
NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
NOT_MEASURED = re.compile(r"[-+]?(nan|inf|infinity)", re.IGNORECASE)

Convert = Callable[[str], str | float | None]


def converters(delimiter: str) -> dict[str, Convert]:
    """For each column: cell to value; raises ValueError. None: blank, or NaN or infinity, which are
    not measured.

    Most texts and whole numbers of a column are there many times, and converted once.
    """
    made: dict[str, Convert] = {}
    for name, kind in column_types().items():
        if kind is float:
            made[name] = _of_cell(_figure(_least(name), comma=delimiter == ";"))
        else:
            whole = _whole(1 if name in ABOVE_0 else 0)
            made[name] = cache(_of_cell(whole if kind is int else str))
    return made


def _of_cell(convert: Convert) -> Convert:
    def converted(cell: str) -> str | float | None:
        text = cell.strip()
        return convert(text) if text else None

    return converted


def _least(name: str) -> float:
    if name in ABOVE_0:
        return 1 / BEYOND_REASON
    return -BEYOND_REASON if name in MAY_BE_NEGATIVE else 0.0


def _whole(least: int) -> Convert:
    def convert(text: str) -> int | None:
        if NOT_MEASURED.fullmatch(text):
            return None
        found = WHOLE.fullmatch(text)
        if found is None:  # a fraction, or digits rounded away
            raise ValueError(text)
        number = int(found[1] or found[2])
        if not least <= number < 2**63:
            raise ValueError(text)
        return number

    return convert


def _figure(least: float, *, comma: bool) -> Convert:
    def convert(text: str) -> float | None:
        if NOT_MEASURED.fullmatch(text):
            return None
        plain = text.replace(",", ".", 1) if comma else text
        if not NUMBER.fullmatch(plain) or not least <= float(plain) <= BEYOND_REASON:
            raise ValueError(text)
        return float(plain)

    return convert
