"""``spbench check`` of a work tree against a commit, with real ranks of both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.repository import git
from helpers.stored_rows import stored

from spbench.errors import DONE, REGRESSION, USAGE

VOLUME = ["check", "--base-ref", "HEAD", "-w", "earthformer-small", "--set", "depth=1"]
VOLUME += ["--device", "cpu", "--metrics", "volume", "-s"]


def check(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs the command with the spbench of ``folder``."""
    return subprocess.run(
        [sys.executable, "-m", "spbench", *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)} | environ,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


CALL = (
    "            return attend_by_heads(q, k, v, scores, shard, comm, pads=self.strategy.padded)\n"
)
HEADS = "Shard.even(q.dim() - 2, q.shape[-2], comm.size)"
EDITED = (CALL, f"            comm.switch(q, before=shard, after={HEADS})\n{CALL}")
"""An edit that sends the queries once more."""


@pytest.mark.parametrize("names", ["ulysses", pytest.param("ulysses,rsa", marks=pytest.mark.long)])
def test_a_strategy_that_sends_more_than_its_base_is_caught(repository: Path, names: str) -> None:
    """One more all-to-all in the work tree gives exit 4 and names strategy, phase and bytes;
    another strategy, which is as it was, passes."""
    file = repository / "spbench" / "strategies" / "ulysses.py"
    text = file.read_text()
    assert text.count(EDITED[0]) == 1
    file.write_text(text.replace(*EDITED))
    done = check(repository, *VOLUME, names, "--out", "more")
    assert done.returncode == REGRESSION, done.stderr
    assert "ulysses on 2 ranks: broke: wrong_result" in done.stdout
    assert "all_to_all sent" in done.stdout and "bytes in forward, predicted" in done.stdout
    assert "rsa on 2 ranks: broke" not in done.stdout
    base, now = (stored(repository / "more" / side) for side in ("base", "now"))
    assert {record.strategy: record.status for record in base} == dict.fromkeys(
        names.split(","), "ok"
    )
    assert {record.strategy: record.status for record in now} == dict.fromkeys(
        names.split(","), "ok"
    ) | {"ulysses": "wrong_result"}
    assert {record.round for record in base} == {record.round for record in now} != set()
    assert {record.iterations for record in base} == {1}, "no time is judged"


@pytest.mark.long
def test_a_tree_like_its_base_passes(repository: Path) -> None:
    done = check(repository, *VOLUME, "ulysses", "--out", "same")
    assert done.returncode == DONE, done.stderr
    assert done.stdout.splitlines()[-1] == "passed: 1 case"


WHY_NOT = "    def why_not_along(self"
REFUSING = """    def why_not(self, workload: Workload, ranks: int) -> str | None:
        return "it no longer likes this shape"

"""


@pytest.mark.long
def test_a_strategy_that_declines_what_its_base_runs_broke(repository: Path) -> None:
    """--skip-invalid does not hide it; what both commits decline is left out as in ``run``."""
    file = repository / "spbench" / "strategies" / "ulysses.py"
    text = file.read_text()
    assert text.count(WHY_NOT) == 1
    file.write_text(text.replace(WHY_NOT, REFUSING + WHY_NOT))
    done = check(repository, *VOLUME, "ulysses", "--skip-invalid", "--out", "one")
    assert done.returncode == REGRESSION, done.stderr
    assert "broke: skipped. it no longer likes this shape" in done.stdout
    (ran,) = stored(repository / "one" / "base")
    (declined,) = stored(repository / "one" / "now")
    assert (ran.status, declined.status) == ("ok", "skipped")
    stored_git = json.loads((repository / "one" / "base" / "run.json").read_text())["git"]
    assert stored_git == {"commit": git(repository, "rev-parse", "HEAD"), "dirty": False}
    git(repository, "commit", "-q", "-a", "-m", "it declines")
    both = check(repository, *VOLUME, "ulysses", "--out", "two")
    assert both.returncode == USAGE and "it no longer likes this shape" in both.stderr
    assert not (repository / "two").exists()
