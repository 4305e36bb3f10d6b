"""One figure of many iterations: what moves it, and how much less it scatters than a median."""

from __future__ import annotations

import random
import statistics

import pytest

from spbench.results.step_time import typical


@pytest.mark.parametrize("count", [10, 14, 30, 99, 200])
def test_a_tenth_is_left_out_at_each_end(count: int) -> None:
    """As scipy's."""
    from scipy.stats import trim_mean

    times = random.Random(count).choices(range(1, 1000), k=count)
    assert typical(times) == pytest.approx(trim_mean(times, 0.1))


@pytest.mark.parametrize(
    ("times", "wanted"),
    [
        ([4.0], 4.0),
        ([4.0, 5.0], 4.5),
        ([4.0, 50.0, 5.0], 5.0),
        ([4.0, 5.0, 6.0, 700.0, 7.0], 6.0),
    ],
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
