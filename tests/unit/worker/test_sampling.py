"""When sampling ends: known well enough, out of time or full; and that all ranks agree."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence

import pytest

from spbench.worker.sampling import Sampled, half_width, planned, sample, stop, typical
from spbench.workload.case import MeasurementBudget


def alone(values: Sequence[float]) -> list[float]:
    """The largest over a single rank."""
    return list(values)


def sampled(step_ms: Callable[[], float], budget: MeasurementBudget, typical_ms: float) -> Sampled:
    return sample(lambda n: [step_ms() for _ in range(n)], None, alone, budget, typical_ms)


@pytest.mark.parametrize(("typical_ms", "wanted"), [(10.0, 200), (100.0, 30), (5000.0, 5)])
def test_planned_steps_fill_the_time(typical_ms: float, wanted: int) -> None:
    """The planned number lies between the least and the most allowed."""
    assert planned(typical_ms, MeasurementBudget()) == wanted


def test_equal_times_are_known_at_once() -> None:
    """Six are the fewest that have a 95 % interval; blocks are a tenth of what was planned."""
    result = sampled(lambda: 20.0, MeasurementBudget(), 20.0)
    assert (result.stopped_by, len(result.timed_ms), result.silent_ms) == ("precision", 15, [])
    assert len(sampled(lambda: 100.0, MeasurementBudget(), 100.0).timed_ms) == 6
    assert (
        len(sampled(lambda: 900.0, MeasurementBudget(), 900.0).timed_ms) == 5
    )  # out of time before


def test_scattered_times_fill_the_time() -> None:
    """30 steps of 100 ms in ten blocks: no more than the seconds, and a block."""
    scatter = random.Random(0)
    result = sampled(lambda: scatter.uniform(50, 150), MeasurementBudget(), 100.0)
    assert result.stopped_by == "seconds"
    assert 3000 <= sum(result.timed_ms) <= 3000 + 3 * 150


def test_many_short_steps_end_at_the_most_allowed() -> None:
    """Sampling ends exactly at the limit, also where blocks do not divide it."""
    scatter = random.Random(0)
    result = sampled(lambda: scatter.uniform(1, 3), MeasurementBudget(max_iterations=47), 2.0)
    assert (result.stopped_by, len(result.timed_ms)) == ("iterations", 47)


@pytest.mark.parametrize(("precision", "reason"), [(0.1, "precision"), (0.001, "iterations")])
def test_the_wanted_precision_decides(precision: float, reason: str) -> None:
    """With the same noise 10 % is reached soon, and 0.1 % never."""
    budget = MeasurementBudget(precision=precision, seconds=100.0)
    scatter = random.Random(1)
    result = sampled(lambda: scatter.gauss(100, 10), budget, 100.0)
    assert result.stopped_by == reason
    assert (half_width(result.timed_ms) < precision) == (reason == "precision")


def test_a_moment_is_not_precise() -> None:
    """Equal times end the sampling after a tenth of the seconds, not before."""
    budget = MeasurementBudget(seconds=3.0)
    assert stop([29.0] * 10, budget) is None
    assert stop([30.5] * 10, budget) == "precision"


def test_one_launch_is_less_precise_than_it_looks() -> None:
    """Noise of 2 % that is AR(1) with 0.8: four in ten of those that stop are off by over 1 %."""
    rng = random.Random(0)

    def median_of_a_launch() -> float | None:
        away = rng.gauss(0, 0.02)

        def step_ms() -> float:
            nonlocal away
            away = 0.8 * away + 0.6 * rng.gauss(0, 0.02)
            return 50 * (1 + away)

        result = sampled(step_ms, MeasurementBudget(), 50.0)
        return statistics.median(result.timed_ms) if result.stopped_by == "precision" else None

    launches = [median for _ in range(2000) if (median := median_of_a_launch()) is not None]
    off = sum(abs(median / 50 - 1) > 0.01 for median in launches)
    assert off / len(launches) == pytest.approx(0.4, abs=0.05)


def test_the_least_number_of_steps_is_kept() -> None:
    """Any budget takes enough steps for a median, however long a step takes."""
    budget = MeasurementBudget(seconds=0.001, min_iterations=5)
    assert stop([100.0] * 4, budget) is None
    assert stop([100.0] * 5, budget) == "seconds"


def test_timed_and_silent_blocks_take_turns() -> None:
    """There are as many silent steps as timed ones, in as many blocks."""
    order: list[str] = []
    budget = MeasurementBudget(max_iterations=5, min_iterations=5, precision=1e-9)
    times = iter(range(1, 100))

    def run(name: str) -> Callable[[int], list[float]]:
        def block(steps: int) -> list[float]:
            order.append(f"{name} {steps}")
            return [float(next(times)) for _ in range(steps)]

        return block

    result = sample(run("timed"), run("silent"), alone, budget, 1e4)
    assert order == ["timed 1", "silent 1"] * 5
    assert (len(result.timed_ms), len(result.silent_ms)) == (5, 5)


def test_the_slowest_rank_decides_for_all() -> None:
    """A rank whose own times agree goes on as long as another's do not."""
    scatter = random.Random(2)

    def largest(mine: Sequence[float]) -> list[float]:
        return [max(one, scatter.uniform(50, 150)) for one in mine]

    result = sample(lambda n: [10.0] * n, None, largest, MeasurementBudget(), 100.0)
    assert result.stopped_by == "seconds"
    assert set(result.timed_ms) == {10.0}


