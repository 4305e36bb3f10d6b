"""The verdict of a check: what fails it, what passes, what stays undecided."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.example_rows import findings_of, row, rows
from helpers.golden import Golden

from spbench.analysis.findings import Margins
from spbench.analysis.verdict import Judgement, judged
from spbench.results.record import Record

STEPS = [100.0, 100.5, 99.5, 100.2, 99.8]
CHECK = Margins(time=0.03)


def side(factor: float = 1.0, strategy: str = "dsp", **more: Any) -> list[Record]:
    turned = STEPS if factor == 1.0 else [*STEPS[1:], STEPS[0]]
    return rows(strategy, [ms * factor for ms in turned], **{"sent_bytes_forward": 8} | more)


def judge(before: list[Record], after: list[Record]) -> Judgement:
    return judged(findings_of(before, after, CHECK), CHECK)


def grade(before: list[Record], after: list[Record], metric: str) -> str:
    (found,) = (one for one in judge(before, after).graded if one.finding.metric == metric)
    return found.grade


@pytest.mark.parametrize(
    ("factor", "wanted"),
    [(1.0, "pass"), (0.8, "pass"), (1.02, "pass"), (1.05, "fail"), (1.03, "undecided")],
)
def test_time_fails_beyond_the_margin(factor: float, wanted: str) -> None:
    """The whole interval must be beyond; within the margin, or faster, it passes."""
    assert grade(side(), side(factor), "time") == wanted


def test_noise_leaves_time_undecided() -> None:
    """A disturbed run neither fails nor passes."""
    noisy = side(1.5, session="t", noisy="a neighbour")
    assert grade(side(), noisy, "time") == "undecided"
    noisy = side(1.0, session="t", noisy="a neighbour")
    assert grade(side(), noisy, "time") == "undecided"


@pytest.mark.parametrize(("bytes_now", "wanted"), [(8, "pass"), (9, "fail"), (7, "fail")])
def test_bytes_fail_on_any_difference(bytes_now: int, wanted: str) -> None:
    """Fewer bytes fail, too: an intended change needs a new baseline."""
    assert grade(side(), side(sent_bytes_forward=bytes_now), "volume") == wanted


@pytest.mark.parametrize(("peak", "wanted"), [(1010, "pass"), (1011, "fail"), (500, "pass")])
def test_memory_fails_when_it_grows(peak: int, wanted: str) -> None:
    """More than 1 % fails; less passes."""
    before, after = side(peak_allocated_bytes=1000), side(peak_allocated_bytes=peak)
    assert grade(before, after, "memory") == wanted


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [("ok", "oom", "fail"), ("oom", "ok", "pass"), ("oom", "oom", "pass")],
)
def test_a_case_that_breaks_fails(before: str, after: str, wanted: str) -> None:
    """A case that was broken before is not a regression."""
    assert grade([row(status=before)], [row(status=after)], "status") == wanted


def test_a_missing_case_cannot_be_judged() -> None:
    """Otherwise a check that measures nothing would pass; a new case needs no counterpart."""
    missing = judge([*side(), *side(strategy="rsa")], side())
    assert (missing.of("fail"), missing.is_comparable) == ([], False)
    assert judge(side(), [*side(), *side(strategy="rsa")]).is_comparable


def test_nothing_to_judge_is_not_comparable() -> None:
    """Neither base nor head has a case."""
    assert not judge([], []).is_comparable


def test_another_gpu_is_not_comparable() -> None:
    """Its bytes are judged all the same, and would fail."""
    other = judge(side(gpu="a"), side(gpu="b"))
    assert (other.of("fail"), other.is_comparable) == ([], False)
    worse = judge(side(gpu="a"), side(gpu="b", sent_bytes_forward=9))
    assert [one.metric for one in worse.of("fail")] == ["volume"]


def test_many_cases_ask_for_more_certainty(golden: Golden) -> None:
    """A case that just fails alone is undecided among forty: one in twenty does by chance."""
    close = [ms * 1.05 for ms in (100.9, 100.0, 99.1, 100.6, 99.4)]
    alone = judge(side(), rows("dsp", close, sent_bytes_forward=8))
    assert [one.metric for one in alone.of("fail")] == ["time"]
    others = [one for i in range(40) for one in side(strategy=f"other-{i}")]
    crowd = judge([*side(), *others], [*rows("dsp", close, sent_bytes_forward=8), *others])
    assert crowd.of("fail") == []
    (open_,) = crowd.of("undecided")
    assert (open_.strategy, open_.verdict) == ("dsp", "inconclusive")
    golden(open_.reason)
    assert open_.comparison is not None and open_.comparison.needs is not None
    enough = open_.comparison.needs // 5 + 1
    before, after = (side * enough for side in (STEPS, close))
    crowd = judge(
        [*rows("dsp", before, sent_bytes_forward=8), *others],
        [*rows("dsp", after, sent_bytes_forward=8), *others],
    )
    assert [one.metric for one in crowd.of("fail")] == ["time"]


def test_it_is_said_how_many_launches_each_side_has(golden: Golden) -> None:
    """The reason counts the launches of the check and the five of the baseline."""
    spread = [ms * 1.04 + (-1) ** i * 5 for i, ms in enumerate(STEPS * 4)]
    found = judge(side(), rows("dsp", spread, session="t", sent_bytes_forward=8))
    (open_,) = found.of("undecided")
    golden(open_.reason)


def test_between_faster_and_the_same_is_good_enough() -> None:
    """It is certainly not slower: it passes, and is not called inconclusive."""
    found = judge(side(), rows("dsp", [97.0, 96.0, 98.0, 97.5, 96.5], sent_bytes_forward=8))
    (time,) = (one for one in found.graded if one.finding.metric == "time")
    assert (time.finding.verdict, time.grade) == ("not slower", "pass")


def test_a_case_that_is_new_judges_nothing() -> None:
    """Neither does a case that failed before, and works now."""
    assert not judge([], side()).is_comparable
    assert not judge([row(status="crash")], side()).is_comparable
    assert judge([*side(), row("rsa", status="crash")], [*side(), row("rsa")]).is_comparable


@pytest.mark.parametrize(("before", "after"), [(3, 4), (4, 3)])
def test_medians_are_not_compared_with_trimmed_means(before: int, after: int) -> None:
    """Rows before schema 4 hold medians; bytes and memory can be compared."""
    judgement = judge(
        side(schema_version=before, peak_allocated_bytes=8),
        side(schema_version=after, peak_allocated_bytes=8),
    )
    found = {one.metric: one for one in judgement.findings}
    assert found["time"].verdict == "not comparable"
    assert "statistic" in found["time"].reason and "median" in found["time"].reason
    assert (found["volume"].verdict, found["memory"].verdict) == ("same", "same")
    assert judge(side(schema_version=3), side(schema_version=3)).is_comparable
