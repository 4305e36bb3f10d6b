"""The largest size that fits: found exactly, in few tries, whatever the peak grows like."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spbench.projection.advise.capacity import MOST, Capacity, Peak, capacity_of


def found(
    held: Callable[[int], float | None], budget: float, step: int = 1
) -> tuple[Capacity, list[int]]:
    asked: list[int] = []

    def peak_of(size: int) -> Peak:
        asked.append(size)
        bytes_ = held(size)
        return (
            Peak(held_bytes=None, why_not="7 heads")
            if bytes_ is None
            else Peak(held_bytes=int(bytes_))
        )

    capacity = capacity_of(peak_of, budget, strategy="dsp", ranks=4, grows="batch", step=step)
    assert len(asked) == len(set(asked))
    assert capacity.tries == sum(held(size) is not None for size in asked)
    return capacity, asked


@given(st.integers(0, 10**9), st.integers(1, 10**6), st.integers(0, 3), st.integers(1, 64))
def test_the_largest_fits_and_the_next_does_not(
    fixed: int, each: int, bend: int, step: int
) -> None:
    budget = 3e9

    def held(size: int) -> float:
        return fixed + each * size + bend * size**2 // 7

    capacity, _ = found(held, budget, step)
    if held(step) > budget:
        assert capacity.largest is None
        assert capacity.peak_bytes == held(step)
        assert capacity.why_not == ""
        return
    assert capacity.largest is not None and capacity.largest % step == 0
    assert capacity.peak_bytes == held(capacity.largest) <= budget
    after = capacity.largest + step
    assert after > MOST or held(after) > budget
    assert capacity.next_bytes == (held(after) if after <= MOST else None)


def test_a_line_is_found_in_few_tries() -> None:
    capacity, asked = found(lambda size: 10**9 + 12_345_678 * size, 80e9)
    assert capacity.largest == (80 * 10**9 - 10**9) // 12_345_678
    assert len(asked) <= 10


def test_a_parabola_is_found_in_few_tries() -> None:
    capacity, asked = found(lambda size: 10**9 + 40_000 * size + 3 * size**2, 80e9, 8)
    assert capacity.largest is not None
    assert len(asked) <= 24


def test_sizes_that_cannot_run_are_a_limit_that_is_not_memory() -> None:
    capacity, _ = found(lambda size: size if 3 <= size <= 1000 else None, 1e6)
    assert (capacity.largest, capacity.why_not, capacity.next_bytes) == (1000, "7 heads", None)


def test_what_can_never_run_says_why() -> None:
    capacity, _ = found(lambda _: None, 1e6)
    assert (capacity.largest, capacity.peak_bytes, capacity.why_not) == (None, None, "7 heads")


def test_memory_that_ends_before_a_size_runs_ends_the_search() -> None:
    """Sizes that cannot be cut may come before one for which memory is too small."""
    tried: list[int] = []

    def peak_of(size: int) -> Peak:
        tried.append(size)
        return Peak(held_bytes=None, why_not="why", is_starved=size == 3)

    capacity = capacity_of(peak_of, 1e6, strategy="dsp", ranks=4, grows="batch", step=1)
    assert (capacity.largest, capacity.why_not, tried) == (None, "", [1, 2, 3])


@pytest.mark.parametrize("step", [1, 48])
def test_what_needs_no_memory_ends_where_sizes_end(step: int) -> None:
    capacity, asked = found(lambda _: 5.0, 1e6, step)
    assert capacity.largest == MOST // step * step
    assert "sizes end" in capacity.why_not
    assert len(asked) < 16
