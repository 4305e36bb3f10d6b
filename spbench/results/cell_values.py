"""A column of runs.csv, from the text of its cells to figures.

A figure is a plain decimal number: Python takes more for one, as 1_5 or digits of other scripts. A
figure that cannot be, as a negative time, is damage: it would be drawn and divided by.
"""

from __future__ import annotations

import re
from typing import Any, Final

import pandas

from spbench.results.record import COLUMNS, REQUIRED, column_types
from spbench.results.sample import STATUSES

DTYPES: Final[dict[type, str]] = {int: "Int64", float: "float64", str: "str"}
ABOVE_0 = frozenset(
    name
    for name in COLUMNS
    if name in ("schema_version", "batch", "compute_ms")
    or name.startswith(("step_ms", "samples_per_s", "tokens_per_s"))
    or name.endswith("_size")
)
"""Other figures may be 0."""
MAY_BE_NEGATIVE = frozenset(("exposed_comm_ms", "gpu_temperature_c"))
LARGEST = 1e30
"""Sums and ratios of smaller figures are finite."""
WHOLE = re.compile(r"([-+]?[0-9]{1,18})\.0*|([-+]?[0-9]+)")
"""A program that knows floats alone writes 123 as 123.0."""
NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
DECIMAL_COMMA = re.compile(r"[-+]?[0-9]*,[0-9]+")
NOT_MEASURED = re.compile(r"[-+]?(nan|inf|infinity)", re.IGNORECASE)
NO_TEXT = "\ufffd"
"""Stands for bytes that are not UTF-8."""


def converted(name: str, cells: pandas.Series[str]) -> tuple[pandas.Series[Any], list[str]]:
    """The values of a column, and for each row why its cell has none; "" where it is sound.

    Most texts and whole numbers of a column are there many times, and are converted once.
    """
    codes, texts = pandas.factorize(cells)
    values, reasons = zip(*(_value(name, text.strip()) for text in texts), strict=True)
    column = as_column(name, values).take(codes)
    column.index = cells.index
    return column, [reasons[code] for code in codes] if any(reasons) else []


def as_column(name: str, values: Any) -> pandas.Series[Any]:
    """Values of one column of runs.csv, None for what was not measured, in its dtype."""
    return pandas.Series(list(values), dtype=DTYPES[column_types()[name]])


def _value(name: str, text: str) -> tuple[str | float | None, str]:
    """The value of a cell, and why there is none; a blank cell of a figure is None."""
    kind = column_types()[name]
    if kind is not str and NOT_MEASURED.fullmatch(text):
        text = ""
    blank = "" if kind is str else None
    if not text:
        return blank, f"{name} is blank" if name in REQUIRED else ""
    if kind is str:
        reason = _why_no_name(name, text) if name in REQUIRED else ""
        return (blank if reason else text), reason
    number = _whole(name, text) if kind is int else _figure(name, text)
    if number is not None:
        return number, ""
    if DECIMAL_COMMA.fullmatch(text):
        return None, f"{name} has a decimal comma, save the file with decimal points"
    return None, f"{name} is not a valid figure"


def _why_no_name(name: str, text: str) -> str:
    """What names a row must be known to the last letter."""
    if NO_TEXT in text:
        return f"{name} is not valid text"
    if name == "status" and text not in STATUSES:
        return f"status {text[:20]!r} is not known to this version"
    return ""


def _whole(name: str, text: str) -> int | None:
    match = WHOLE.fullmatch(text)
    if match is None:  # a fraction, or digits rounded away
        return None
    number = int(match[1] or match[2])
    return number if (1 if name in ABOVE_0 else 0) <= number < 2**63 else None


def _figure(name: str, text: str) -> float | None:
    if not NUMBER.fullmatch(text):
        return None
    least = -LARGEST if name in MAY_BE_NEGATIVE else 1 / LARGEST if name in ABOVE_0 else 0.0
    number = float(text)
    return number if least <= number <= LARGEST else None
