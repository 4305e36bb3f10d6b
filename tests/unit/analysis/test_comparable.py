"""Launches with other variables, or bound otherwise, are not compared; the reason says which."""

from __future__ import annotations

import pytest
from helpers.example_rows import findings_of, lines_of, rows
from helpers.golden import Golden

from spbench.analysis.findings import Finding

STEPS = [10.0, 10.05, 9.95]
SLOW = [20.0, 20.1, 19.9]


def time_of(before: dict[str, str], after: dict[str, str]) -> Finding:
    """The finding on the time of one case, with these columns before and after."""
    found = findings_of(rows("a", STEPS, **before), rows("a", STEPS, "t", **after))
    return next(finding for finding in found if finding.metric == "time")


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("NCCL_ALGO=Ring", "none", "NCCL_ALGO=Ring before, unset after"),
        ("none", "NCCL_ALGO=Ring", "NCCL_ALGO unset before, Ring after"),
        ("OMP_X=1 OMP_Y=2", "OMP_X=2 OMP_Y=3", "OMP_X=1 before, 2 after; OMP_Y=2 before, 3 after"),
        ("NCCL_X@rank1=1", "none", "NCCL_X@rank1=1 before, unset after"),
        ("TORCH_X=''", "none", "TORCH_X= before, unset after"),
    ],
)
def test_a_variable_that_differs_is_named(before: str, after: str, reason: str) -> None:
    """Both values are said."""
    found = time_of({"variables": before}, {"variables": after})
    assert (found.verdict, found.reason) == ("not comparable", reason)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "NCCL_ALGO=Ring"),
        ("NCCL_ALGO=Ring", "NCCL_ALGO=Ring"),
        ("CUDA_VISIBLE_DEVICES=0,1", "CUDA_VISIBLE_DEVICES=1,0"),
        ("OMP_NUM_THREADS=1", "none"),
    ],
)
def test_what_is_not_known_or_has_no_effect_stops_nothing(before: str, after: str) -> None:
    """Rows of older versions are compared, and rows of other GPUs of one kind."""
    assert time_of({"variables": before}, {"variables": after}).verdict == "same"


def test_launches_of_one_case_with_other_variables(golden: Golden) -> None:
    """The case is comparable with nothing."""
    mixed = [*rows("a", STEPS, variables="NCCL_X=1"), *rows("a", STEPS, "u", variables="none")]
    found = findings_of(mixed, rows("a", STEPS, "t", variables="NCCL_X=1"))
    reasons = {finding.metric: finding.reason for finding in found}
    golden(reasons["time"])


def test_what_a_strategy_asks_for_is_part_of_it() -> None:
    """Strategies of one run are compared, also where the user has another value for all of them,
    and two versions of a strategy of which one asks."""
    asked = {"variables": "CUDA_X=1", "environment": "CUDA_X=1"}
    for others in ("none", "CUDA_X=8"):
        lines = lines_of([*rows("a", STEPS, variables=others), *rows("b", SLOW, **asked)])
        ratios = {line.strategy: line.to_reference for line in lines}
        assert ratios["b"] is not None and ratios["b"].verdict == "slower"
        assert time_of({"variables": others}, asked).verdict == "same"
    lines = lines_of([*rows("a", STEPS, variables="none"), *rows("b", SLOW, variables="CUDA_X=1")])
    verdicts = [line.to_reference.verdict for line in lines if line.to_reference]
    assert verdicts[-1] == "not comparable"


def test_binding_to_numa_nodes(golden: Golden) -> None:
    """Bound ranks are compared with bound ones, on whichever nodes, not with free ones."""
    bound, elsewhere, free = "numa0 0-1", "numa0 0, numa1 1", "any 0-1"
    assert time_of({"numa": bound}, {"numa": elsewhere}).verdict == "same"
    assert time_of({"numa": ""}, {"numa": elsewhere}).verdict == "same"
    golden(time_of({"numa": free}, {"numa": bound}).reason)
