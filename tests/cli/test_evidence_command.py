"""``spbench evidence`` and ``check --markdown``: one block says what, how much, how sure, where."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.example_rows import findings_of
from helpers.kept_runs import SENT, kept, side, spbench

from spbench.analysis.findings import USUAL
from spbench.analysis.verdict import judged
from spbench.errors import DONE, REGRESSION, USAGE
from spbench.report import markdown
from spbench.report.markdown import changes_part
from spbench.report.run_table import headline, sentences, share_notes
from spbench.results.record import Record
from spbench.results.store import Store

HEAD = {"git_commit": "ffee11223344556677"}


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def split(exposed_ms: float, records: list[Record]) -> list[Record]:
    """The records with silent steps."""
    return [
        replace(r, compute_ms=(r.step_ms or 0.0) - exposed_ms, exposed_comm_ms=exposed_ms)
        for r in records
    ]


def block(after: list[Record], *words: str, before: list[Record] | None = None) -> str:
    """The evidence of ``after`` against ``before``, which is twenty parts exposed of a hundred."""
    was = side("a", git_commit="aabb11223344556677", output_error=1e-6, tolerance=1e-4)
    kept("before", split(20.0, was) if before is None else before)
    kept("after", after)
    with Store(Path("results/after")) as store:
        argv = ["spbench", "run", "-s", "dsp", "-g", "2"]
        store.write_run({"argv": argv, "cases": [], "git": {"commit": "x", "dirty": True}})
    done = spbench("evidence", "after", "before", *words)
    assert done.exit_code == DONE
    return done.stdout


def head(factor: float, **more: Any) -> list[Record]:
    known = HEAD | {"output_error": 2e-6, "tolerance": 1e-4}
    return side("b", factor, **known | more)


def test_a_slower_case_is_in_the_headline_with_all_that_a_review_asks() -> None:
    """Both commits, launches, ratio and interval, the culprit, bytes, memory, parity, command."""
    text = block(split(20.0, head(1.1)))
    title, _, counts, *_ = text.splitlines()
    assert title == "### spbench evidence: worse: dsp on 2 ranks (time +10.0 %)"
    assert counts == "1 case: 1 slower"
    assert "| dsp | 2 | **slower** | 100 → 110 | +10.0 % (+9.4..+10.6 %, 5) | compute: " in text
    assert "compute: +10 of +10 ms" in text
    assert "| 2.0e-06 of 1.0e-04 |" in text
    assert "| commit | aabb11223344 | ffee11223344, with uncommitted changes |" in text
    assert "| launches | 5 of a case | 5 of a case |" in text
    assert "$ spbench run -s dsp -g 2  # at ffee11223344, with uncommitted changes" in text
    assert text.rstrip().endswith("$ spbench evidence after before\n```")


@pytest.mark.parametrize(
    ("exposed_ms", "more", "culprit"),
    [
        (30.0, {}, "exposed: +10 of +10 ms"),
        (25.0, {}, "both: compute +5 ms, exposed +5 ms"),
        (30.0, {"sent_bytes_forward": 500}, "bytes: exposed communication +10 of +10 ms"),
        (None, {}, "not split: no silent steps; bytes and calls are the same"),
        (None, {"sent_bytes_forward": 500}, "bytes: what is sent changed; the step is not split"),
    ],
)
def test_the_culprit_stands_beside_the_change(
    exposed_ms: float | None, more: dict[str, Any], culprit: str
) -> None:
    """Whichever of compute, exposed communication, bytes and memory explains it."""
    after = head(1.1, **more)
    assert f"| {culprit}" in block(after if exposed_ms is None else split(exposed_ms, after))


@pytest.mark.parametrize(
    ("exposed_ms", "more", "culprit"),
    [
        (8.0, {}, "compute: +22 ms, exposed communication -12 ms, together +10 ms"),
        (50.0, {}, "exposed: +30 ms, compute -20 ms, together +10 ms"),
        (19.97, {}, "compute: +10 of +10 ms"),
        (
            50.0,
            {"sent_bytes_forward": 500},
            "bytes: exposed communication +30 ms, compute -20 ms, together +10 ms; what is sent",
        ),
    ],
)
def test_no_culprit_is_more_than_the_whole(
    exposed_ms: float, more: dict[str, Any], culprit: str
) -> None:
    """A part that is larger than the change stands beside the one that went the other way."""
    assert f"| {culprit}" in block(split(exposed_ms, head(1.1, **more)))


def test_a_share_of_one_gpu_is_no_step_in_a_verdict() -> None:
    """What changed is the share's computation, and the block says that it is no step."""
    share = {"kind": "one_gpu_share"}
    base = [replace(one, **share, compute_ms=one.step_ms, step_ms=None) for one in side("a")]
    late = [replace(one, **share, compute_ms=one.step_ms, step_ms=None) for one in head(1.1)]
    findings = findings_of(base, late)
    (time,) = [finding for finding in findings if finding.metric == "time"]
    assert (time.verdict, time.is_share, time.what) == ("slower", True, "compute share")
    text = markdown.document(changes_part(judged(findings, USUAL)))
    assert "without messages; they are no steps" in text
    assert headline(judged(findings, USUAL)) == "failed: dsp on 2 ranks (compute share +10.0 %)"
    assert "compute share slower: 110 ms, was 100 (" in sentences(findings)[0]
    assert share_notes(findings_of(side("a"), head(1.1))) == []


