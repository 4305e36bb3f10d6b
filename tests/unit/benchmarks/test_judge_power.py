"""The simulation behind docs/performance.md: few trials of it, with seeds of their own."""

from __future__ import annotations

import importlib.util
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from spbench.analysis.power import MOST_OF_CHECK, POWER, detectable_slowdown
from spbench.analysis.verdict import ALPHA, LAUNCHES, SHARES

PATH = Path(__file__).parents[3] / "benchmarks" / "judge_power.py"


@pytest.fixture(scope="module")
def power() -> ModuleType:
    spec = importlib.util.spec_from_file_location("judge_power", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["judge_power"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize(("factor", "found"), [(1.0, 0), (1.02, 0), (1.05, 40)])
def test_what_a_check_finds(power: ModuleType, factor: float, found: int, is_stored: bool) -> None:
    """All of 5 %, nothing of 2 % within a margin of 3 %, nothing where there is nothing."""
    rng = np.random.default_rng(1)
    tries = [power.fails(rng, factor, power.Noise(), is_stored=is_stored) for _ in range(40)]
    assert abs(sum(tries) - found) <= 1


@pytest.mark.parametrize(
    ("cases", "count"), [(1, 5), pytest.param(4, 5, marks=pytest.mark.long), (1, 20)]
)
def test_what_a_baseline_is_said_to_find(power: ModuleType, cases: int, count: int) -> None:
    """By the stages of ``check``, baselines and checks drawn anew; of half of it far less."""
    noise = power.Noise(between=0.05)
    spread = (noise.between**2 + power.WITHIN**2 / power.ITERATIONS) ** 0.5
    launched = MOST_OF_CHECK * count // LAUNCHES
    slowdown = detectable_slowdown(spread, count, launched, ALPHA * SHARES[-1] / cases)
    rng = np.random.default_rng(1)

    def found(factor: float) -> float:
        one = partial(power.fails, rng, factor, noise, cases=cases, count=count, is_stored=True)
        return float(power.rate(100, one))

    assert found(1 + slowdown) == pytest.approx(POWER, abs=0.09)
    assert found(1 + slowdown / 2) < 0.7


def test_a_crowd_of_cases(power: ModuleType) -> None:
    """The one of twelve that is slower is found, and no other makes a check fail."""
    rng = np.random.default_rng(2)
    assert all(power.fails(rng, 1.05, power.Noise(), cases=12) for _ in range(10))
    assert not any(power.fails(rng, 1.0, power.Noise(), cases=12) for _ in range(10))


def test_intervals_hold_what_they_say(power: ModuleType) -> None:
    """Student's t about 95 in 100; a bootstrap of five far fewer."""
    found = power.coverage(np.random.default_rng(3), 5, 300)
    assert found["Student's t"] > 0.91
    assert found["percentile bootstrap"] < 0.88


def test_the_whole_table(
    power: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It runs, and has a line for each promise."""
    monkeypatch.setattr(sys, "argv", ["judge_power", "--trials", "3"])
    assert power.main() in (0, 1)  # three trials prove nothing
    out = capsys.readouterr().out
    for said in ("A/A called different, 5 launches", "5 % slower fails the check", "2 % slower"):
        assert said in out
