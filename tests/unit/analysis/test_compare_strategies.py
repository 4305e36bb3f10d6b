"""Strategies side by side: means of launches, ratios within a group, blanks as blanks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from helpers.example_rows import lines_of, rows
from helpers.example_rows import row as record
from helpers.golden import Golden

from spbench.analysis.case_figures import Figure
from spbench.analysis.compare_strategies import ranking_of
from spbench.analysis.intervals import around
from spbench.report.strategy_table import ranking_sentences


def test_a_launch_is_the_unit() -> None:
    """A figure is the geometric mean of the launches, with their interval."""
    (line,) = lines_of(rows("dsp", (4.0, 9.0, 6.0)))
    low, high = around([4.0, 9.0, 6.0]) or (0.0, 0.0)
    assert line.step_ms == Figure(mean=pytest.approx(6.0), low=low, high=high, is_interval=True)
    assert line.launches == 3


def test_two_launches_have_a_range() -> None:
    """The range is the smaller and the larger value, not an interval."""
    (line,) = lines_of(rows("dsp", (4.0, 9.0)))
    assert line.step_ms == Figure(mean=pytest.approx(6.0), low=4.0, high=9.0, is_interval=False)


def test_ratios_are_taken_round_by_round() -> None:
    """A machine that slows down between rounds does not widen the interval of a ratio."""
    drift = [10.0, 15.0, 20.0]
    _, other = lines_of([*rows("dsp", drift), *rows("rsa", [2 * ms for ms in drift])])
    assert other.to_reference is not None and other.to_reference.paired
    assert (other.to_reference.low, other.to_reference.high) == pytest.approx((2.0, 2.0))
    assert other.speedup == pytest.approx(0.5)


def test_a_resumed_run_is_not_paired() -> None:
    """Launches of another hour are compared like those of another run."""
    later = rows("rsa", (20.0, 20.2, 19.8), session="later")
    _, other = lines_of([*rows("dsp", (10.0, 10.1, 9.9)), *later])
    assert other.to_reference is not None
    assert (other.to_reference.paired, other.to_reference.verdict) == (False, "slower")


def test_noisy_launches_do_not_count_while_enough_are_quiet(golden: Golden) -> None:
    """The line says how many were left out."""
    records = rows("dsp", (10.0, 30.0, 10.0, 10.0))
    records[1] = replace(records[1], noisy="a neighbour")
    (line,) = lines_of(records)
    assert line.step_ms is not None and line.step_ms.high == pytest.approx(10.0)
    assert line.launches == 3
    golden(line.reason, "one of four")
    (line,) = lines_of(records[:3])
    assert line.launches == 3
    golden(line.reason, "one of three")
    records[2] = replace(records[2], noisy="heat")
    (line,) = lines_of(records[:3])
    golden(line.reason, "two of three")


def test_strategies_count_in_the_rounds_that_are_quiet_for_all(golden: Golden) -> None:
    """Their ratio is that of their times, and drift cancels; else each counts its own rounds."""
    drift = [10.0, 20.0, 30.0, 40.0]
    records = [*rows("dsp", drift), *rows("rsa", [2 * ms for ms in drift])]
    records[7] = replace(records[7], noisy="a neighbour", step_ms=900.0)
    dsp, rsa = lines_of(records)
    assert (dsp.launches, rsa.launches, rsa.speedup) == (3, 3, pytest.approx(0.5))
    golden(dsp.reason)
    records[0] = replace(records[0], status="hang")
    dsp, rsa = lines_of(records)
    assert dsp.step_ms and rsa.step_ms and rsa.to_reference
    assert (dsp.launches, rsa.launches, rsa.to_reference.paired) == (3, 3, False)
    assert rsa.speedup == pytest.approx(dsp.step_ms.mean / rsa.step_ms.mean)


def test_no_winner_among_noisy_launches(golden: Golden) -> None:
    """A strategy without three quiet launches is not compared, and has no winner beside it."""
    records = [*rows("dsp", [10.0, 10.1, 9.9]), *rows("ulysses", [20.0, 20.1, 19.9])]
    records += rows("rsa", [130.0, 131.0, 129.0], noisy="a neighbour")
    lines = lines_of(records)
    (said,) = ranking_sentences(lines)
    golden(said, "one is noisy")
    assert [line.is_noisy for line in lines] == [False, False, True]
    assert [line.as_data()["is_noisy"] for line in lines] == [False, False, True]
    (said,) = ranking_sentences(lines_of([replace(one, noisy="x") for one in records]))
    golden(said, "all are noisy")


def test_parts_of_a_step_add_up() -> None:
    """Exposed time is the step less its computation; none is exposed where nothing is sent, and
    it is blank where a launch does not know it."""
    parts = [(10.0, 4.0), (12.0, 9.0), (11.0, 5.0)]
    each = [{"step_ms": s, "compute_ms": c, "exposed_comm_ms": s - c} for s, c in parts]
    launches = [record(launch=i, round=f"s.{i}", **more) for i, more in enumerate(each)]
    (line,) = lines_of(launches)
    assert line.step_ms and line.compute_ms and line.exposed_comm_ms
    assert line.compute_ms + line.exposed_comm_ms == pytest.approx(line.step_ms.mean)
    alone = {f"sent_bytes_{phase}": 0 for phase in ("forward", "backward", "gradients")}
    (line,) = lines_of([replace(one, **alone) for one in launches])
    assert line.step_ms and (line.compute_ms, line.exposed_comm_ms) == (line.step_ms.mean, 0.0)
    (line,) = lines_of([*launches[:2], replace(launches[2], exposed_comm_ms=None)])
    assert line.compute_ms and line.exposed_comm_ms is None


def test_in_words_a_difference_is_one_or_is_none(golden: Golden) -> None:
    """Slower, with the interval; the same; or not significant, with the launches needed."""
    base = [10.0, 10.01, 9.99, 10.0, 10.0]
    slow = [20.0, 20.1, 19.9, 20.0, 20.05]
    (said,) = ranking_sentences(lines_of([*rows("dsp", base), *rows("rsa", slow)]))
    golden(said, "slower")
    (said,) = ranking_sentences(lines_of([*rows("dsp", base), *rows("rsa", base[::-1])]))
    golden(said, "the same")
    rough = [10.1, 10.9, 9.8, 10.6, 10.0]
    (said,) = ranking_sentences(lines_of([*rows("dsp", base), *rows("rsa", rough)]))
    golden(said, "not significant")


def test_words_say_which_ran_on_slower_processors(golden: Golden) -> None:
    """A ratio stands beside that of a fixed product, from 5 % on; on GPUs none is known."""
    base = rows("dsp", [100.0, 101.0, 99.0], cpu_gflop_per_s=160.0)
    for speed, name in ((125.0, "slower"), (155.0, "alike"), (None, "not known")):
        (said,) = ranking_sentences(
            lines_of([*base, *rows("rsa", [137.0, 138.0, 136.0], cpu_gflop_per_s=speed)])
        )
        golden(said, name)


def test_quick_and_full_runs_have_panels_of_their_own() -> None:
    """Launches of few iterations are not shown beside those of many."""
    first, second = lines_of([record(), record("rsa", effort="quick")])
    assert (first.panel + " quick", first.to_fastest) == (second.panel, None)


def test_speedups_are_over_the_first_strategy() -> None:
    """Its own is 1; half the time is 2."""
    lines = lines_of([record(step_ms=10.0), record("rsa", step_ms=20.0)])
    assert [(line.strategy, line.speedup) for line in lines] == [("dsp", 1.0), ("rsa", 0.5)]


def test_a_named_reference() -> None:
    """Speed-ups are relative to it; the order of the lines stays."""
    lines = lines_of([record(step_ms=10.0), record("rsa", step_ms=20.0)], reference="rsa")
    assert [(line.strategy, line.speedup) for line in lines] == [("dsp", 2.0), ("rsa", 1.0)]


def test_an_unknown_reference_says_which_there_are(golden: Golden) -> None:
    """The message lists the strategies of the run."""
    with pytest.raises(ValueError) as refused:
        lines_of([record(), record("rsa")], reference="dps")
    golden(refused.value)


@pytest.mark.parametrize(
    "other",
    [
        {"world_size": 4},
        {"workload": "other"},
        {"axes": "time=9xspace=16"},
        {"batch": 2},
        {"dtype": "bfloat16"},
        {"mode": "forward"},
        {"checkpointing": "full"},
        {"optimizer": "adamw"},
        {"guidance": "2"},
        {"device": "cuda"},
        {"kind": "one_gpu_share"},
    ],
)
def test_only_what_is_alike_is_compared(other: dict[str, Any]) -> None:
    """Another number of ranks, shape, dtype, mode, device or kind has no ratio to this one."""
    records = [record(step_ms=10.0, compute_ms=8.0), record("rsa", step_ms=5.0, **other)]
    first, second = lines_of(records)
    assert (first.speedup, second.speedup) == (1.0, None)


def test_panels_of_one_name_are_told_apart() -> None:
    """Another workload of the same name and shape has a title, and so a table, of its own."""
    records = [record(workload_key="1234"), record("rsa", workload_key="1234")]
    (title,) = {line.panel for line in lines_of(records)}
    assert "1234" not in title
    assert "adamw" not in title
    assert "train, adamw" in lines_of([record(optimizer="adamw")])[0].panel
    assert "train, 2 branches" in lines_of([record(guidance="2")])[0].panel
    several = lines_of([*records, record(workload_key="5678")])
    assert [line.panel for line in several] == [
        *[f"{title} workload 1234"] * 2,
        f"{title} workload 5678",
    ]
    devices = lines_of([record(), record(device="cuda")])
    assert [line.panel for line in devices] == [f"{title} cpu", f"{title} cuda"]


def test_shares_of_one_gpu_are_never_ranked(golden: Golden) -> None:
    """They have no step, no speed-up and no ratio; the words say what they are and name none."""
    share = {"kind": "one_gpu_share", "step_ms": None}
    lines = lines_of([record(compute_ms=6.0, **share), record("rsa", compute_ms=3.0, **share)])
    assert [(line.speedup, line.time_ms) for line in lines] == [(None, None)] * 2
    assert [(line.to_reference, line.to_fastest) for line in lines] == [(None, None)] * 2
    ranked = ranking_of(lines)
    assert (ranked.lowest, ranked.fastest, ranked.timed) == (None, None, [])
    assert [line.strategy for line in ranked.shares] == ["dsp", "rsa"]
    (said,) = ranking_sentences(lines)
    golden(said)
    assert ranking_sentences(lines[:1]) == [said]


def test_steps_beside_shares_are_ranked(golden: Golden) -> None:
    """Shares have a panel of their own, and take nothing from the steps beside them."""
    steps = [*rows("dsp", (10.0, 10.1, 9.9)), *rows("rsa", (20.0, 20.2, 19.8))]
    share = [record("rsa", kind="one_gpu_share", compute_ms=1.0, world_size=8)]
    golden("\n".join(ranking_sentences(lines_of([*steps, *share]))))


def test_a_strategy_without_noise_is_no_winner_beside_a_noisy_one() -> None:
    """The noisy one may be the fastest: none is, whichever has the lower time."""
    quiet = [*rows("dsp", (10.0, 10.1, 9.9)), *rows("ulysses", (20.0, 20.1, 19.9))]
    for ms in (5.0, 130.0):
        ranked = ranking_of(lines_of([*quiet, *rows("rsa", (ms, ms, ms), noisy="a neighbour")]))
        assert ranked.lowest is not None
        assert (ranked.lowest.strategy, ranked.fastest) == ("dsp", None)
        assert [line.strategy for line in ranked.noisy] == ["rsa"]
    best = ranking_of(lines_of(quiet)).fastest
    assert best is not None
    assert best.strategy == "dsp"


def test_what_no_device_has_the_memory_for_is_not_ranked(golden: Golden) -> None:
    """Of projected cases the fastest that fits is one; it is shown to be by its draws."""
    known = {"kind": "projected", "memory_limit_bytes": 100}
    lines = lines_of(
        [
            record("rsa", step_ms=1.0, peak_allocated_bytes=200, **known),
            record("dsp", step_ms=2.0, peak_allocated_bytes=50, **known),
            record("ulysses", step_ms=3.0, peak_allocated_bytes=50, slower_share=0.97, **known),
        ]
    )
    (said,) = ranking_sentences(lines)
    golden(said)
    fits = lines[1:]
    assert ranking_of(fits).fastest == fits[0]
    beaten = replace(fits[0], slower_share=0.12)  # by one or another of its rivals
    assert ranking_of([beaten, fits[1]]).fastest is None
    unsure = [replace(line, slower_share=0.6) for line in lines[1:]]
    assert ranking_of([lines[0], lines[1], unsure[1]]).fastest is None


def test_launches_without_a_second_are_told_of_once(golden: Golden) -> None:
    timed = [record(step_ms=1.0), record("rsa", step_ms=2.0), record("ulysses", step_ms=3.0)]
    (said,) = ranking_sentences(lines_of(timed))
    golden(said)


def test_words_of_several_workloads_name_theirs(golden: Golden) -> None:
    """With a single workload the sentences do not name it."""
    one = [record(step_ms=1.0), record("rsa", step_ms=2.0)]
    other = [replace(found, batch=7) for found in one]
    golden("\n".join(ranking_sentences(lines_of(one))), "of one")
    golden("\n".join(ranking_sentences(lines_of([*one, *other]))), "of two")


def test_a_failed_case_is_a_line_with_blanks() -> None:
    """Status and reason are kept; no figure is 0."""
    ok, failed = lines_of(
        [record(step_ms=3.0), record("rsa", status="oom", reason="rank 1: 3 GiB")]
    )
    assert (failed.status, failed.reason, failed.launches) == ("oom", "rank 1: 3 GiB", 0)
    assert (failed.step_ms, failed.speedup, failed.tokens_per_s) == (None, None, None)
    assert failed.sent_bytes == dict.fromkeys(("forward", "backward", "gradients"))
    assert ok.speedup == 1.0


def test_a_strategy_that_declines_is_no_reference() -> None:
    """DSP on one axis is skipped: ratios are over the first strategy that ran."""
    declined = record(status="skipped", reason="x")
    lines = lines_of([declined, record("rsa", step_ms=5.0), record("ulysses", step_ms=4.0)])
    assert [line.speedup for line in lines] == [None, 1.0, 1.25]


def test_a_failed_reference_leaves_ratios_blank() -> None:
    """There is no time to divide by."""
    lines = lines_of([record(status="crash", reason="x"), record("rsa", step_ms=5.0)])
    assert [line.speedup for line in lines] == [None, None]


def test_times_of_a_failed_launch_do_not_count(golden: Golden) -> None:
    """Only ok launches have figures; the reason names the failed launch."""
    (line,) = lines_of(
        [
            record(step_ms=2.0),
            record(launch=1, status="wrong_result", reason="rank 1: 0.5 off", step_ms=1.0),
        ]
    )
    assert (line.status, line.launches) == ("ok", 1)
    golden(line.reason)

    assert line.step_ms == Figure(mean=2.0, low=2.0, high=2.0, is_interval=False)


def test_a_wrong_launch_among_others_is_not_hidden(golden: Golden) -> None:
    """The gate is failed, with the errors of that launch, whatever the others did."""
    wrong = {"status": "wrong_result", "reason": "rank 1: 0.5 off", "tolerance": 1e-4}
    launches = [
        record(launch=0, **wrong, output_error=0.5),
        record(launch=1, status="crash", reason="exit 7"),
        record(launch=2, step_ms=1.0, output_error=1e-6, tolerance=1e-4),
    ]
    for these in (launches, launches[:2], launches[::-1]):
        (line,) = lines_of(these)
        assert (line.gate, line.output_error) == ("failed", 0.5)
    (line,) = lines_of(launches)
    golden(line.reason)
    assert line.as_data()["gate"] == "failed"


def test_bytes_and_errors_are_taken_over() -> None:
    """Bytes by phase, sent and predicted; zero stays zero and blank stays blank."""
    (line,) = lines_of(
        [
            record(
                sent_bytes_forward=0,
                sent_bytes_backward=8,
                predicted_bytes_forward=0,
                output_error=1e-7,
                peak_allocated_bytes=100,
            )
        ]
    )
    assert line.sent_bytes == {"forward": 0, "backward": 8, "gradients": None}
    assert line.predicted_bytes == {"forward": 0, "backward": None, "gradients": None}
    assert (line.output_error, line.gradient_error) == (1e-7, None)
    assert line.peak_allocated_bytes == 100


@pytest.mark.parametrize(
    ("more", "gate"),
    [
        ({}, "passed"),
        ({"status": "wrong_result"}, "failed"),
        ({"tolerance": None}, "not run"),
        ({"tolerance": None, "status": "crash"}, "not run"),
    ],
)
def test_what_the_gate_said(more: dict[str, Any], gate: str) -> None:
    """The gate is passed, failed, or not run where there is no tolerance."""
    (line,) = lines_of([record(**more)])
    assert line.gate == gate


def test_options_make_another_strategy() -> None:
    """rsa and rsa:reduce-scatter stand on lines of their own."""
    lines = lines_of([record("rsa"), record("rsa:reduce-scatter")])
    assert [line.strategy for line in lines] == ["rsa", "rsa:reduce-scatter"]


def test_nothing_gives_no_lines() -> None:
    """A run without rows has no lines."""
    assert lines_of([]) == []


def test_numbers_of_ranks_ascend_in_each_panel() -> None:
    """The order of measuring does not matter; panels and strategies keep theirs."""
    ran = [("b", "dsp", 8), ("b", "rsa", 8), ("a", "dsp", 4), ("b", "rsa", 2), ("b", "dsp", 2)]
    lines = lines_of(
        record(strategy, workload=work, world_size=ranks) for work, strategy, ranks in ran
    )
    found = [(line.panel[0], line.strategy, line.ranks) for line in lines]
    assert found == [("b", "dsp", 2), ("b", "rsa", 2), *ran[:3]]
