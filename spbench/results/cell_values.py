"""A cell of runs.csv: from its text to its value, and why it has none; columns of such values.

A figure is a plain decimal number: Python takes more for a number, as 1_5 or digits of other
scripts. A figure that cannot be, as a negative time, is damage: it would be drawn and divided by.
"""

import contextlib
import math
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final, get_args, get_type_hints

import numpy as np
import pandas

from spbench.results.record import COLUMNS, REQUIRED, Record
from spbench.results.sample import STATUSES
from spbench.workload.case import Device, Kind
from spbench.workload.fields import Checkpointing, Dtype, Mode, Optimizer

ABOVE_0 = frozenset(
    name
    for name in COLUMNS
    if name in ("schema_version", "batch", "compute_ms", "tokens", "hidden", "heads")
    or name.startswith(("step_ms", "samples_per_s", "tokens_per_s"))
    or name.endswith("_size")
)
"""Other figures may be 0."""
MAY_BE_NEGATIVE = frozenset(
    ("exposed_comm_ms", "exposed_comm_ms_low", "exposed_comm_ms_high", "gpu_temperature_c")
)
LARGEST = 1e30
"""Sums and ratios of smaller figures are finite."""
LARGEST_COUNT = 2**63 - 1
WHOLE = re.compile(r"([-+]?[0-9]{1,19})(?:\.0*)?")
"""A program that knows floats alone writes 123 as 123.0; a fraction is not a count."""
NUMBER = re.compile(r"([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)")
SIGNS = "0123456789.+-eE"
"""Characters that a number is made of."""
DECIMAL_COMMA = re.compile(r"[-+]?[0-9]*,[0-9]+")
NOT_MEASURED = re.compile(r"|[-+]?(nan|inf|infinity)", re.IGNORECASE)
WORDS = {
    name: re.compile("|".join(words))
    for name, words in {
        "status": STATUSES,
        "dtype": get_args(Dtype),
        "mode": get_args(Mode),
        "checkpointing": get_args(Checkpointing),
        "optimizer": get_args(Optimizer),
        "device": get_args(Device),
        "kind": get_args(Kind),
        "backend": ("nccl", "gloo", "fake"),
        "effort": ("full", "quick", "counted", r"[0-9.e+-]+ s(, none silent)?"),
        "axes": (r"[^=]+=[0-9]+(x[^=]+=[0-9]+)*",),
        "guidance": (r"[1-9][0-9]*",),
        "stopped_by": ("precision", "seconds", "iterations"),
        "host_bound": ("yes", "no"),
        "steady": ("yes", "no"),
    }.items()
}
"""What the texts of a column look like, where not any text will do."""
TEXT: Final[Any] = pandas.Series([], dtype="str").dtype
"""What this version of pandas keeps texts in."""
NOT_UTF8 = "\ufffd"
"""Stands for bytes that are not UTF-8."""


@cache
def column_types() -> dict[str, type]:
    """The plain type of each column: int, float or str."""
    return {
        name: next((kind for kind in (int, float) if kind in (hint, *get_args(hint))), str)
        for name, hint in get_type_hints(Record).items()
    }


def values_of(name: str, texts: Iterable[str]) -> tuple[list[Any], list[str]]:
    """The values of cells in the column ``name``, None if not measured; why others have none."""
    kind, bare = column_types()[name], [text.strip() for text in texts]
    if kind is str:
        return bare, [_why_not_text(name, text) for text in bare]
    most = LARGEST_COUNT if kind is int else LARGEST
    least = -LARGEST if name in MAY_BE_NEGATIVE else 1 / LARGEST if name in ABOVE_0 else 0.0
    values = [value if least <= value <= most else None for value in _numbers(kind, bare)]
    return values, [
        _why_no_figure(name, text) if value is None else ""
        for value, text in zip(values, bare, strict=True)
    ]


def _numbers(kind: type, texts: Sequence[str]) -> list[float]:
    """The numbers in texts; not a number where there is none. Python reads most columns at once, in
    a third of the time: those of digits and signs alone."""
    if not "".join(texts).strip(SIGNS):
        with contextlib.suppress(ValueError):
            return [kind(text) if text else math.nan for text in texts]
    pattern = WHOLE if kind is int else NUMBER
    return [kind(match[1]) if match else math.nan for match in map(pattern.fullmatch, texts)]


def _why_no_figure(name: str, text: str) -> str:
    if NOT_MEASURED.fullmatch(text):
        return f"{name} is blank" if name in REQUIRED else ""
    if DECIMAL_COMMA.fullmatch(text):
        return f"{name} has a decimal comma, save the file with decimal points"
    return f"{name} is not a valid figure"


def _why_not_text(name: str, text: str) -> str:
    """Texts with a set of words must be one of them; what else names a row must be there."""
    if not text:
        return f"{name} is blank" if name in REQUIRED else ""
    if name in WORDS and not WORDS[name].fullmatch(text):
        return f"{name} {text[:20]!r} is not known to this version"
    return f"{name} is not valid text" if name in REQUIRED and NOT_UTF8 in text else ""


def as_column(name: str, values: Iterable[Any]) -> Any:
    """Values of one column, None for what was not measured, in its dtype. Python and numpy do it in
    a tenth of the time that pandas takes for a few values."""
    kind, values = column_types()[name], [*values]
    if kind is str:
        return pandas.array(values, dtype=TEXT)
    if kind is float:
        return np.array([np.nan if value is None else value for value in values], "float64")
    whole = np.array([0 if value is None else value for value in values])
    if whole.dtype != "int64":  # there are none, or they are of another type, which pandas judges
        return pandas.array(values, dtype="Int64")
    return pandas.arrays.IntegerArray(whole, np.array([value is None for value in values]))


def are_distinct(*columns: "pandas.Series[Any]") -> bool:
    """Whether no two rows have the same values in all of these columns."""
    rows = [*zip(*(column.tolist() for column in columns), strict=True)]
    return len(set(rows)) == len(rows)
