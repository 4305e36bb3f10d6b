"""Ratios of launches: paired by round, with an interval that keeps its confidence."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spbench.analysis.intervals import MOST_LAUNCHES, around, geometric_mean, holm, quantile, ratio


def by_round(values: Sequence[float], name: str = "r") -> dict[str, float]:
    return {f"{name}{i}": value for i, value in enumerate(values)}


def test_drift_cancels_in_the_rounds() -> None:
    """A machine that slows down by half still shows a ratio of 1.1."""
    drift = [100.0, 110.0, 125.0, 150.0]
    found = ratio(by_round(drift), by_round([1.1 * ms for ms in drift]))
    assert found is not None and found.is_paired
    assert found.value == pytest.approx(1.1)
    assert found.interval == pytest.approx((1.1, 1.1))


def test_runs_apart_keep_their_drift() -> None:
    """Without common rounds the spread before and after is in the interval."""
    drift = [100.0, 110.0, 125.0, 150.0]
    found = ratio(by_round(drift, "a"), by_round([1.1 * ms for ms in drift], "b"))
    assert found is not None and not found.is_paired
    low, high = found.interval
    assert low < 0.9 and high > 1.3


TIMES = st.lists(st.floats(1.0, 100.0), min_size=3, max_size=12)


@given(st.lists(st.tuples(st.floats(1.0, 100.0), st.floats(1.0, 100.0)), min_size=3, max_size=12))
def test_paired_is_students_t_on_logarithms(pairs: list[tuple[float, float]]) -> None:
    """Interval and one-sided probability equal scipy's."""
    from scipy import stats

    before, after = ([pair[i] for pair in pairs] for i in (0, 1))
    found = ratio(by_round(before), by_round(after))
    logs = np.log(after) - np.log(before)
    if found is None or logs.std() < 1e-9:
        return
    low, high = stats.t.interval(0.95, len(logs) - 1, logs.mean(), stats.sem(logs))
    assert found.interval == pytest.approx((math.exp(low), math.exp(high)), rel=1e-6)
    against = stats.ttest_1samp(logs, math.log(1.03), alternative="greater")
    assert found.p_above(1.03) == pytest.approx(against.pvalue, abs=1e-9)


@given(TIMES, TIMES)
def test_apart_is_welchs_t_on_logarithms(before: list[float], after: list[float]) -> None:
    """Both equal scipy's, for any two numbers of launches."""
    from scipy import stats

    found = ratio(by_round(before, "a"), by_round(after, "b"))
    logs = [np.log(after), np.log(before)]
    if found is None or min(side.std() for side in logs) < 1e-9:
        return
    against = stats.ttest_ind(*logs, equal_var=False)
    interval = against.confidence_interval(0.95)
    wanted = (math.exp(interval.low), math.exp(interval.high) if interval.high < 700 else math.inf)
    assert found.interval == pytest.approx(wanted, rel=1e-6)
    assert found.freedom == pytest.approx(against.df, rel=1e-6)


@given(TIMES)
def test_the_other_way_round_is_the_reciprocal(times: list[float]) -> None:
    """A over B and B over A agree."""
    other = [time * (1 + i / 10) for i, time in enumerate(times)]
    forth, back = (ratio(*map(by_round, two)) for two in ((times, other), (other, times)))
    assert forth is not None and back is not None
    low, high = back.interval
    assert forth.interval == pytest.approx((1 / high, 1 / low))
    assert forth.p_above(1.1) == pytest.approx(1 - back.p_above(1 / 1.1))


def test_two_launches_have_no_interval() -> None:
    """Two launches say next to nothing about a spread: nothing follows from them."""
    found = ratio(by_round([1.0, 1.0]), by_round([2.0, 2.1]))
    assert found is not None
    assert found.interval == (0.0, math.inf)
    assert (found.p_above(1.03), found.launches_needed(1.03)) == (1.0, None)


def test_no_launch_no_ratio() -> None:
    """Without a launch before or after there is no ratio."""
    assert ratio({}, by_round([1.0])) is None
    assert ratio(by_round([1.0]), {}) is None


def test_equal_ratios_leave_no_doubt() -> None:
    """Without any spread a limit is exceeded or not."""
    found = ratio(by_round([1.0] * 3), by_round([1.05] * 3))
    assert found is not None
    assert (found.p_above(1.03), found.p_above(1.05), found.p_above(1.07)) == (0.0, 1.0, 1.0)


def test_launches_needed_are_enough() -> None:
    """With as many of the same spread the interval clears the limit, with one less not."""
    ratios = [1.05 + 0.02 * (-1) ** i for i in range(6)]
    found = ratio(by_round([1.0] * 6), by_round(ratios))
    assert found is not None
    needs = found.launches_needed(1.03)
    assert needs is not None and needs > 6
    spread, gap = found.error * 6**0.5, found.log - math.log(1.03)
    assert quantile(needs - 1) * spread / needs**0.5 < gap
    assert quantile(needs - 2) * spread / (needs - 1) ** 0.5 >= gap


@pytest.mark.parametrize("below", [0.975, 0.999])
def test_launches_needed_of_two_sides_are_of_each(below: float) -> None:
    """The number holds before and after, with the spreads of both."""
    before = [1.0, 1.08, 0.94, 1.05, 0.95]
    after = [1.09 + 0.05 * (-1) ** i for i in range(20)]
    found = ratio(by_round(before, "a"), by_round(after, "b"))
    assert found is not None and not found.is_paired
    needs = found.launches_needed(1.03, below)
    assert needs is not None and needs > 5
    gap = found.log - math.log(1.03)
    variances = [statistics.variance([math.log(t) for t in side]) for side in (before, after)]

    def half(n: int) -> float:
        freedom = (n - 1) * sum(variances) ** 2 / sum(v**2 for v in variances)
        return quantile(freedom, below) * math.sqrt(sum(variances) / n)

    assert half(needs) < gap <= half(needs - 1)


def test_what_will_never_be_known_needs_no_number() -> None:
    """A ratio exactly on the limit would take infinitely many launches."""
    found = ratio(by_round([1.0] * 4), by_round([1.02, 1.04, 1.02, 1.04]))
    assert found is not None
    assert found.launches_needed(found.value) is None
    assert MOST_LAUNCHES == 1000


def test_an_interval_holds_its_mean() -> None:
    """It does so even for skewed launches; of equal ones the mean is exact."""
    skewed = [1.0, 1.0, 1.0, 1.0, 9.0]
    found = around(skewed)
    assert found is not None and found[0] <= geometric_mean(skewed) <= found[1]
    assert geometric_mean([0.1] * 3) == 0.1
    assert around([1.0, 2.0]) is None


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_stands_between_bonferroni_and_nothing(p_values: list[float]) -> None:
    """Holm rejects what Bonferroni does, and nothing above alpha, in any order."""
    fallen = holm(dict(enumerate(p_values)), 0.05)
    for i, p in enumerate(p_values):
        assert i in fallen or p > 0.05 / len(p_values)
        assert i not in fallen or p <= 0.05
    back = holm(dict(reversed([*enumerate(p_values)])), 0.05)
    assert fallen == back or len(set(p_values)) < len(p_values)


def test_holm_by_hand() -> None:
    """0.01, 0.04, 0.03 at 5 %: 0.01 <= 0.05/3, but 0.03 > 0.05/2 ends it."""
    assert holm({1: 0.01, 2: 0.04, 3: 0.03}, 0.05) == {1}
    assert holm({1: 0.01, 2: 0.04, 3: 0.02}, 0.05) == {1, 2, 3}
