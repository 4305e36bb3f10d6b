"""Sentences on what strategies wait for: link-bound, below their links, slower than one rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from helpers.example_rows import row

from spbench.analysis.launches import cases_of
from spbench.analysis.waiting import links_ms, waiting
from spbench.report.waiting_sentences import waiting_sentences
from spbench.results.link_report import LinkReport, LinkRow
from spbench.results.record import Record
from spbench.results.runs_csv import frame_of

CALLS = {"collectives": "forward.all_to_all=4 backward.all_to_all=6 gradients.all_reduce=1"}
SENT = {"all_to_all_bytes": 10_000_000, "all_reduce_bytes": 2_100_000} | CALLS


def link_row(op: Any, sent_bytes: float, ms: float) -> LinkRow:
    rate = sent_bytes / ms * 1e3
    return LinkRow(
        **{"op": op, "gradients": False, "strategies": [], "sent_bytes": sent_bytes, "ms": ms},
        **{"ms_low": ms, "ms_high": ms, "repeats": 3, "bytes_per_s": rate},
        **{"slowest_rank": 0, "slowest_bytes_per_s": rate},
    )


REPORT = LinkReport(
    **{"measured_utc": "2030-01-02T03:04:05Z", "workload": "w", "device": "cpu", "torch": "2"},
    **{"backend": "gloo", "ranks": 2, "placement": "", "hosts": ["here"], "hardware": ""},
    **{"link": "", "nominal_bytes_per_s": None},
    rows=[link_row("all_to_all", 1e6, 16), link_row("all_reduce", 2.1e6, 42)],
)
"""A step of CALLS and SENT takes 10 x 16 + 42 = 202 ms: 0.06 GB/s."""


def launch(step_ms: float, exposed_ms: float | None, **more: Any) -> Record:
    return row(**SENT | {"step_ms": step_ms, "exposed_comm_ms": exposed_ms} | more)


def said(rows: Sequence[Record], reports: Sequence[LinkReport] = ()) -> list[str]:
    return waiting_sentences(waiting(cases_of(frame_of(rows)), reports))


def test_link_bound_without_the_doctor() -> None:
    """At least half of the step waits; a strategy that waits less is not named."""
    rows = [
        launch(4_080.0, 3_940.0, strategy="megatron-sp", case="megatron-sp"),
        launch(600.0, 300.0, strategy="ulysses", case="ulysses"),
        launch(600.0, 290.0),
    ]
    assert said(rows) == [
        "On 2 ranks megatron-sp (3,940 of 4,080 ms), ulysses (300 of 600 ms) are link-bound: "
        "at least half of a step waits for communication"
    ]


def test_noisy_launches_are_named_beside_what_they_wait_for() -> None:
    """Their times are no evidence, and the sentence says whose they are."""
    (sentence,) = said([launch(600.0, 400.0, noisy="others used 1.2 of 2 cores")])
    assert "dsp (400 of 600 ms, in noisy launches) is link-bound" in sentence


def test_below_what_the_links_gave() -> None:
    """The two rates, and the share; then the links are not called what it waits for."""
    assert said([launch(1_200.0, 980.0)], [REPORT]) == [
        "dsp on 2 ranks sends 12.1 MB a step and waits 980 ms: 0.0123 GB/s, 21 % of what "
        "doctor --links achieved on 2030-01-02 (0.0599), so the links alone are not why"
    ]


@pytest.mark.parametrize(
    ("step_ms", "exposed_ms", "words"),
    [
        (1_200.0, 805.0, ["link-bound"]),  # a quarter and more of the rate
        (1_200.0, 812.0, ["so the links alone"]),
        (9_000.0, 812.0, []),  # too little of the step to matter
        (1_200.0, None, []),
        (1_200.0, -5.0, []),
    ],
)
def test_when_there_is_a_warning(
    step_ms: float, exposed_ms: float | None, words: list[str]
) -> None:
    """Below a quarter, if the wait is a tenth of the step or more; nothing if not measured."""
    found = said([launch(step_ms, exposed_ms)], [REPORT])
    assert len(found) == len(words)
    assert all(word in sentence for word, sentence in zip(words, found, strict=True))


@pytest.mark.parametrize(
    "other",
    [
        {"ranks": 4},
        {"placement": "node0 0, node1 1"},
        {"rows": REPORT.rows[:1]},
        {"rows": [link_row("all_to_all", 3e6, 16), REPORT.rows[1]]},
    ],
    ids=["ranks", "placement", "an operation is missing", "a size is missing"],
)
def test_a_report_that_does_not_fit(other: dict[str, Any]) -> None:
    """Nothing is said of rates; the next report that fits is taken."""
    unfit = REPORT.model_copy(update=other)
    (sentence,) = said([launch(1_200.0, 980.0)], [unfit])
    assert "link-bound" in sentence
    (sentence,) = said([launch(1_200.0, 980.0)], [unfit, REPORT])
    assert "doctor --links" in sentence


def test_a_launch_without_exposed_time_leaves_the_case_open() -> None:
    """Launches whose clocks differ have none: their case is not judged by the others."""
    rows = [launch(1_200.0, 980.0), launch(1_200.0, None, launch=1)]
    assert said(rows, [REPORT]) == []


def test_the_time_of_a_step_by_the_rates() -> None:
    """Calls times the time at their mean size; none where calls were not counted."""
    assert links_ms(launch(1.0, 1.0), REPORT) == pytest.approx(202)
    assert links_ms(launch(1.0, 1.0, collectives=""), REPORT) is None
    assert links_ms(row(step_ms=1.0), REPORT) is None
    grouped = {"mesh": "ring=2 heads=2", "collectives": "forward.all_to_all.heads=4"}
    assert links_ms(launch(1.0, 1.0, **grouped), REPORT) is None


def on_one(ms: Sequence[float], **more: Any) -> list[Record]:
    return [
        row(launch=i, world_size=1, case="one", step_ms=each, **more) for i, each in enumerate(ms)
    ]


def on_two(ms: Sequence[float], **more: Any) -> list[Record]:
    return [row(launch=i, case="two", step_ms=each, **more) for i, each in enumerate(ms)]


def test_slower_than_one_rank() -> None:
    """By the interval over launches, in the words of the device."""
    (sentence,) = said([*on_one([100, 101, 99]), *on_two([150, 151, 149])])
    assert sentence.startswith("dsp on 2 ranks is slower than one rank: a step takes 1.50x as long")
    assert "(1.4" in sentence
    rows = [*on_one([100, 101, 99]), *on_two([150, 151, 149])]
    (sentence,) = said([replace(one, device="cuda") for one in rows])
    assert "slower than one GPU" in sentence


def test_a_single_launch_says_so() -> None:
    """There is no interval, and within the margin nothing is said."""
    assert said([*on_one([100]), *on_two([150])]) == [
        "dsp on 2 ranks is slower than one rank: a step takes 1.50x as long "
        "(no confidence interval: 1 launch)"
    ]
    assert said([*on_one([100]), *on_two([101])]) == []


def test_noisy_launches_are_not_called_slower() -> None:
    """Whatever disturbed them may be why."""
    assert said([*on_one([100, 101, 99]), *on_two([1500, 151, 149], noisy="a neighbour")]) == []


def test_not_slower_than_one_rank() -> None:
    """Faster ranks, an interval that reaches one, and another workload are passed over."""
    assert said([*on_one([100, 101, 99]), *on_two([60, 61, 59])]) == []
    assert said([*on_one([100, 140, 90]), *on_two([110, 100, 130])]) == []
    assert said([*on_one([100] * 3, axes="a=1"), *on_two([150, 151, 149])]) == []


def test_another_strategy_on_one_rank() -> None:
    """Where a strategy has no launch on one rank, the fastest of the others stands for it."""
    alone = on_one([100, 101, 99], strategy="ulysses")
    (sentence,) = said([*alone, *on_two([150, 151, 149])])
    assert "1.50x" in sentence
