"""What a switch costs the host alone can be measured without other ranks."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[3] / "benchmarks" / "switch.py"


def test_the_host_is_timed_for_each_number_of_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("switch", PATH)
    assert spec is not None and spec.loader is not None
    switch = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(switch)
    assert switch.show_host_costs([2, 4], repeats=1) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["2 ranks", "4 ranks"]
    assert all(int(line.split()[2]) > 0 for line in lines)
