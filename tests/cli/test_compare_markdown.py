"""``compare --markdown`` and ``check --markdown``: one block for a pull request, or for a check."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.example_rows import findings_of
from helpers.golden import Golden
from helpers.kept_runs import SENT, kept, side, spbench

from spbench.analysis.findings import USUAL
from spbench.analysis.verdict import judged
from spbench.errors import CANNOT_JUDGE, DONE, REGRESSION
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


def block(
    after: list[Record], *words: str, before: list[Record] | None = None, code: int = DONE
) -> str:
    """The block of ``after`` against ``before``, which is twenty parts exposed of a hundred."""
    was = side("a", git_commit="aabb11223344556677", output_error=1e-6, tolerance=1e-4)
    kept("before", split(20.0, was) if before is None else before)
    kept("after", after)
    with Store(Path("results/after")) as store:
        argv = ["spbench", "run", "-s", "dsp", "-g", "2"]
        store.write_run({"argv": argv, "cases": [], "git": {"commit": "x", "dirty": True}})
    done = spbench("compare", "before", "after", "--markdown", *words)
    assert done.exit_code == code
    return done.stdout


def head(factor: float, **more: Any) -> list[Record]:
    known = HEAD | {"output_error": 2e-6, "tolerance": 1e-4}
    return side("b", factor, **known | more)


def test_a_slower_case_is_in_the_headline_with_all_that_a_review_asks(golden: Golden) -> None:
    """Both commits, launches, ratio and interval, the culprit, bytes, memory, parity, command."""
    golden(block(split(20.0, head(1.1))))


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


def test_a_share_of_one_gpu_is_no_step_in_a_verdict(golden: Golden) -> None:
    """What changed is the share's computation, and the block says that it is no step."""
    share = {"kind": "one_gpu_share"}
    base = [replace(one, **share, compute_ms=one.step_ms, step_ms=None) for one in side("a")]
    late = [replace(one, **share, compute_ms=one.step_ms, step_ms=None) for one in head(1.1)]
    findings = findings_of(base, late)
    (time,) = [finding for finding in findings if finding.metric == "time"]
    assert (time.verdict, time.is_share, time.what) == ("slower", True, "compute share")
    text = markdown.document(changes_part(judged(findings, USUAL)))
    golden(text)
    golden(headline(judged(findings, USUAL)), "headline")
    golden(sentences(findings)[0], "sentence")
    assert share_notes(findings_of(side("a"), head(1.1))) == []


def test_an_allocator_that_is_out_of_memory_is_a_culprit(golden: Golden) -> None:
    """Whatever the split of the step says."""
    after = split(20.0, head(1.1, alloc_retries=12))
    status, time, *_ = findings_of(split(20.0, side("a", alloc_retries=0)), after)
    assert (status.verdict, time.verdict) == ("same", "slower")
    golden(time.culprit)


def test_changed_cases_come_first_and_the_others_are_folded(golden: Golden) -> None:
    """A case that is the same stands in a part that opens when it is clicked."""
    same = side("b", strategy="rsa")
    was = [*side("a", strategy="rsa"), *side("a")]
    text = block([*same, *side("b", 1.1)], before=was)
    golden(text)
    shown, _, folded = text.partition("<details><summary>1 case without a change</summary>")
    assert "| dsp |" in shown and "| rsa |" not in shown and "| rsa |" in folded


def test_other_environments_have_a_banner(golden: Golden) -> None:
    """A planted fault and another GPU are named before any figure; the exit code is compare's."""
    fault = {"environment": "SPBENCH_FAULT=slow@rank1:5%"}
    other = head(1.1, gpu="another GPU", **fault)
    golden(block(other, code=CANNOT_JUDGE))
    shown = block(other, "--allow-mismatch")
    golden(shown.splitlines()[-2], "with the switch")


def test_an_improvement_and_a_wrong_result_are_headlines_too(golden: Golden) -> None:
    """Better is said; a gate that fails is worse."""
    golden(block(head(0.9)).splitlines()[0], "better")
    wrong = [replace(each, status="wrong_result", output_error=0.5) for each in head(1.0)]
    kept("wrong", wrong)
    golden(spbench("compare", "before", "wrong", "--markdown").stdout, "wrong")


def test_one_run_alone(golden: Golden) -> None:
    """Its strategies side by side, and where they come from."""
    kept("mine", side("a"), side("a", 1.2, strategy="rsa"))
    done = spbench("compare", "mine", "--markdown", "--reference", "rsa")
    assert done.exit_code == DONE
    golden(done.stdout)


def test_a_time_that_is_open_is_no_headline_without_a_change(golden: Golden) -> None:
    """Nobody takes an interval that holds both a change and none for a time that is the same."""
    few = [replace(each, noisy="others used 1.4 of 2 cores") for each in head(1.5)]
    golden(block(few), "disturbed")
    golden(block(head(1.0)).splitlines()[0], "the same")


def test_the_commands_that_repeat_it_have_the_flags_that_judged_it(golden: Golden) -> None:
    """Margins, metrics and the folder of the baselines, for a reader who has only the block."""
    last = block(head(1.1), "--margin", "5%").splitlines()[-2]
    golden(last)
    assert spbench("baseline", "set", "main", "before", "--baselines", "b").exit_code == DONE
    words = ("check", "--baseline", "main", "after", "--max-slowdown", "0.02", "--baselines", "b")
    assert spbench(*words, "--markdown", "m.md").exit_code == REGRESSION
    last = Path("m.md").read_text().splitlines()[-2]
    golden(last, "check")


def test_what_a_check_does_not_judge_is_said_in_its_markdown(golden: Golden) -> None:
    """Metrics that were left out, cases that are open, new, or without a gate."""
    kept("before", side("a"), side("a", strategy="rsa"))
    assert spbench("baseline", "set", "main", "before").exit_code == DONE
    new = side("b", strategy="ulysses")
    kept("after", side("b", 1.1), side("b", 1.03, strategy="rsa"), new)
    words = ("check", "--baseline", "main", "after", "--markdown", "m.md", "--metrics", "time")
    assert spbench(*words).exit_code == REGRESSION
    text = Path("m.md").read_text()
    _, _, left = text.partition("**Not judged**")
    assert "ulysses" in left
    golden(text)
    assert SENT["gpu"] in text
