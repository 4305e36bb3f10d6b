"""docs/columns.md says what each column of runs.csv means, and is true to the record."""

from __future__ import annotations

import re
from pathlib import Path

from spbench.results.record import COLUMNS, REQUIRED, SCHEMA_VERSION, column_types
from spbench.results.sample import STATUSES

PAGE = (Path(__file__).parents[3] / "docs" / "columns.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| (\S*) \| (.*) \|$", re.MULTILINE)
UNIT = re.compile(r"_(ms|bytes|mhz|w|c)(?=_|$)|(?<!per)_(s)$")
SIGNS = {"mhz": "MHz", "w": "W", "c": "°C"}
"""Units whose sign is not what stands in the names of columns."""


def unit(name: str) -> str:
    """The unit in a column's name; blank for a text, a count or a rate."""
    match = UNIT.search(name)
    if match is None or column_types()[name] is str:
        return ""
    return SIGNS.get(match[match.lastindex or 0], match[match.lastindex or 0])


def test_every_column_has_a_line() -> None:
    """In the order of the file: its type, the unit that is in its name, and a sentence."""
    rows = [row.groups() for row in ROW.finditer(PAGE)]
    assert len(rows) == PAGE.count("\n|") - 2
    assert [row[:3] for row in rows] == [
        (name, column_types()[name].__name__, unit(name)) for name in COLUMNS
    ]
    assert all(meaning.endswith(".") for *_, meaning in rows)


def test_version_statuses_and_what_is_never_blank_are_current() -> None:
    """They grow with the record."""
    assert f"`schema_version`, now {SCHEMA_VERSION}, grows" in PAGE
    assert f"`ok`, or what failed: {', '.join(STATUSES[1:])}." in PAGE
    never_blank = PAGE.split("Never blank: ")[1].split(".")[0]
    assert never_blank.replace("\n", " ") == ", ".join(f"`{name}`" for name in REQUIRED)
