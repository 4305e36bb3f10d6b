"""``spbench history``: a case over commits of kept runs, and the first bad one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from helpers.golden import Golden
from helpers.kept_runs import kept, side, spbench

from spbench.errors import DONE, USAGE
from spbench.results.find_run import commit_dates
from spbench.results.record import Record
from spbench.results.store import Store


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def at(day: int, factor: float = 1.0, strategy: str = "dsp", **more: Any) -> list[Record]:
    """A run of the commit of a day, whose hash is that day's number repeated."""
    known = {"git_commit": f"{day}" * 12, "started_utc": f"2026-11-{day + 10}T10:00:00Z"}
    return side(f"s{day}", factor, strategy, **known | more)


def history(*runs: list[Record]) -> list[dict[str, Any]]:
    for day, records in enumerate(runs):
        kept(f"r{day}", records)
    done = spbench("history", "--json")
    assert done.exit_code == DONE
    return json.loads(done.stdout)


def test_the_first_bad_commit_is_named_and_drawn(golden: Golden) -> None:
    """With the last good one, the change and its interval, and both files."""
    for day, factor in enumerate([1.0, 1.004, 1.08, 1.085]):
        kept(f"r{day}", at(day, factor), at(day, 1.0, "rsa"))
    done = spbench("history")
    assert done.exit_code == DONE
    golden(done.stdout)
    files = done.stdout.splitlines()[-2:]
    assert files == ["results/history/history.png", "results/history/history.svg"]
    assert Path(files[0]).read_bytes().startswith(b"\x89PNG")
    assert "worse from" in Path(files[1]).read_text()
    only = spbench("history", "-s", "rsa", "--out", "elsewhere").stdout
    assert "dsp" not in only and Path("elsewhere/history.svg").exists()


def test_a_run_that_was_disturbed_once_is_no_regression() -> None:
    """Later commits are as fast as those before it."""
    (series,) = history(at(0), at(1, 1.1), at(2), at(3))
    assert series["worse"] == {}
    verdicts = [
        [f["verdict"] for f in p["findings"] if f["metric"] == "time"] for p in series["points"]
    ]
    assert verdicts == [[], ["slower"], ["faster"], ["same"]]


def test_bytes_and_memory_have_a_first_bad_commit_of_their_own() -> None:
    """They are exact, so one launch is enough."""
    (series,) = history(
        at(0)[:1],
        at(1, peak_allocated_bytes=12_000)[:1],
        at(2, peak_allocated_bytes=12_000, sent_bytes_forward=401)[:1],
    )
    assert series["worse"] == {"memory": 1, "volume": 2}


def test_other_hardware_is_a_series_of_its_own() -> None:
    """A run elsewhere between two runs here neither joins nor parts them."""
    here, there = history(at(0), at(1, 1.5, gpu="another GPU"), at(2, 1.001))
    assert [len(each["points"]) for each in (here, there)] == [2, 1]
    assert here["worse"] == there["worse"] == {}
    assert there["environment"].startswith("another GPU, ")


def test_commits_are_in_the_order_of_git() -> None:
    """Not in that of their measurements; changed trees count from their first launch."""

    def git(*words: str, day: int = 1) -> str:
        date = f"2026-11-0{day}T00:00:00Z"
        environ = os.environ | {"GIT_COMMITTER_DATE": date, "GIT_AUTHOR_DATE": date}
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", *identity, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
        return done.stdout.strip()

    git("init", "-q")
    commits = []
    for day in (1, 2, 3):
        git("commit", "-q", "--allow-empty", "-m", f"{day}", day=day)
        commits.append(git("rev-parse", "HEAD"))
    assert commit_dates([commits[1], "0" * 40]) == {commits[1]: "2026-11-02T00:00:00Z"}
    runs = [at(5, 1.1, git_commit=commits[2]), at(6, git_commit=commits[0])]
    runs += [at(7, git_commit=commits[1]), at(8, 1.1, git_commit=commits[2], started_utc="2026-12")]
    kept("r3", runs[3])
    with Store(Path("results/r3")) as store:
        store.write_run({"cases": [], "git": {"commit": commits[2], "dirty": True}})
    (series,) = history(*runs[:3])
    short = [commit[:12] for commit in commits]
    assert [p["commit"] for p in series["points"]] == [*short, f"{short[2]}+"]
    assert series["worse"] == {"time": 2}


def test_a_baseline_repeats_no_launch() -> None:
    """It is a copy of a run, which counts once."""
    kept("r0", at(0))
    assert spbench("baseline", "set", "main", "r0").exit_code == DONE
    (series,) = history(at(0), at(1))
    assert [p["launches"] for p in series["points"]] == [5, 5]


def test_without_runs_there_is_no_history(golden: Golden) -> None:
    """Exit 2 with what makes one."""
    done = spbench("history")
    assert done.exit_code == USAGE
    golden(done.stderr)
    kept("r0", at(0))
    golden(spbench("history", "-s", "usp").stderr, "of no such strategy")
