"""docs/columns.md is what the meanings of the columns say."""

from __future__ import annotations

from pathlib import Path

import pytest

from spbench.results.column_meanings import MEANINGS
from spbench.results.columns import page, unit
from spbench.results.record import COLUMNS

DOCS = Path(__file__).parents[3] / "docs" / "columns.md"


def test_every_column_has_a_meaning() -> None:
    """In the order of the file, a sentence each."""
    assert tuple(MEANINGS) == COLUMNS
    assert all(meaning.endswith(".") and "|" not in meaning for meaning in MEANINGS.values())


def test_the_page_is_generated() -> None:
    """Make it anew with: python -m spbench.results.columns > docs/columns.md"""
    assert DOCS.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("step_ms_p10", "ms"),
        ("launch_s", "s"),
        ("sent_bytes_forward", "bytes"),
        ("gpu_clock_mhz", "MHz"),
        ("samples_per_s", ""),
        ("device", ""),
    ],
)
def test_units_come_from_the_names(column: str, expected: str) -> None:
    """Rates are told by the whole name."""
    assert unit(column) == expected