@pytest.mark.parametrize("count", [6, 7, 20, 99, 200])
def test_the_interval_of_the_median(count: int) -> None:
    """It lies between the narrowest order statistics that cover 95 %, by scipy's binomial."""
    from scipy.stats import binom

    k = next(k for k in range(1, count) if binom.cdf(k, count, 0.5) > 0.025)
    low, high = k, count + 1 - k  # ranks from 1, so that the times are their own ranks
    assert half_width(range(1, count + 1)) == pytest.approx((high - low) / 2 / ((count + 1) / 2))
    assert 1 - 2 * binom.cdf(k - 1, count, 0.5) >= 0.95


def test_few_times_have_no_interval() -> None:
    """Five agree by chance in one case of sixteen."""
    assert half_width([1.0] * 5) == math.inf
    assert half_width([]) == math.inf
    assert half_width([1.0] * 6) == 0.0


def test_the_interval_covers_the_median() -> None:
    """At least 95 % of samples cover the median, of a skewed distribution too."""
    from scipy.stats import binom

    rng = random.Random(3)
    truth, covered = math.exp(0.0), 0
    for _ in range(500):
        times = [rng.lognormvariate(0.0, 0.3) for _ in range(30)]
        ordered, width = sorted(times), half_width(times)
        k = next(k for k in range(1, 30) if binom.cdf(k, 30, 0.5) > 0.025)
        assert width == (ordered[30 - k] - ordered[k - 1]) / 2 / statistics.median(times)
        covered += ordered[k - 1] <= truth <= ordered[30 - k]
    assert covered >= 0.93 * 500


@pytest.mark.parametrize(("typical_ms", "steps"), [(100.0, 3), (700.0, 1), (0.1, 20)])
def test_a_block_is_a_tenth_of_the_plan(typical_ms: float, steps: int) -> None:
    scatter, blocks = random.Random(3), list[int]()

    def timed(count: int) -> list[float]:
        blocks.append(count)
        return [scatter.uniform(0.5, 1.5) * typical_ms for _ in range(count)]

    sample(timed, None, alone, MeasurementBudget(), typical_ms)
    assert blocks[0] == steps


@pytest.mark.parametrize("count", [10, 14, 30, 99, 200])
def test_a_tenth_is_left_out_at_each_end(count: int) -> None:
    """As scipy's."""
    from scipy.stats import trim_mean

    times = random.Random(count).choices(range(1, 1000), k=count)
    assert typical(times) == pytest.approx(trim_mean(times, 0.1))


@pytest.mark.parametrize(
    ("times", "wanted"),
    [([4.0], 4.0), ([4.0, 5.0], 4.5), ([4.0, 50.0, 5.0], 5.0), ([4.0, 5.0, 6.0, 700.0, 7.0], 6.0)],
)
def test_a_hiccup_does_not_move_it(times: list[float], wanted: float) -> None:
    """From three times on."""
    assert typical(times) == wanted


def test_no_times_have_none() -> None:
    """Nor a mean."""
    with pytest.raises(ValueError, match="no times"):
        typical([])


@pytest.mark.parametrize("shared", [0.0, 0.3])
def test_it_scatters_less_than_a_median(shared: float) -> None:
    """14 steps with noise of 5 %, and where a neighbour slows three in ten of them by a fifth."""
    rng = random.Random(0)

    def launch() -> list[float]:
        slowed = [1.2 if rng.random() < shared else 1.0 for _ in range(14)]
        return [factor * rng.gauss(100, 5) for factor in slowed]

    launches = [launch() for _ in range(2000)]
    spread = {of: statistics.variance(map(of, launches)) for of in (typical, statistics.median)}
    assert spread[typical] < 0.8 * spread[statistics.median]