def test_an_allocator_that_is_out_of_memory_is_a_culprit() -> None:
    """Whatever the split of the step says."""
    after = split(20.0, head(1.1, alloc_retries=12))
    status, time, *_ = findings_of(split(20.0, side("a", alloc_retries=0)), after)
    assert (status.verdict, time.verdict) == ("same", "slower")
    assert time.culprit == "memory: the allocator emptied its cache 12 times more in a launch"


def test_changed_cases_come_first_and_the_others_are_folded() -> None:
    """A case that is the same stands in a part that opens when it is clicked."""
    same = side("b", strategy="rsa")
    was = [*side("a", strategy="rsa"), *side("a")]
    text = block([*same, *side("b", 1.1)], before=was)
    assert "2 cases: 1 slower, 1 same" in text
    shown, _, folded = text.partition("<details><summary>1 case without a change</summary>")
    assert "| dsp |" in shown and "| rsa |" not in shown and "| rsa |" in folded


def test_other_environments_have_a_banner() -> None:
    """A planted fault and another GPU are named before any figure."""
    fault = {"environment": "SPBENCH_FAULT=slow@rank1:5%"}
    text = block(head(1.1, gpu="another GPU", **fault))
    assert text.startswith("### spbench evidence: not all of it can be compared")
    banner = text[: text.index("| strategy")]
    assert "> [!WARNING]" in banner
    assert "environment SPBENCH_FAULT=slow@rank1:5%, was blank" in banner
    assert "The time and memory of 1 case cannot be compared: gpu another GPU, was a GPU" in banner


def test_an_improvement_and_a_wrong_result_are_headlines_too() -> None:
    """Better is said; a gate that fails is worse."""
    assert block(head(0.9)).startswith(
        "### spbench evidence: better: dsp on 2 ranks (time -10.0 %)"
    )
    wrong = [replace(each, status="wrong_result", output_error=0.5) for each in head(1.0)]
    kept("wrong", wrong)
    text = spbench("evidence", "wrong", "before").stdout
    assert "worse: dsp on 2 ranks (broke)" in text
    assert "5.0e-01 of 1.0e-04 WRONG" in text


def test_one_run_alone() -> None:
    """Its strategies side by side, and where they come from."""
    kept("mine", side("a"), side("a", 1.2, strategy="rsa"))
    done = spbench("evidence", "mine")
    assert done.exit_code == DONE
    assert "| dsp | 2 | 100 |" in done.stdout and "dsp is fastest; rsa takes 1.20x" in done.stdout
    assert "| launches | 5 of a case |" in done.stdout


def test_a_time_that_is_open_is_no_headline_without_a_change() -> None:
    """Nobody takes an interval that holds both a change and none for a time that is the same."""
    few = [replace(each, noisy="others used 1.4 of 2 cores") for each in head(1.5)]
    text = block(few)
    assert text.startswith("### spbench evidence: time inconclusive in 1 case")
    assert "- dsp on 2 ranks: time inconclusive: too many launches were disturbed" in text
    assert block(head(1.0)).startswith("### spbench evidence: no change is shown")


def test_the_commands_that_repeat_it_have_the_flags_that_judged_it() -> None:
    """Margins, metrics and the folder of the baselines, for a reader who has only the block."""
    last = block(head(1.1), "--margin", "5%").splitlines()[-2]
    assert last == "$ spbench evidence after before --margin 5%"
    assert spbench("baseline", "set", "main", "before", "--baselines", "b").exit_code == DONE
    words = ("check", "--baseline", "main", "after", "--max-slowdown", "0.02", "--baselines", "b")
    assert spbench(*words, "--markdown", "m.md").exit_code == REGRESSION
    last = Path("m.md").read_text().splitlines()[-2]
    assert last == "$ spbench check --baseline main after --max-slowdown 2% --baselines b"


def test_a_run_that_is_not_there() -> None:
    """Exit 2 with the runs that are."""
    kept("mine", side("a"))
    done = spbench("evidence", "yours")
    assert (done.exit_code, "no run at yours. The latest" in done.stderr) == (USAGE, True)


def test_what_a_check_does_not_judge_is_said_in_its_markdown() -> None:
    """Metrics that were left out, cases that are open, new, or without a gate."""
    kept("before", side("a"), side("a", strategy="rsa"))
    assert spbench("baseline", "set", "main", "before").exit_code == DONE
    new = side("b", strategy="ulysses")
    kept("after", side("b", 1.1), side("b", 1.03, strategy="rsa"), new)
    words = ("check", "--baseline", "main", "after", "--markdown", "m.md", "--metrics", "time")
    assert spbench(*words).exit_code == REGRESSION
    text = Path("m.md").read_text()
    _, _, left = text.partition("**Not judged**")
    assert "- rsa on 2 ranks: its time is inconclusive, for the reason below the table" in left
    assert "- rsa on 2 ranks: time inconclusive: 5 launches of each" in text
    assert "- ulysses on 2 ranks: there is nothing to compare it with" in left
    assert "- memory, volume: left out by --metrics" in left
    assert "- dsp, rsa, ulysses: the gate was not run" in left
    assert "margins of 3 % for time and 1 % for memory" in text
    assert SENT["gpu"] in text
