"""capacity.csv: the largest batches and the longest axes that fit, in a folder of results.

A line is a strategy on a number of ranks within a budget of memory. The size that grows is blank
in ``batch`` or left out of ``axes``, so that lines of one question agree in ``QUESTION``. Functions
import pandas, since commands look here before they need it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from spbench.errors import ResultsError, writing
from spbench.results.hand_over import write_atomically

if TYPE_CHECKING:
    import pandas

FILE = "capacity.csv"
BATCH = "batch"
"""What may grow beside an axis."""


@final
@dataclass(frozen=True, kw_only=True)
class SizedWork:
    """A workload that grows until it fills the memory of a rank."""

    workload: str
    axes: str
    """Lengths as in runs.csv, without the axis that grows."""
    batch: int | None
    dtype: str
    mode: str
    checkpointing: str
    optimizer: str
    guidance: str
    grows: str
    """``batch``, or the name of an axis."""
    budget_bytes: int
    kind: str
    """``dry_run``: by dry runs; ``measured``: by ranks that tried."""
    gpu: str
    """What ranks tried on; blank of dry runs."""


QUESTION = tuple(SizedWork.__annotations__)
"""Columns in which lines agree that may be compared."""
CASE = (*QUESTION, "strategy", "ranks")
COLUMNS = (
    *(*CASE, "largest", "peak_bytes", "next_bytes", "why_not", "tries"),
    *("torch", "git_commit", "started_utc"),
)
FIGURES = ("batch", "budget_bytes", "ranks", "largest", "peak_bytes", "next_bytes", "tries")


def has_capacities(folder: Path) -> bool:
    return (folder / FILE).is_file()


def read_capacities(folder: Path) -> "pandas.DataFrame":
    """The lines of a folder, none where it has no such file; blank is <NA> or "". Raises
    ResultsError for a file that is damaged."""
    import pandas

    file = folder / FILE
    types = {name: "Int64" if name in FIGURES else "str" for name in COLUMNS}
    if not file.is_file():
        return pandas.DataFrame({name: pandas.Series(dtype=types[name]) for name in COLUMNS})
    try:
        frame = pandas.read_csv(file, dtype=types)
    except OSError as error:
        raise ResultsError(f"cannot read {file}: {error.strerror}") from None
    except ValueError as error:
        raise ResultsError(f"{file} is damaged: {error}; find its sizes anew") from None
    if missing := [name for name in COLUMNS if name not in frame]:
        raise ResultsError(f"{file} has no column {missing[0]!r}; find its sizes anew")
    return frame.fillna({name: "" for name in COLUMNS if name not in FIGURES})


def write_capacities(rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Adds lines of ``COLUMNS``, each in place of an earlier one of its case. Raises
    CannotWriteError, and ResultsError where what is there cannot be read."""
    import pandas

    before = read_capacities(folder)
    added = pandas.DataFrame(rows, columns=COLUMNS).astype(before.dtypes.to_dict())
    every = pandas.concat([before, added]) if len(before) else added
    every = every.drop_duplicates([*CASE], keep="last")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / FILE, every.to_csv(index=False))
