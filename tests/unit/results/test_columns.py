"""docs/columns.md is what the meanings of the columns say."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from spbench.results.record import COLUMNS

ROOT = Path(__file__).parents[3]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script that makes the page."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return import_module("columns_page")


def test_every_column_has_a_meaning(script: Any) -> None:
    """In the order of the file, a sentence each."""
    assert tuple(script.MEANINGS) == COLUMNS
    for meaning in script.MEANINGS.values():
        assert meaning.endswith(".") and "|" not in meaning


def test_the_page_is_generated(script: Any) -> None:
    """Make it anew with: python scripts/columns_page.py > docs/columns.md"""
    assert (ROOT / "docs" / "columns.md").read_text(encoding="utf-8") == script.page()


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
def test_units_come_from_the_names(script: Any, column: str, expected: str) -> None:
    """Rates are told by the whole name."""
    assert script.unit(column) == expected
