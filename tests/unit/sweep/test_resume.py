"""A run goes on as its run.json says; what is of other settings does not join it unasked."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.command_line import spbench
from helpers.stored_rows import stored

from spbench.errors import USAGE, Failure
from spbench.launch.launcher import Deadlines, LaunchResult
from spbench.results.find_run import command_again
from spbench.results.sample import Sample, sample_path
from spbench.sweep import run as running
from spbench.sweep.plan import cells
from spbench.sweep.request import Request, every
from spbench.sweep.resume import resumed
from spbench.workload.case import QUICK, Job
from spbench.workload.catalogue import find

WORK = find("axes-2d", "verify")
REQUEST = Request(
    combinations=every(WORK, ["dsp", "rsa"], [2]),
    device="cpu",
    launches=2,
    deadlines=Deadlines(launch_s=77.0),
    peak_tflops=3.0,
)
SENT = {"forward": 1, "backward": 2, "gradients": 3}


class Launcher:
    """Every launch is good until the last of ``good`` ones; then Ctrl-C."""

    def __init__(self, good: int = 100) -> None:
        self.good = good
        self.jobs: list[Job] = []

    def run(self, job: Job, folder: Path) -> LaunchResult:
        if len(self.jobs) == self.good:
            raise KeyboardInterrupt
        self.jobs.append(job)
        folder.mkdir(parents=True, exist_ok=True)
        more = {"sent_by_phase": SENT, "predicted_by_phase": SENT, "step_ms": [1.0] * 3}
        for rank in range(job.ranks):
            sample = Sample(rank=rank, status="ok", backend="gloo", **more)  # type: ignore[arg-type]
            sample_path(folder, rank).write_text(sample.model_dump_json())
        return LaunchResult(ok=True)

    def close(self) -> None:
        """Nothing runs."""


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    """The launcher of every run of the test; the first has two good launches before Ctrl-C."""
    fake = Launcher(good=2)
    monkeypatch.setattr(running, "_local_launcher", lambda *_: fake)
    monkeypatch.setattr(sys, "argv", ["spbench", "run"])
    yield fake


def stopped(folder: Path, launcher: Launcher) -> Path:
    """A run of four launches that ended behind two."""
    request = Request(**{**vars(REQUEST), "out": folder})
    with pytest.raises(KeyboardInterrupt):
        running.run(request, cells(request))
    assert len(launcher.jobs) == 2
    launcher.good = 100
    return folder


def test_what_is_left_is_done(tmp_path: Path, launcher: Launcher) -> None:
    """Same cases, order, deadlines and folder; nothing twice, and nothing of the defaults."""
    folder = stopped(tmp_path / "my run", launcher)
    assert command_again(folder) == f"spbench resume '{folder}'"
    done = spbench(tmp_path, "resume", str(folder), "--json", torch=True)
    assert done.code == 0, done.err
    wanted = [(cell.case.key, cell.case.launch) for cell in cells(REQUEST)]
    assert [(j.case.key, j.case.launch) for j in launcher.jobs if j.case] == wanted
    assert {job.timeout_s for job in launcher.jobs} == {77.0}
    good = [row for row in stored(folder) if row.status == "ok"]
    assert [(row.case, row.launch) for row in good] == wanted
    again = spbench(tmp_path, "resume", str(folder), torch=True)
    assert (again.code, len(launcher.jobs)) == (0, 4)
    assert "4 launches are in" in again.err and "already; 0 left to do" in again.err
    assert json.loads((folder / "run.json").read_text())["settings"]["peak_tflops"] == 3.0


def test_other_settings_do_not_join(tmp_path: Path, launcher: Launcher) -> None:
    """The default workload is refused in another run's folder, with the command that resumes it;
    further strategies join, and --add lets anything in."""
    folder = stopped(tmp_path / "mine", launcher)
    refused = spbench(tmp_path, "run", "--out", str(folder), "--device", "cpu", torch=True)
    assert (refused.code, len(launcher.jobs)) == (USAGE, 2)
    assert f"--out {folder} holds a run of other settings" in refused.err
    assert "there  axes-2d: " in refused.err and "here   dsp-720m-small: " in refused.err
    assert f"spbench resume {folder} does what that run has left" in refused.err
    more = Request(**{**vars(REQUEST), "combinations": every(WORK, ["ulysses"], [2])})
    for request in (more, Request(**{**vars(more), "seed": 1, "adds": True})):
        running.run(Request(**{**vars(request), "out": folder}), cells(request))
    assert len(launcher.jobs) == 6
    seeded = Request(**{**vars(more), "seed": 2, "out": folder})
    with pytest.raises(Failure, match=r"seed 0 \(and 1 more\)\n    here .*, seed 2\n"):
        running.run(seeded, cells(seeded))


def test_a_quick_look_leaves_what_was_asked_for(tmp_path: Path, launcher: Launcher) -> None:
    """A full launch that is not done yet stays one, though a quick one was run in between."""
    folder = stopped(tmp_path / "mine", launcher)
    quick = Request(**{**vars(REQUEST), "out": folder, "budget": QUICK})
    running.run(quick, cells(quick))
    _, kept = resumed(folder)
    assert {cell.case.budget.label for cell in kept} == {"full"}


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"argv": ["spbench", "check"]}, "was not written by 'spbench run'"),
        ({"argv": ["spbench", "run"]}, "has no launches; 'spbench run' with the flags of that run"),
        ({"cases": [{"key": "a", "launch": 0}]}, "has 1 of 1 launch that cannot be read"),
    ],
)
def test_what_cannot_be_resumed(tmp_path: Path, facts: dict[str, object], said: str) -> None:
    """Exit 2 with the reason and what works."""
    (tmp_path / "run.json").write_text(json.dumps(facts))
    with pytest.raises(Failure, match=said) as refused:
        resumed(tmp_path)
    assert refused.value.code == USAGE


def test_several_nodes_are_given_the_whole_command(tmp_path: Path) -> None:
    """Other nodes need not see the folder."""
    facts = {
        "argv": ["spbench", "resume", "x"],
        "history": [["spbench", "run", "-g", "4", "--out=y", "--fresh", "--nnodes", "2"]],
        "cases": [{"key": "a", "launch": 0}],
        "several_nodes": True,
    }
    (tmp_path / "run.json").write_text(json.dumps(facts))
    assert command_again(tmp_path) == f"spbench run -g 4 --nnodes 2 --out {tmp_path}"
