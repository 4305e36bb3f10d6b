"""The slowdown that a check against a baseline detects."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from helpers.example_rows import rows

from spbench.analysis.intervals import ratio
from spbench.analysis.power import (
    MOST_OF_CHECK,
    POWER,
    DetectableSlowdown,
    detectable_slowdown,
    hardest_case,
)
from spbench.analysis.verdict import ALPHA, MAX_SLOWDOWN, SHARES
from spbench.results.record import Record
from spbench.results.runs_csv import frame_of

LAST = ALPHA * SHARES[-1]


def launches(count: int, spread: float) -> list[float]:
    """Times whose logarithms have this standard deviation."""
    places = [i - (count - 1) / 2 for i in range(count)]
    scale = spread / statistics.stdev(places)
    return [100 * math.exp(place * scale) for place in places]


@pytest.mark.parametrize(
    ("kept", "launched", "often"), [(3, 20, 0.85), (5, 20, POWER), (20, 20, POWER), (5, 5, POWER)]
)
def test_nine_in_ten_checks_find_it(kept: int, launched: int, often: float) -> None:
    """In a thousand draws of baseline and check, fewer detect a third less."""
    chance = random.Random(1)
    slowdown = detectable_slowdown(0.05, kept, launched, LAST)

    def found(truth: float) -> float:
        times = 0
        for _ in range(1000):
            before = {f"a{i}": math.exp(chance.gauss(0, 0.05)) for i in range(kept)}
            after = {f"b{i}": math.exp(chance.gauss(truth, 0.05)) for i in range(launched)}
            judged = ratio(before, after)
            assert judged is not None
            times += judged.p_above(1 + MAX_SLOWDOWN) <= LAST
        return times / 1000

    assert found(math.log(1 + slowdown)) == pytest.approx(often, abs=0.05)
    assert found(math.log(1 + slowdown * 2 / 3)) < often - 0.1


def test_more_launches_find_less_and_nothing_within_the_limit() -> None:
    """With launches of equal times the detectable slowdown is the limit itself."""
    by_launches = [detectable_slowdown(0.05, kept, 20, LAST) for kept in (3, 4, 5, 10, 20, 100)]
    assert by_launches == sorted(by_launches, reverse=True)
    assert by_launches[-1] > MAX_SLOWDOWN
    assert detectable_slowdown(0.0, 5, 20, LAST) == pytest.approx(MAX_SLOWDOWN)


def hardest(records: Sequence[Record]) -> DetectableSlowdown | None:
    return hardest_case(frame_of(records))


def side(strategy: str, times: Sequence[float], **more: Any) -> list[Any]:
    return rows(strategy, times, session="a", **more)


def test_the_hardest_case_is_told() -> None:
    """The launches of this case differ most; several cases share the level."""
    steady, shaky = side("dsp", launches(5, 0.01)), side("rsa", launches(5, 0.06))
    found = hardest([*steady, *shaky])
    assert found is not None
    assert (found.row["case"], found.row["launch"]) == (shaky[-1].case, shaky[-1].launch)
    assert found.launches == 5
    assert found.spread == pytest.approx(0.06)
    assert found.slowdown == detectable_slowdown(found.spread, 5, MOST_OF_CHECK, LAST / 2)
    assert found.with_more == detectable_slowdown(found.spread, 20, MOST_OF_CHECK, LAST / 2)
    alone = hardest(shaky)
    assert alone is not None
    assert alone.slowdown < found.slowdown


def test_quiet_launches_alone_count() -> None:
    """A check does the same: with too few there is no verdict on time."""
    loud = rows("dsp", [150.0, 90.0, 80.0], session="b", noisy="a neighbour")
    found = hardest([*side("dsp", launches(5, 0.01)), *loud])
    assert found is not None
    assert (found.launches, found.spread) == (5, pytest.approx(0.01))
    assert hardest([*side("dsp", [100.0, 101.0]), *loud]) is None


def test_launches_that_cannot_be_compared_have_no_figure() -> None:
    """Launches of mixed hardware do not count; a case with too few shares the level."""
    mixed = [*side("rsa", launches(3, 0.1)), *rows("rsa", [90.0], session="b", gpu="another")]
    mixed[0] = replace(mixed[0], gpu="one")
    assert hardest(mixed) is None
    good = side("dsp", launches(5, 0.01))
    with_short = hardest([*good, *side("rsa", [100.0])])
    assert with_short is not None
    assert with_short.slowdown == detectable_slowdown(with_short.spread, 5, MOST_OF_CHECK, LAST / 2)


def test_a_spread_beyond_reason_is_no_error() -> None:
    """A damaged file may hold any spread; a slowdown that no float holds is infinite."""
    found = hardest(side("dsp", [1e-29, 1.0, 1e29]))
    assert found is not None
    assert found.slowdown > 1e100


@pytest.mark.parametrize("count", [0, 1, 2])
def test_two_launches_have_no_interval(count: int) -> None:
    """Neither has a case without a time."""
    failed = side("rsa", [100.0] * 5, status="oom")
    assert hardest([*side("dsp", [100.0, 101.0][:count]), *failed]) is None
