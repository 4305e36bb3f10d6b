"""What the columns of runs.csv say about each other, in a row and from row to row, as a table.

A row says most things more than once: a step's time is in its rates too, bytes are counted and
predicted. A blank cell contradicts nothing. Columns are arrays: Series would take 0.1 s more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import pandas
from numpy.typing import NDArray

from spbench.results.case_columns import FIELDS, SHAPE, SIZES
from spbench.results.cell_values import column_types
from spbench.results.record import COLUMNS
from spbench.workload.traffic import OPS, PHASES

BY_OP = " + ".join(f"{op}_bytes" for op in OPS)
EQUAL = (
    ("step_ms * samples_per_s", "1e3 * batch"),
    ("step_ms * tokens_per_s", "1e3 * batch * positions"),
    ("tokens_per_s", "tokens_per_s_per_rank * world_size"),
    ("step_ms", "compute_ms + exposed_comm_ms"),
    *((f"sent_bytes_{phase}", f"predicted_bytes_{phase}") for phase in PHASES),
    ("world_size", "sp_size * dp_size"),
    ("world_size", "last_rank + 1"),
    ("launch", "launch_of_round"),
    ("tokens", "positions"),
    ("1e6 * exposed_gb_per_s * exposed_comm_ms", BY_OP),
)
"""Expressions that are equal in each good row."""
SENT = " + ".join(f"sent_bytes_{phase}" for phase in PHASES)
ROUNDED_BYTES = 4
"""Bytes of phases and of operations are sums of fractions, each rounded by itself."""
AT_MOST = (
    ("step_ms_p10", "step_ms"),
    ("step_ms", "step_ms_p90"),
    ("exposed_comm_ms_low", "step_ms - compute_ms"),
    ("step_ms - compute_ms", "exposed_comm_ms_high"),
    ("output_error", "tolerance"),
    ("gradient_error", "tolerance"),
    ("peak_allocated_bytes", "peak_reserved_bytes"),
    ("steps_s", "launch_s"),
    *((f"sent_bytes_{phase}", f"{BY_OP} + {ROUNDED_BYTES}") for phase in PHASES),
    *((f"{op}_bytes", f"{SENT} + {ROUNDED_BYTES}") for op in OPS),
)
"""The first is nowhere larger than the second; the busiest rank may be another in each column."""
DERIVED = {
    "positions": ("axes", r"=(\d+)(?=x|$)"),
    "launch_of_round": ("round", r"\.(\d+)$"),
    "last_rank": ("placement", r"(\d+)$"),
}
"""Numbers that are the product of those in a text: the column of the text, and where they are."""
COUNTED = (
    *(f"{kind}_bytes_{phase}" for kind in ("sent", "predicted") for phase in PHASES),
    *(f"{op}_bytes" for op in OPS),
    *("collectives", "optimizer_bytes"),
)
SAME = (
    (("case",), (*FIELDS, *SIZES, "workload_key")),
    (("workload_key",), (*SHAPE, *SIZES)),
    (
        ("session", "workload_key", "workload", "strategy", "device", "kind", "world_size"),
        ("case",),
    ),
    (("session", "case"), COUNTED),
    (("session",), ("schema_version", "torch", "cuda", "nccl")),
)
"""Rows that agree in the first columns agree in each of the second."""
CONSTANT = (
    (("session", "workload_key"), "tflops_per_rank * step_ms * world_size"),
    (("session", "gpu", "dtype"), "tflops_per_rank / mfu"),
)
"""Expressions that are equal in all rows that agree in the columns before."""
EXACT, SHORTENED = 1e-12, 1e-2
"""Relative differences that rounding explains: in rows of all digits, and in rows that another
program has saved with fewer."""
DIGITS, LONG = 15, ("step_ms", "samples_per_s", "tokens_per_s", "compute_ms")
"""Digits that spreadsheets write at most, and columns that have more where spbench wrote them."""
FIGURES = [name for name in COLUMNS if column_types()[name] is not str]
Figures: TypeAlias = NDArray[np.float64]
Wrong: TypeAlias = NDArray[np.bool_]
Codes: TypeAlias = NDArray[np.int64]
Reasons: TypeAlias = Iterator[tuple[str, Wrong]]
"""Why rows cannot be believed, and whether each row is one of them."""


def prepared(rows: pandas.DataFrame) -> pandas.DataFrame:
    """The rows with who started them, and whether their figures have all their digits."""
    figures = zip(*(rows[name].tolist() for name in LONG), strict=True)
    has_all = [any(n > 0 and float(f"{n:.{DIGITS}g}") != n for n in row) for row in figures]
    session = [text.rpartition(".")[0] for text in rows["round"].tolist()]
    return rows.assign(session=session, has_all_digits=has_all)


def within_rows(rows: pandas.DataFrame) -> Reasons:
    """Good rows with columns that contradict each other."""
    is_good = (rows["status"] == "ok").to_numpy()
    figures = figures_of(rows)
    for number, (text, pattern) in DERIVED.items():
        products = {known: _product(pattern, known) for known in rows[text].unique()}
        figures[number] = rows[text].map(products).to_numpy("float64")
    for relations, is_wrong in ((EQUAL, differ), (AT_MOST, exceeds)):
        for left, right in relations:
            columns = [DERIVED.get(name, [name])[0] for name in _names(f"{left} {right}")]
            limit = relative_limit(rows, columns)
            wrong = is_wrong(_values(figures, left), _values(figures, right), limit)
            reason = f"{', '.join(columns[:-1])} and {columns[-1]} contradict each other"
            yield reason, wrong & is_good


def figures_of(rows: pandas.DataFrame, names: Iterable[str] = FIGURES) -> dict[str, Figures]:
    """Columns of numbers, not a number where a cell is blank; by default all there are."""
    return {name: rows[name].to_numpy("float64", na_value=math.nan) for name in names}


def _names(expression: str) -> list[str]:
    return [*dict.fromkeys(re.findall(r"\b[a-z]\w+", expression))]


def _values(figures: Mapping[str, Figures], expression: str) -> Figures:
    with np.errstate(all="ignore"):
        return cast("Figures", eval(expression, {}, figures))


def _product(pattern: str, text: str) -> float:
    """The product of the numbers in a text; not a number if there are none."""
    return math.prod(map(float, found)) if (found := re.findall(pattern, text)) else math.nan


def differ(left: Figures, right: Figures, limit: Figures | float) -> Wrong:
    """Whether two figures differ by more than rounding explains; what is not known does not."""
    return exceeds(left, right, limit) | exceeds(right, left, limit)


def exceeds(left: Figures, right: Figures, limit: Figures | float) -> Wrong:
    """Whether the left figure is larger by more than rounding explains."""
    with np.errstate(all="ignore"):
        return left - right > limit * np.fmax(np.abs(left), np.abs(right))


def relative_limit(rows: pandas.DataFrame, columns: Collection[str] = ("step_ms",)) -> Figures:
    """The relative difference of figures in these columns that rounding explains, row by row."""
    is_whole = {column_types()[name] for name in columns} <= {int, str}
    return np.where(rows["has_all_digits"] | is_whole, EXACT, SHORTENED)


def between_rows(rows: pandas.DataFrame) -> Reasons:
    """Rows that contradict most of those which they should agree with, or half of them."""
    named = {name for by, columns in SAME for name in (*by, *columns)}
    codes = {name: _codes(rows[name]) for name in named.union(*(by for by, _ in CONSTANT))}
    for by, columns in SAME:
        group = _together([codes[name] for name in by])
        for column in columns:
            yield _contradicts(column, by), _outvoted(group, codes[column])
    for among, expression in CONSTANT:
        group = _together([codes[name] for name in among])
        values = _values(figures_of(rows, _names(expression)), expression)
        usual = pandas.Series(values).where(group >= 0).groupby(group).transform("median")
        wrong = differ(values, usual.to_numpy(), relative_limit(rows))
        yield _contradicts(expression.partition(" ")[0], among), wrong


def _contradicts(column: str, by: Sequence[str]) -> str:
    names = ", ".join("round" if name == "session" else name for name in by)
    return f"{column} contradicts rows with the same {names}"


def _codes(values: pandas.Series[Any]) -> Codes:
    """A number for each value; -1 where it is blank."""
    codes, distinct = pandas.factorize(values)
    blank = [code for code, value in enumerate(distinct.tolist()) if value == ""]
    return np.where(np.isin(codes, blank), -1, codes)


def _together(codes: Sequence[Codes]) -> Codes:
    """A number for each combination; -1 where one is blank."""
    together = codes[0]
    for more in codes[1:]:
        numbers, _ = pandas.factorize(together * (more.max() + 1) + more)
        together = np.where((together >= 0) & (more >= 0), numbers, -1)
    return together


def _outvoted(group: Codes, value: Codes) -> Wrong:
    """Whether another value is more frequent in the group of a row, or as frequent."""
    is_vote, values = (group >= 0) & (value >= 0), value.max() + 1
    ballot = (group * values + value)[is_vote]
    pairs, place, votes = np.unique(ballot, return_inverse=True, return_counts=True)
    of, wrong = pairs // values, np.zeros(len(group), dtype=bool)
    if (of[1:] == of[:-1]).any():
        is_most = votes == pandas.Series(votes).groupby(of).transform("max")
        is_tied = is_most.groupby(of).transform("sum") > 1
        wrong[is_vote] = (~is_most | is_tied).to_numpy()[place]
    return wrong
