"""One run against another: every case and metric gets the right verdict."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from helpers.example_rows import findings_of, row, rows

from spbench.analysis.comparable import ranks_by_node
from spbench.analysis.findings import Finding
from spbench.results.record import Record

SENT: dict[str, Any] = {
    "sent_bytes_forward": 400,
    "sent_bytes_backward": 400,
    "sent_bytes_gradients": 100,
    "all_to_all_bytes": 800,
    "all_gather_bytes": 0,
    "all_reduce_bytes": 100,
    "peak_allocated_bytes": 10_000,
    "collectives": "forward.all_to_all=4 backward.all_to_all=4 gradients.all_reduce=1",
}
STEPS = [10.0, 10.05, 9.95]


def run(strategy: str = "dsp", session: str = "s", **more: Any) -> list[Record]:
    return rows(strategy, STEPS, session, **SENT | more)


def words(before: list[Record], after: list[Record], **more: Any) -> dict[str, str]:
    """The verdict of each metric of the only case."""
    return {one.metric: one.verdict for one in findings_of(before, after, **more)}


def only(findings: list[Finding], metric: str) -> Finding:
    (found,) = (one for one in findings if one.metric == metric)
    return found


def test_a_run_against_itself() -> None:
    """Every metric is the same."""
    assert words(run(), run(session="t")) == dict.fromkeys(
        ("status", "time", "memory", "volume"), "same"
    )


def test_new_and_missing_cases() -> None:
    """A case that only one run has is named, and nothing else is compared."""
    found = findings_of([*run("a"), *run("b")], [*run("a"), *run("c")])
    lone = {one.strategy: one.verdict for one in found if one.strategy != "a"}
    assert lone == {"b": "missing", "c": "new"}


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [("ok", "oom", "broke"), ("crash", "ok", "fixed"), ("oom", "hang", "changed")],
)
def test_what_works_and_what_does_not(before: str, after: str, verdict: str) -> None:
    """ok to failed is broke, failed to ok is fixed; the reason is that of the failure."""
    old, new = ([row(status=status, reason="why")] for status in (before, after))
    (found,) = findings_of(old, new)
    assert (found.metric, found.verdict) == ("status", verdict)
    assert found.reason == (f"it was {before}. why" if after == "ok" else f"{after}. why")


def test_one_failed_launch_breaks_a_case() -> None:
    """The other launches cannot be relied on; they are compared all the same."""
    after = run(session="t")
    after[1] = replace(after[1], status="hang", reason="rank 1")
    found = findings_of(run(), after)
    assert only(found, "status").verdict == "broke"
    assert only(found, "status").reason == "1 of 3 launches: hang. rank 1"
    assert only(found, "volume").verdict == "same"


def test_an_interrupted_launch_is_no_failure() -> None:
    """An interrupt says nothing about the code."""
    assert words(run(), [*run(), row(status="interrupted", launch=3)])["status"] == "same"


@pytest.mark.parametrize(
    ("peak", "verdict"), [(10_100, "same"), (10_101, "changed"), (9_899, "changed")]
)
def test_memory_has_a_tight_margin(peak: int, verdict: str) -> None:
    """The margin is 1 % up or down."""
    assert words(run(), run(peak_allocated_bytes=peak))["memory"] == verdict


def test_memory_of_another_gpu_is_not_compared() -> None:
    """Another torch prevents the comparison, too; another CPU allocates the same."""
    assert words(run(gpu="a"), run(gpu="b"))["memory"] == "not comparable"
    assert words(run(torch="a"), run(torch="b"))["memory"] == "not comparable"
    assert words(run(hardware="a"), run(hardware="b"))["memory"] == "same"


def test_bytes_are_compared_whatever_the_hardware() -> None:
    """They are exact: one byte more is a change, with phase and operation named."""
    after = run(gpu="b", sent_bytes_forward=401, all_to_all_bytes=801)
    found = only(findings_of(run(gpu="a"), after), "volume")
    assert (found.verdict, found.before, found.after) == ("changed", 900, 901)
    assert found.reason == "forward 401 bytes, was 400 (+1); all_to_all 801 bytes, was 800 (+1)"


def test_calls_are_compared_too() -> None:
    """Equal bytes in more calls are a change."""
    after = run(
        collectives=SENT["collectives"].replace("forward.all_to_all=4", "forward.all_to_all=8")
    )
    assert (
        only(findings_of(run(), after), "volume").reason == "forward all_to_all 8 calls, was 4 (+4)"
    )
    gone = run(collectives="forward.all_to_all=4 backward.all_to_all=4")
    assert (
        only(findings_of(run(), gone), "volume").reason
        == "gradients all_reduce 0 calls, was 1 (-1)"
    )


def test_any_launch_may_show_a_change() -> None:
    """A change in any launch counts, not only in the last."""
    after = run()
    after[0] = replace(after[0], sent_bytes_forward=800)
    assert words(run(), after)["volume"] == "changed"


def test_columns_that_one_side_does_not_know_are_no_change() -> None:
    """An older schema has neither calls nor every operation."""
    old = [replace(one, collectives="", all_gather_bytes=None) for one in run()]
    assert words(old, run())["volume"] == "same"


def test_a_share_is_compared_by_what_it_would_send() -> None:
    """A share sends nothing itself, so its predictions are compared."""
    share = {name: None for name in SENT if "bytes" in name} | {"kind": "one_gpu_share"}
    old, new = (run(predicted_bytes_forward=count, **share) for count in (7, 8))
    assert only(findings_of(old, new), "volume").reason == "forward 8 bytes, was 7 (+1)"


@pytest.mark.parametrize("kind", ["projected", "dry_run", "one_gpu_share"])
def test_kinds_have_no_verdict_between_them(kind: str) -> None:
    """The same case, projected and measured, is shown side by side and never judged."""
    other = run(kind=kind, case="another", compute_ms=9.0)
    found = findings_of(other, run())
    assert {one.verdict for one in found} == {"not comparable"}
    words_of_kind = kind.replace("_", " ")
    assert only(found, "status").reason == (
        f"measured against {words_of_kind}: no verdict between kinds"
    )
    shown = only(findings_of(run(), other, allow_mismatch=True), "time")
    assert (shown.verdict, shown.before) == ("not comparable", pytest.approx(10.0, rel=0.01))


def test_a_case_is_matched_with_one_of_its_kind_first() -> None:
    """A run that has the case measured and projected is compared kind by kind."""
    before = [*run(case="a", kind="projected"), *run(case="b")]
    found = findings_of(before, run(case="c"))
    assert only([x for x in found if x.case == "c"], "time").verdict == "same"


def test_projected_times_need_no_launches() -> None:
    """Of two projections of a case the ratio is shown; launches would tell nothing."""
    old, new = (rows("dsp", [ms], kind="projected", hardware="cluster x") for ms in (10.0, 12.0))
    time = only(findings_of(old, new), "time")
    assert (time.verdict, time.ratio) == ("inconclusive", pytest.approx(1.2))
    assert "spbench recommend" in time.reason


def test_a_device_is_no_other_case() -> None:
    """A case on another device is the same case, and cannot be compared."""
    found = findings_of(run(device="cpu"), run(device="cuda"))
    assert only(found, "time").reason == "device cuda, was cpu"


@pytest.mark.parametrize(
    "other",
    [
        {"world_size": 4},
        {"dtype": "bfloat16"},
        {"axes": "time=9"},
        {"workload_key": "x"},
        {"batch": 9},
    ],
)
def test_cases_are_matched_by_what_they_compute(other: dict[str, Any]) -> None:
    """Cases that compute anything else are not matched."""
    assert {one.verdict for one in findings_of(run(), run(case="other", **other))} == {
        "new",
        "missing",
    }


def test_only_the_metrics_that_were_asked_for() -> None:
    """Status is always among the findings."""
    assert set(words(run(), run(), metrics=("volume",))) == {"status", "volume"}


def test_what_fails_as_before_is_the_same() -> None:
    """The reason says so, and it is not a regression."""
    (found,) = findings_of([row(status="oom")], [row(status="oom", reason="why")])
    assert (found.verdict, found.reason) == ("same", "oom, as before. why")


def test_what_failed_now_and_then_and_now_always_broke() -> None:
    """Three hangs of three are worse than one."""
    before, after = run(), run(status="hang")
    before[1] = replace(before[1], status="hang")
    assert only(findings_of(before, after), "status").verdict == "broke"


@pytest.mark.parametrize(
    ("metric", "lost"),
    [
        ("time", {"step_ms": None}),
        ("memory", {"peak_allocated_bytes": None}),
        (
            "volume",
            {"sent_bytes_forward": None, "sent_bytes_backward": None, "sent_bytes_gradients": None},
        ),
    ],
)
def test_a_figure_that_disappears_is_not_passed_over(metric: str, lost: dict[str, Any]) -> None:
    """A lost figure cannot be compared; a new figure has no counterpart."""
    without = [replace(one, **lost) for one in run()]
    found = only(findings_of(run(), without), metric)
    assert (found.verdict, found.reason) == ("not comparable", "it was not measured now")
    assert metric not in words(without, run())


def test_any_launch_may_take_more_memory() -> None:
    """The largest peak of the launches counts."""
    after = run()
    after[0] = replace(after[0], peak_allocated_bytes=20_000)
    assert only(findings_of(run(), after), "memory").after == 20_000


def test_seeds_are_cases_of_their_own() -> None:
    """Each seed is compared where both runs have it; no seed hides a slower seed."""
    before = [*run(case="seed 0"), *run(case="seed 1")]
    slow = rows("dsp", [ms * 1.2 for ms in STEPS], **SENT, case="seed 0")
    found = findings_of(before, [*slow, *run(case="seed 1")])
    assert {one.case: one.verdict for one in found if one.metric == "time"} == {
        "seed 0": "slower",
        "seed 1": "same",
    }


def test_rows_of_before_there_were_keys_are_known_by_their_name() -> None:
    """An older schema has no workload_key; two different keys are two workloads."""
    old = run(case="old", workload_key="")
    assert words(old, run(case="new", workload_key="x"))["time"] == "same"
    other = findings_of(run(case="old", workload_key="y"), run(case="new", workload_key="x"))
    assert {one.verdict for one in other} == {"new", "missing"}
    titles = {one.panel for one in other}
    assert len(titles) == 2


def test_quick_launches_are_not_compared_with_full_ones() -> None:
    """Quick launches warm up for less."""
    found = only(findings_of(run(effort="full"), run(effort="quick")), "time")
    assert (found.verdict, found.reason) == ("not comparable", "effort quick, was full")


def test_launches_of_two_machines_are_no_case() -> None:
    """They cannot be compared even with the same mixture."""
    mixed = run()
    mixed[0] = replace(mixed[0], hardware="one")
    mixed[1] = replace(mixed[1], hardware="two")
    found = only(findings_of(mixed, mixed), "time")
    assert found.reason == "launches with hardware one and two in one case"


def test_figures_are_those_of_the_launches_that_were_compared() -> None:
    """Rounds that only one run has do not count."""
    after = [*run(git_commit="b"), row(**SENT, launch=3, round="s.3", step_ms=900.0)]
    found = only(findings_of(run(), after), "time")
    assert (found.before, found.after) == pytest.approx((10.0, 10.0), rel=1e-4)


def test_what_a_strategy_declined_before_is_not_missed() -> None:
    """Nor is it new while the strategy declines it; it is new once it runs."""
    declined = [row("rsa", status="skipped", reason="one axis")]
    assert {one.strategy for one in findings_of([*run(), *declined], run())} == {"dsp"}
    assert {one.strategy for one in findings_of([*run(), *declined], [*run(), *declined])} == {
        "dsp"
    }
    found = findings_of([*run(), *declined], [*run(), *run("rsa")])
    assert [one.verdict for one in found if one.strategy == "rsa"] == ["new"]


def statuses(*found: str) -> list[Record]:
    return [
        row(status=status, reason=f"why {status}", launch=launch)
        for launch, status in enumerate(found)
    ]


@pytest.mark.parametrize(
    ("now", "verdict", "reason"),
    [
        (("ok", "hang", "ok"), "same", "1 of 3 launches: hang, as before. why hang"),
        (
            ("hang", "wrong_result", "ok"),
            "broke",
            "1 of 3 launches: wrong_result, 1 hang. why wrong_",
        ),
        (
            ("wrong_result", "hang", "ok"),
            "broke",
            "1 of 3 launches: wrong_result, 1 hang. why wrong_",
        ),
        (("hang", "hang", "hang"), "broke", "hang. why hang"),
        (("ok", "ok", "ok"), "fixed", "it was hang. why hang"),
    ],
)
def test_an_earlier_failure_excuses_no_other(
    now: tuple[str, ...], verdict: str, reason: str
) -> None:
    """After a hang of one launch of three, any other kind of failure is named."""
    (found,) = [
        one
        for one in findings_of(statuses("ok", "hang", "ok"), statuses(*now))
        if one.metric == "status"
    ]
    assert found.verdict == verdict
    assert found.reason.startswith(reason)


def test_what_is_new_and_fails_broke() -> None:
    """No earlier failure excuses a case that is new, or that was declined."""
    declined = [row("rsa", status="skipped", reason="one axis")]
    for before in (run(), [*run(), *declined]):
        failing = row("rsa", status="wrong_result", reason="2.0 off")
        (found,) = [one for one in findings_of(before, [*run(), failing]) if one.strategy == "rsa"]
        assert (found.verdict, found.after) == ("broke", "wrong_result")
        assert found.reason == "wrong_result, and this case was not measured before. 2.0 off"


def test_what_a_strategy_declines_now_broke() -> None:
    """The case ran before."""
    (found,) = findings_of(run(), [row(status="skipped", reason="5 heads")])
    assert (found.verdict, found.reason) == ("broke", "skipped. 5 heads")


def test_a_twin_is_not_taken_by_another_case() -> None:
    """Each key matches its own counterpart, although another device stands first."""
    before = run(case="on cuda", device="cuda")
    after = [*run(case="on cpu", device="cpu"), *run(case="on cuda", device="cuda", session="t")]
    found = {one.case: one.verdict for one in findings_of(before, after) if one.metric == "time"}
    assert found == {"on cuda": "same"}
    statuses = {
        one.case: one.verdict for one in findings_of(before, after) if one.metric == "status"
    }
    assert statuses == {"on cpu": "new", "on cuda": "same"}


def test_many_cases_without_a_twin_take_no_longer() -> None:
    """Each case is looked up by what it computes, in constant time."""
    before, after = (
        [row(case=f"{side}{i}", workload_key=f"{side}{i}", batch=i) for i in range(3000)]
        for side in "ab"
    )
    start_s = time.process_time()
    assert len(findings_of(before, after)) == 6000
    assert time.process_time() - start_s < 5.0


def test_what_was_not_counted_is_not_called_the_same() -> None:
    """A launch whose result was wrong before anything was counted: it was to send as much as
    before, and sent more. Only what it was to send can be compared, and only if it differs."""
    before = run(predicted_bytes_forward=400)
    wrong = {"status": "wrong_result", "reason": "8 bytes more than predicted"}
    same, other = (row(**wrong, predicted_bytes_forward=count) for count in (400, 480))
    assert words(before, [same]) == {"status": "broke"}
    assert words(before, [other]) == {"status": "broke", "volume": "changed"}
    said = only(findings_of(before, [other]), "volume").reason
    assert said == "forward 480 bytes, was 400 (+80)"


def test_a_run_that_went_on_is_judged_by_what_is_new() -> None:
    """Its first launches are those of the baseline, and prove nothing."""
    slow = rows("dsp", [ms * 1.2 for ms in STEPS], session="t", **SENT)
    slow = [replace(one, launch=3 + i) for i, one in enumerate(slow)]
    found = only(findings_of(run(), [*run(), *slow]), "time")
    assert (found.verdict, found.after) == ("slower", pytest.approx(12.0, rel=1e-4))


def test_the_same_launches_on_both_sides_are_said() -> None:
    """Equal launches cannot differ, and the reason says that they are equal."""
    found = only(findings_of(run(), run()), "time")
    assert (found.verdict, found.reason) == ("same", "both runs hold the same launches")


def test_memory_of_another_gpu_is_shown_where_it_is_asked_for() -> None:
    """The figure has no verdict."""
    after = run(gpu="another", peak_allocated_bytes=20_000)
    for allow, figures in ((False, (None, None)), (True, (10_000, 20_000))):
        found = only(findings_of(run(gpu="one"), after, allow_mismatch=allow), "memory")
        assert (found.verdict, found.before, found.after) == ("not comparable", *figures)


@pytest.mark.parametrize(
    ("placement", "by_node"),
    [
        ("", "4"),
        ("a 0-1, b 2-3", "2+2"),
        ("a 0-2, b 3", "3+1"),
        ("b 0-1, c 2-3", "2+2"),
        ("nonsense", "4"),
    ],
)
def test_ranks_on_other_machines_are_not_compared(placement: str, by_node: str) -> None:
    """The spread over machines decides, not the machines' names."""
    before = run(world_size=4, placement="x 0-1, y 2-3")
    after = run(world_size=4, placement=placement, session="t")
    assert ranks_by_node(placement, 4) == by_node
    found = only(findings_of(before, after), "time")
    if by_node == "2+2":
        assert found.verdict == "same"
    else:
        assert found.reason == f"ranks by node {by_node}, was 2+2"
