"""``spbench list``: what is shown of the workloads where not all fits."""

from __future__ import annotations

import re

import pytest
from test_tables import STYLED, Terminal

from spbench.cli import list_command
from spbench.report import tables
from spbench.workload.catalogue import find, names


@pytest.mark.parametrize(("columns", "shown"), [(80, 5), (100, 5), (120, 6), (160, 8)])
def test_the_list_of_workloads_fits(
    monkeypatch: pytest.MonkeyPatch, columns: int, shown: int
) -> None:
    """Axes, tokens, parameters and activation stay, none is cut; operations and dtype go first."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    monkeypatch.setattr(list_command, "console", lambda: tables.console(stream))
    list_command.command.main(["workloads"], standalone_mode=False)
    text = STYLED.sub("", stream.getvalue())
    assert max(map(len, text.splitlines())) <= columns
    assert len(re.split(r" {2,}", text.splitlines()[1].strip())) == shown
    assert all(f" {name} " in text for name in names())
    assert "…" not in text
    for row in ("dsp-720m", "open-sora-1.2-480p"):
        (line,) = [one for one in text.splitlines() if one.split()[:1] == [row]]
        work = find(row)
        for value in (*work.axes, *work.axes.values(), work.tokens):
            assert str(value) in line.split()
