"""A column of runs.csv: from the texts of its cells to values, and why a cell has none.

A figure is a plain decimal number: Python takes more for a number, as 1_5 or digits of other
scripts. A figure that cannot be, as a negative time, is damage: it would be drawn and divided by.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
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
NOT_MEASURED = re.compile(r"|[-+]?(nan|inf|infinity)", re.IGNORECASE)
NOT_UTF8 = "\ufffd"
"""Stands for bytes that are not UTF-8."""


def converted(name: str, cells: pandas.Series[str]) -> tuple[pandas.Series[Any], list[str]]:
    """The values of a column, and for each row why its cell has none; no reasons if all are sound.

    A text that is there many times, as most are, is converted once.
    """
    codes, texts = pandas.factorize(cells)
    value = _text if column_types()[name] is str else _figure
    values, reasons = zip(*(value(name, text.strip()) for text in texts), strict=True)
    column = as_column(name, values).take(codes).set_axis(cells.index)
    return column, [reasons[code] for code in codes] if any(reasons) else []


def as_column(name: str, values: Iterable[Any]) -> pandas.Series[Any]:
    """Values of one column of runs.csv, None for what was not measured, in its dtype."""
    return pandas.Series(list(values), dtype=DTYPES[column_types()[name]])


def _text(name: str, text: str) -> tuple[str, str]:
    """The text of a cell, and why there is none: what names a row must be known to the letter."""
    if name not in REQUIRED:
        return text, ""
    if not text:
        return "", f"{name} is blank"
    if NOT_UTF8 in text:
        return "", f"{name} is not valid text"
    if name == "status" and text not in STATUSES:
        return "", f"status {text[:20]!r} is not known to this version"
    return text, ""


def _figure(name: str, text: str) -> tuple[float | None, str]:
    """The figure of a cell, and why there is none; None where it was not measured."""
    if NOT_MEASURED.fullmatch(text):
        return None, f"{name} is blank" if name in REQUIRED else ""
    number = _whole(name, text) if column_types()[name] is int else _real(name, text)
    if number is not None:
        return number, ""
    if DECIMAL_COMMA.fullmatch(text):
        return None, f"{name} has a decimal comma, save the file with decimal points"
    return None, f"{name} is not a valid figure"


def _whole(name: str, text: str) -> int | None:
    match = WHOLE.fullmatch(text)
    if match is None:  # a fraction, or digits rounded away
        return None
    number = int(match[1] or match[2])
    return number if (name in ABOVE_0) <= number < 2**63 else None


def _real(name: str, text: str) -> float | None:
    if not NUMBER.fullmatch(text):
        return None
    least = -LARGEST if name in MAY_BE_NEGATIVE else 1 / LARGEST if name in ABOVE_0 else 0.0
    number = float(text)
    return number if least <= number <= LARGEST else None
