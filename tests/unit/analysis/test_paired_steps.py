"""Launches that took turns: compared step by step, where their iterations are known."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace
from typing import Any

import pandas
import pytest
from helpers.example_rows import findings_of, rows, samples_of

from spbench.analysis.compare import Comparison
from spbench.analysis.intervals import middle_ratio
from spbench.results.record import Record

ROUNDS = 5
Steps = list[list[float]]


def side(steps: Steps, **more: Any) -> list[Record]:
    """A run with a launch for each list of steps, in turns with the other run."""
    means = [statistics.fmean(ms) for ms in steps]
    return rows("dsp", means, **{"turns": 40} | more)


def sampled(records: list[Record], steps: Steps) -> pandas.DataFrame:
    """Both ranks have equal iterations."""
    return samples_of(*((one, [ms, ms]) for one, ms in zip(records, steps, strict=True)))


def drifting(factor: float, seed: int) -> tuple[Steps, Steps]:
    """Steps of two launches, the second of which ran its last third alone: the machine's speed
    drifts, which neighbours share, and now and then it disturbs one of them."""
    chance = random.Random(seed)
    before, after = [], []
    for _ in range(ROUNDS):
        levels = [chance.gauss(0, 0.1)]
        for _ in range(59):
            levels.append(levels[-1] + chance.gauss(0, 0.05))
        noise = [chance.gauss(0, 0.005) for _ in levels]
        before.append([100 * math.exp(level) for level in levels[:40]])
        after.append([100 * factor * math.exp(x + n) for x, n in zip(levels, noise, strict=True)])
        for side_of in (before, after):
            for i in chance.sample(range(40), chance.randrange(8)):
                side_of[-1][i] *= 3
    return before, after


def compared(old: list[Record], new: list[Record], *samples: pandas.DataFrame) -> Comparison:
    (found,) = (one for one in findings_of(old, new, samples=samples) if one.metric == "time")
    assert found.comparison is not None
    return found.comparison


def test_the_middle_half_of_the_ratios() -> None:
    """Disturbed steps, and steps that ran alone, do not count."""
    assert middle_ratio([1.0] * 8, [1.1] * 6 + [9.0, 0.1]) == pytest.approx(1.1)
    assert middle_ratio([2.0, 2.0], [3.0, 3.0, 99.0]) == pytest.approx(1.5)
    assert middle_ratio([2.0], [3.0]) == pytest.approx(1.5)


@pytest.mark.parametrize(("factor", "verdict"), [(1.05, "slower"), (1.0, "same")])
def test_neighbours_tell_what_means_cannot(factor: float, verdict: str) -> None:
    """Drift larger than the difference hides it only in the means."""
    old, new = drifting(factor, seed=1)
    before, after = side(old), side(new)
    assert compared(before, after).verdict == "inconclusive"
    found = compared(before, after, sampled(before, old), sampled(after, new))
    assert (found.verdict, found.paired, found.launches) == (verdict, True, ROUNDS)
    assert found.ratio == pytest.approx(factor, abs=0.003)
    assert found.before_ms == statistics.geometric_mean(map(statistics.fmean, old))
    assert found.after_ms == found.before_ms * found.ratio


@pytest.mark.parametrize("lost", ["", "turns before", "turns after", "samples", "a rank"])
def test_where_steps_are_not_known_means_are_compared(lost: str) -> None:
    """The launch ran alone, or its iterations are lost."""
    steps, slower = [[100.0] * 4] * ROUNDS, [[100.0] * 3 + [300.0]] * ROUNDS
    before, after = side(steps), side(slower)
    samples = [sampled(before, steps), sampled(after, slower)]
    match lost:
        case "turns before":
            before = [replace(one, turns=None) for one in before]
        case "turns after":
            after = [replace(one, turns=None) for one in after]
        case "samples":
            samples[1] = samples[1].head(0)
        case "a rank":
            samples[0] = samples[0][samples[0]["rank"] == 0]
    found = compared(before, after, *samples)
    assert found.ratio == pytest.approx(1.5 if lost else 1.0)
