"""The times of a case before and after: which launches count, and when there is a verdict."""

from __future__ import annotations

from dataclasses import replace
from statistics import geometric_mean

import pytest
from helpers.example_rows import launches_of, rows
from helpers.golden import Golden

from spbench.analysis.compare import Comparison, compare_times, limits_of
from spbench.results.record import Record

FLAT = [100.0, 100.4, 99.6, 100.2, 99.8]


def compared(
    before: list[Record], after: list[Record], *, allow_mismatch: bool = False
) -> Comparison | None:
    return compare_times(*launches_of(before, after), allow_mismatch=allow_mismatch)


def times(factor: float, spread: float = 1.0) -> list[float]:
    return [100 * factor * (ms / 100) ** spread for ms in FLAT[1:] + FLAT[:1]]


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [
        (1.1, "slower"),
        (0.9, "faster"),
        (1.0, "same"),
        (1.02, "inconclusive"),
        (1 / 1.02, "inconclusive"),
    ],
)
def test_a_verdict_needs_the_whole_interval(factor: float, verdict: str) -> None:
    """The interval lies outside the margin, inside it, or across its edge."""
    found = compared(rows("a", FLAT), rows("a", times(factor)))
    assert found is not None
    assert (found.verdict, found.paired, found.launches) == (verdict, True, 5)
    assert found.ratio == pytest.approx(factor)
    assert found.low is not None and found.high is not None
    assert found.low < factor < found.high
    assert found.needs is None  # at the very limit no number would do


def test_inconclusive_says_what_it_would_take(golden: Golden) -> None:
    """The reason names the launches that a verdict takes, as the field does."""
    found = compared(rows("a", FLAT), rows("a", times(1.024, spread=5.0)))
    assert found is not None and found.needs is not None
    assert found.verdict == "inconclusive" and found.needs > 5
    golden(found.reason)


def test_a_single_launch_has_no_verdict(golden: Golden) -> None:
    """It has no interval either; the reason asks for three launches."""
    found = compared(rows("a", [1.0]), rows("a", [2.0]))
    assert found is not None
    assert (found.verdict, found.low, found.needs) == ("inconclusive", None, 3)
    golden(found.reason)


def test_which_side_has_too_few_launches_is_said(golden: Golden) -> None:
    """The reason counts the launches of runs that were measured apart."""
    found = compared(rows("a", FLAT[:2]), rows("a", FLAT, session="t"))
    assert found is not None
    golden(found.reason)


def test_the_margin_is_the_same_both_ways() -> None:
    """What is 3 % slower one way round is 3 % faster the other."""
    fast, slow = limits_of(0.03)
    assert fast * slow == pytest.approx(1.0)


@pytest.mark.parametrize("field", ["gpu", "hardware", "torch", "cuda", "nccl", "backend", "device"])
def test_other_hardware_or_libraries_are_not_compared(field: str, golden: Golden) -> None:
    """The reason names the field and both values; there is no figure either."""
    before = rows("a", FLAT, **{field: "old"})
    after = rows("a", times(1.5), session="t", **{field: "new"})
    found = compared(before, after)
    assert found is not None
    assert (found.verdict, found.ratio) == ("not comparable", None)
    golden(found.reason)
    allowed = compared(before, after, allow_mismatch=True)
    assert allowed is not None
    assert (allowed.verdict, allowed.reason) == ("not comparable", found.reason)
    assert allowed.ratio == pytest.approx(1.5)


def test_what_is_not_known_stops_nothing() -> None:
    """Rows of an older schema have no hardware and are compared."""
    found = compared(rows("a", FLAT), rows("a", times(1.5), hardware="a CPU"))
    assert found is not None and found.verdict == "slower"


def test_a_noisy_run_by_itself_has_no_verdict(golden: Golden) -> None:
    """Its disturbance cannot be told from a change."""
    noisy = rows("a", times(1.5), session="t", noisy="others used 1.0 of 2 cores")
    found = compared(rows("a", FLAT), noisy)
    assert found is not None
    assert (found.verdict, found.is_noisy, found.p_slower) == ("inconclusive", True, 1.0)
    golden(found.reason)


@pytest.mark.parametrize(
    ("factor", "gflop_per_s", "verdict"),
    [
        (1.28, 75.0, "inconclusive"),  # 1.33x slower: all of it, or more
        (1.6, 75.0, "slower"),
        (1.0, 125.0, "inconclusive"),  # as long on processors 1.25x faster
        (0.9, 75.0, "faster"),
        (0.8, 125.0, "inconclusive"),
        (1.04, 96.0, "slower"),  # as fast as the processors are known
        (1.28, None, "slower"),
    ],
)
def test_runs_on_other_processors_have_a_verdict_that_holds_on_equal_ones(
    factor: float, gflop_per_s: float | None, verdict: str, golden: Golden
) -> None:
    """Measured apart, what slower processors may explain is open: with no significance either."""
    before = rows("a", FLAT, cpu_gflop_per_s=100.0)
    after = rows("a", times(factor), session="t", cpu_gflop_per_s=gflop_per_s)
    found = compared(before, after)
    assert found is not None and found.verdict == verdict
    if verdict == "inconclusive":
        golden(found.reason)
        assert (found.is_noisy, found.p_slower) == (True, 1.0)
    if gflop_per_s:
        assert found.processors == pytest.approx(100 / gflop_per_s)
    in_turn = compared(before, [replace(one, round=f"s.{one.launch}") for one in after])
    assert in_turn is not None and not in_turn.is_noisy


