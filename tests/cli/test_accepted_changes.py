"""``check --accept``: a known change with its reason passes, as long as it gets no worse."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from helpers.example_rows import findings_of
from helpers.kept_runs import kept, side, spbench

from spbench.analysis.findings import Margins
from spbench.analysis.verdict import judged
from spbench.errors import DONE, REGRESSION, USAGE
from spbench.regression.accepting import apply_accepted
from spbench.regression.base_and_head import Checked
from spbench.results.record import Record

FILE = Path("baselines/accepted.yaml")
WHY = "float32 is worth it"


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def check(name: str, after: list[Record], *words: str) -> Result:
    """The check of a run of this name against a baseline, each with a case that is the same."""
    if not Path("baselines/main").exists():
        kept("before", side("a"), side("a", strategy="rsa"))
        assert spbench("baseline", "set", "main", "before").exit_code == DONE
    run = kept(name, after, side(name, strategy="rsa"))
    return spbench("check", "--baseline", "main", run, *words)


def entries() -> list[dict[str, Any]]:
    return yaml.safe_load(FILE.read_text())["accepted"]


def test_an_accepted_slowdown_passes_until_it_is_worse() -> None:
    """With its reason; an interval that overlaps the accepted one leaves it open."""
    assert check("one", side("b", 1.1)).exit_code == REGRESSION
    done = check("two", side("b", 1.1, git_commit="abc123"), "--accept", WHY)
    assert done.exit_code == DONE
    (entry,) = entries()
    assert (entry["metric"], entry["ratio"], entry["reason"]) == ("time", 1.1, WHY)
    assert (entry["run"], entry["commit"]) == ("before", "abc123")
    again = check("three", side("c", 1.1), "--markdown", "m.md")
    assert again.exit_code == DONE
    last = again.stdout.splitlines()
    assert last[-1] == "passed: 2 cases, 1 with a change that is accepted"
    said = f"dsp on 2 ranks (time +10.0 %): accepted: {WHY} (abc123, "
    assert last[-2].startswith(said)
    text = Path("m.md").read_text()
    assert f"- {said}" in text and "| dsp | 2 | slower, accepted |" in text
    between = check("four", side("d", 1.11))
    assert (between.exit_code, "is open" in between.stdout) == (DONE, True)
    worse = check("five", side("e", 1.2))
    assert worse.exit_code == REGRESSION
    assert "(time +20.0 %): worse than was accepted: " in worse.stdout


@pytest.mark.parametrize(
    ("known", "worse", "metric"),
    [
        ({"peak_allocated_bytes": 11_000}, {"peak_allocated_bytes": 11_200}, "memory"),
        ({"sent_bytes_forward": 401}, {"sent_bytes_forward": 402}, "volume"),
        ({"status": "oom"}, {"status": "hang"}, "status"),
    ],
)
def test_other_metrics_are_accepted_as_they_are(
    known: dict[str, Any], worse: dict[str, Any], metric: str
) -> None:
    """Another number of bytes, another status or more memory still fails."""
    assert check("one", side("b", **known), "--accept", WHY).exit_code == DONE
    assert [entry["metric"] for entry in entries()] == [metric]
    assert check("two", side("c", **known)).exit_code == DONE
    failed = check("three", side("d", **worse))
    assert (failed.exit_code, "not as it was accepted" in failed.stdout) == (REGRESSION, True)


def test_entries_that_no_longer_apply_are_named() -> None:
    """Where the case is as fast as before, and where the baseline holds another run."""
    check("one", side("b", 1.1), "--accept", WHY)
    done = check("two", side("c"))
    assert done.exit_code == DONE
    assert f"{WHY!r}, which no longer applies: it is not worse than the base" in done.stdout
    kept("newer", side("n"), side("n", strategy="rsa"))
    assert spbench("baseline", "set", "main", "newer", "--replace").exit_code == DONE
    done = check("three", side("d", 1.1))
    assert done.exit_code == REGRESSION
    assert "no longer applies: the baseline holds another run than before" in done.stdout


def test_an_entry_that_the_base_commit_has_is_over() -> None:
    """After the merge the base is as slow, and another slowdown of that size must fail."""
    before, after = side("a"), side("b", 1.1)
    judgement = judged(findings_of(before, after), Margins())
    kept("base", before)
    kept("now", after)
    checked = Checked(judgement=judgement, base=Path("results/base"), head=Path("results/now"))

    def grades(reason: str = "") -> list[str]:
        done = apply_accepted(checked, "", "HEAD", Path("baselines"), Margins(), reason)
        return [*{each.grade for each in done.judgement.graded} - {"pass"}, *done.judgement.remarks]

    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "one")
    assert grades() == ["fail"]
    assert grades(WHY) == grades() == ["accepted"]
    git("add", "baselines")
    git("commit", "-q", "-m", "two")
    (grade, remark) = grades()
    assert (grade, "no longer applies: the base has it" in remark) == ("fail", True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("accepted: [{case: x, metric: tiem, reason: y}]", "accepted.yaml:1: accepted.0.metric"),
        ("accepted:\n- {case: x, metric: time}", "accepted.yaml:2: key 'accepted.0.reason' is"),
        ("accepted: [", "accepted.yaml:1: not YAML"),
        ("- a", "accepted.yaml:1: holds a list"),
    ],
)
def test_a_damaged_file_is_named_with_its_line(text: str, said: str) -> None:
    """Before anything is measured, and nothing is written."""
    check("one", side("b"))
    FILE.write_text(text)
    done = check("two", side("b", 1.1), "--accept", WHY)
    assert (done.exit_code, said in done.stderr) == (USAGE, True), done.stderr
    assert FILE.read_text() == text


def test_a_reason_is_needed_and_nothing_to_accept_writes_nothing() -> None:
    """Exit 2 without a reason; a check that passes leaves no file."""
    done = check("one", side("b", 1.1), "--accept", " ")
    assert (done.exit_code, "--accept needs a reason" in done.stderr) == (USAGE, True)
    assert check("two", side("c"), "--accept", WHY).exit_code == DONE
    assert not FILE.exists()
