"""docs/columns.md is what ``results/record.py`` says of the columns."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from spbench.results.record import columns

ROOT = Path(__file__).parents[3]


def test_every_column_has_a_meaning() -> None:
    """A sentence each, which a cell of a Markdown table can hold."""
    for column in columns().values():
        assert column.meaning.endswith(".") and "|" not in column.meaning


def test_the_page_is_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make it anew with: python scripts/columns_page.py > docs/columns.md"""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    page = import_module("columns_page").page()
    assert (ROOT / "docs" / "columns.md").read_text(encoding="utf-8") == page


@pytest.mark.parametrize("unit", ["ms", "bytes", "MHz"])
def test_a_unit_is_the_one_in_the_name(unit: str) -> None:
    """A column whose name ends in a unit says the same one beside its meaning."""
    named = {name for name in columns() if name.endswith(f"_{unit.lower()}")}
    assert named and all(columns()[name].unit == unit for name in named)