def test_noisy_launches_are_left_out() -> None:
    """They are left out as long as there are enough quiet launches."""
    apart = rows("a", [*times(1.0), 300.0], session="t")
    apart[-1] = replace(apart[-1], noisy="a neighbour")
    found = compared(rows("a", FLAT), apart)
    assert found is not None and (found.verdict, found.launches) == ("same", 5)


def test_noisy_rounds_count_where_too_few_are_quiet() -> None:
    """Launches that take turns are disturbed alike, so their ratio stays the same."""
    both = [rows("a", FLAT, noisy="x"), rows("a", times(1.1), noisy="x")]
    found = compared(*both)
    assert found is not None and (found.verdict, found.is_noisy) == ("slower", False)
    three_quiet = [[*side[:2], *(replace(one, noisy="") for one in side[2:])] for side in both]
    found = compared(*three_quiet)
    assert found is not None and found.launches == 3


def test_only_launches_that_are_ok_count() -> None:
    """A failed launch has no time, whatever its row says."""
    after = rows("a", times(1.0))
    after[0] = replace(after[0], status="crash", step_ms=900.0)
    found = compared(rows("a", FLAT), after)
    assert found is not None and (found.verdict, found.launches) == ("same", 4)


def test_without_a_time_there_is_nothing_to_compare() -> None:
    """A dry run, or a case without an ok launch, has no comparison."""
    assert compared(rows("a", FLAT), []) is None
    assert compared(rows("a", FLAT), rows("a", FLAT, status="oom")) is None


def test_a_share_is_compared_by_its_computation() -> None:
    """A share has no step time."""
    share = [
        rows("a", values, kind="one_gpu_share", compute_ms=9.0) for values in (FLAT, times(1.2))
    ]
    share = [[replace(one, step_ms=None, compute_ms=one.step_ms) for one in side] for side in share]
    found = compared(*share)
    assert found is not None and found.verdict == "slower"


def test_computation_is_no_step() -> None:
    """A step whose time is blank is not compared by its computation."""
    blank = [replace(one, step_ms=None, compute_ms=1.0) for one in rows("a", FLAT)]
    assert compared(rows("a", FLAT), blank) is None


def test_rows_of_before_there_were_rounds() -> None:
    """They are never paired, as nothing is known of what ran next to them."""
    old = [[replace(one, round="") for one in rows("a", values)] for values in (FLAT, times(1.0))]
    found = compared(*old)
    assert found is not None and (found.paired, found.verdict) == (False, "same")


def test_noise_on_one_side_alone_is_no_chance() -> None:
    """Three noisy rounds before and none after, or the reverse, forbid a verdict."""
    noisy = rows("a", times(1.3), noisy="others used 1.0 of 2 cores")
    found = compared(rows("a", FLAT), noisy)
    assert found is not None and found.paired
    assert (found.verdict, found.is_noisy) == ("inconclusive", True)
    both = rows("a", FLAT, noisy="x")
    both[0] = replace(both[0], noisy="")
    found = compared(both, noisy)
    assert found is not None and found.verdict == "slower"
    found = compared(noisy, rows("a", FLAT))
    assert found is not None and found.verdict == "inconclusive"


def test_either_side_may_make_a_round_noisy() -> None:
    """Only rounds that are quiet before and after count, if there are three."""
    sides = [rows("a", FLAT), rows("a", times(1.0))]
    sides[0][0] = replace(sides[0][0], noisy="x")
    sides[1][4] = replace(sides[1][4], noisy="x")
    found = compared(*sides)
    assert found is not None and found.launches == 3


def test_a_few_quiet_rounds_of_many_tell_less_than_all() -> None:
    """Three quiet rounds of ten count with the noisy ones; five of ten count alone."""
    sides = [rows("a", FLAT * 2), rows("a", times(1.0) * 2)]
    noisy = [[replace(one, noisy="x") for one in side] for side in sides]
    for quiet, counted in ((3, 10), (5, 5)):
        mixed = [
            [*clean[:quiet], *dirty[quiet:]] for clean, dirty in zip(sides, noisy, strict=True)
        ]
        found = compared(*mixed)
        assert found is not None and found.launches == counted


def test_three_common_rounds_are_enough_to_pair() -> None:
    """Before and after each lost another launch; drift still cancels."""
    drift = [100.0, 120.0, 140.0, 160.0, 180.0]
    before, after = rows("a", drift), rows("b", [1.1 * ms for ms in drift])
    before[0], after[4] = (replace(one, status="hang") for one in (before[0], after[4]))
    found = compared(before, after)
    assert found is not None and found.paired
    assert (found.launches, found.verdict) == (3, "slower")
    assert found.ratio == pytest.approx(1.1)
    means = geometric_mean([120.0, 140.0, 160.0])
    assert (found.before_ms, found.after_ms) == pytest.approx((means, 1.1 * means))


def test_two_common_rounds_of_many_are_not() -> None:
    """All launches say more, although they ran apart."""
    later = [*rows("b", [110.0, 111.0]), *rows("b", [110.0, 111.0, 112.0], session="t")]
    found = compared(rows("a", FLAT), later)
    assert found is not None and (found.paired, found.launches) == (False, 5)


def test_both_limits_must_be_cleared_from_within() -> None:
    """Inside the margin, near one of its limits, the nearer limit decides the launches."""
    found = compared(rows("a", FLAT), rows("a", times(1.012, spread=6.0)))
    assert found is not None and found.needs is not None
    assert found.verdict == "inconclusive"
    less = compared(rows("a", FLAT), rows("a", times(1.0, spread=6.0)))
    assert less is not None and less.needs is not None
    assert found.needs > less.needs
