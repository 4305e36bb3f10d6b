"""The page on the columns of runs.csv: ``python scripts/columns_page.py`` prints it."""

from __future__ import annotations

import textwrap

from spbench.results.record import REQUIRED, SCHEMA_VERSION, columns
from spbench.results.runs_csv import column_types

PAGE = """# Columns of runs.csv

One row is one launch of a case, measured or failed. `spbench.read_runs(path)` gives the rows as a
pandas DataFrame with the same columns.

A blank cell means not measured, never 0. Bytes are what one rank sends in one step, the largest
over the ranks. Launches are the replicates: compare cases by their launches, not by the iterations
of one. Of two rows with one `case`, `launch` and `effort` the last counts. New columns are added at
the end; `schema_version`, now {version}, grows when a meaning changes (up to 3, `step_ms` was the
median of the iterations).

A row that contradicts itself is left out when it is read, and a sentence says so: its rates are
those of `step_ms`, bytes sent are those predicted, and errors are within `tolerance`. A program
that shortens figures to four digits does no harm.

{required}

| column | type | unit | meaning |
|---|---|---|---|
{table}
"""


def page() -> str:
    """docs/columns.md, whole."""
    kinds = column_types()
    rows = (
        f"| `{name}` | {kinds[name].__name__} | {column.unit} | {column.meaning} |"
        for name, column in columns().items()
    )
    names = ", ".join(f"`{name}`" for name in REQUIRED)
    required = textwrap.fill(f"Never blank: {names}.", 100)
    return PAGE.format(required=required, version=SCHEMA_VERSION, table="\n".join(rows))


if __name__ == "__main__":
    print(page(), end="")
