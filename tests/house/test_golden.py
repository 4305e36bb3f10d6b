"""The golden files themselves: sections survive being written, and none of a lost test stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.golden import Golden, asked_by, read, write


def test_sections_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Texts of several lines, with lines between that are empty, by their headers."""
    sections = {"test_a[x - y]": "one\n\ntwo", "test_b - as markdown": "| a |"}
    write(tmp_path / "a.txt", sections)
    assert read(tmp_path / "a.txt") == sections
    assert [asked_by(name) for name in sections] == ["test_a", "test_b"]


def test_a_text_that_changed_fails(
    golden: Golden, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """What differs from run to run is hidden; all else is compared."""
    golden(f"3 rows in {tmp_path}, after 0.123 s", hide={r"[\d.]+ s": "N s"})
    if not request.config.getoption("rewrite_golden"):
        with pytest.raises(AssertionError):
            golden(f"4 rows in {tmp_path}, after 0.123 s", hide={r"[\d.]+ s": "N s"})
