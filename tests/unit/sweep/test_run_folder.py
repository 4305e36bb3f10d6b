"""A run goes on as its run.json says; what is of other settings does not join it unasked."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.command_line import spbench
from helpers.golden import Golden
from helpers.stored_rows import stored

from spbench.errors import USAGE, Failure
from spbench.launch.launcher import Deadlines, LaunchResult
from spbench.launch.torchrun import JoinedLauncher
from spbench.results.find_run import command_again, not_there_yet, read_latest, way_on
from spbench.results.hand_over import Sample, sample_path
from spbench.results.store import Store
from spbench.sweep import run as running
from spbench.sweep import run_folder
from spbench.sweep.devices import Forecast
from spbench.sweep.plan import cells
from spbench.sweep.request import Request, every
from spbench.sweep.run import still_to_do
from spbench.sweep.run_folder import resumed
from spbench.workload.case import QUICK, Case, Cell, Execution, Job
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


def test_what_is_left_is_done(tmp_path: Path, launcher: Launcher, golden: Golden) -> None:
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
    golden(again.err, hide={r"\S+Z ": ""})
    assert json.loads((folder / "run.json").read_text())["settings"]["peak_tflops"] == 3.0


def test_other_settings_do_not_join(tmp_path: Path, launcher: Launcher, golden: Golden) -> None:
    """The default workload is refused in another run's folder, with the command that resumes it;
    further strategies join, and --add lets anything in."""
    folder = stopped(tmp_path / "mine", launcher)
    words = ["run", "--out", str(folder), "--device", "cpu"]
    refused = spbench(tmp_path, *words, torch=True)
    dry = spbench(tmp_path, *words, "--dry-run", torch=True)
    assert (dry.code, dry.out, dry.err) == (USAGE, "", refused.err)
    assert (refused.code, len(launcher.jobs)) == (USAGE, 2)
    golden(refused.err)
    assert "there  axes-2d: " in refused.err
    more = Request(**{**vars(REQUEST), "combinations": every(WORK, ["ulysses"], [2])})
    for request in (more, Request(**{**vars(more), "seed": 1, "adds": True})):
        running.run(Request(**{**vars(request), "out": folder}), cells(request))
    assert len(launcher.jobs) == 6
    seeded = Request(**{**vars(more), "seed": 2, "out": folder})
    with pytest.raises(Failure) as refused:
        running.run(seeded, cells(seeded))
    golden(refused.value, "of two seeds")


def test_a_quick_look_leaves_what_was_asked_for(tmp_path: Path, launcher: Launcher) -> None:
    """A full launch that is not done yet stays one, though a quick one was run in between."""
    folder = stopped(tmp_path / "mine", launcher)
    quick = Request(**{**vars(REQUEST), "out": folder, "budget": QUICK})
    running.run(quick, cells(quick))
    _, kept = resumed(folder)
    assert {cell.case.budget.label for cell in kept} == {"full"}


def test_further_rounds_have_the_order_of_the_run(tmp_path: Path, launcher: Launcher) -> None:
    """The seed, which decides it, is that of the run."""
    request = Request(**{**vars(REQUEST), "seed": 5, "out": tmp_path / "mine"})
    with pytest.raises(KeyboardInterrupt):
        running.run(request, cells(request))
    assert resumed(tmp_path / "mine")[0].seed == 5


@pytest.mark.parametrize("execution", ["compiled", "graph"])
def test_steps_go_on_as_they_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: Launcher, execution: Execution
) -> None:
    """Compiled or captured, each launch that is left; refused where a machine cannot do it."""
    request = Request(**{**vars(REQUEST), "execution": execution, "out": tmp_path / "mine"})
    with pytest.raises(KeyboardInterrupt):
        running.run(request, cells(request))
    asked: list[Case] = []
    for refuse in ("refuse_compiling", "refuse_capturing"):
        monkeypatch.setattr(run_folder, refuse, asked.extend)
    again, kept = resumed(tmp_path / "mine")
    assert again.execution == execution
    assert {cell.case.execution for cell in kept} == {execution}
    assert [cell.case.key for cell in kept] == [cell.case.key for cell in cells(request)]
    assert len(asked) == 2 * len(kept)


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


def test_several_nodes_are_given_the_whole_command(tmp_path: Path, golden: Golden) -> None:
    """Other nodes need not see the folder."""
    facts = {
        "argv": ["spbench", "resume", "x"],
        "history": [["spbench", "run", "-g", "4", "--out=y", "--fresh", "--nnodes", "2"]],
        "cases": [{"key": "a", "launch": 0}],
        "several_nodes": True,
    }
    (tmp_path / "run.json").write_text(json.dumps(facts))
    golden(command_again(tmp_path))


def test_ranks_that_joined_have_the_cores_of_all_their_machines(
    tmp_path: Path, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an estimate would warn of ranks that outnumber cores."""
    nodes: list[int] = []

    def forecast(cells: Sequence[Cell], count: int, limit_s: float) -> Forecast:
        nodes.append(count)
        return Forecast(launch_s={}, sentences=[], machines=None)

    joined, launcher.good = object.__new__(JoinedLauncher), 100
    group = SimpleNamespace(rank=0)
    vars(joined).update(hosts=["a", "b"], run=launcher.run, _lost=True, _group=group)
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(running, "_joined_launcher", lambda *_: joined)
    monkeypatch.setattr(running, "forecast", forecast)
    request = Request(**{**vars(REQUEST), "out": tmp_path / "mine"})
    running.run(request, cells(request))
    assert (nodes, len(launcher.jobs)) == ([2], 4)


def test_a_run_that_cannot_go_on_here(
    tmp_path: Path, launcher: Launcher, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """As on a machine with fewer GPUs: exit 2 with the case and what would work."""
    folder = stopped(tmp_path / "mine", launcher)
    why = "this machine has 1 GPUs; use 1 to 1"
    monkeypatch.setattr("spbench.sweep.run_folder.why_not_here", lambda *_, **__: why)
    with pytest.raises(Failure) as refused:
        resumed(folder)
    golden(refused.value)
    assert refused.value.code == USAGE


def test_an_interrupted_launch_is_not_measured_yet(tmp_path: Path, launcher: Launcher) -> None:
    """``compare`` counts what is left as ``resume`` does."""
    folder = stopped(tmp_path / "mine", launcher)
    rows, (_, planned) = stored(folder), resumed(folder)
    assert [row.status for row in rows].count("interrupted") == 1
    assert not_there_yet(folder, read_latest(folder)) == len(still_to_do(planned, rows))


def test_a_run_that_is_going_on_is_not_to_be_resumed(
    tmp_path: Path, launcher: Launcher, golden: Golden
) -> None:
    """Its lock says that it still writes; of a run that has ended the command is told."""
    folder = stopped(tmp_path / "mine", launcher)
    again = f"; resume with: spbench resume {folder}"
    assert way_on(folder) == again
    with Store(folder):
        golden(way_on(folder))
    assert (way_on(folder), way_on(tmp_path)) == (again, "")


def test_a_run_without_rows_says_how_to_go_on(
    tmp_path: Path, launcher: Launcher, golden: Golden
) -> None:
    """An empty runs.csv is no obstacle: run.json knows what to measure."""
    folder = stopped(tmp_path / "mine", launcher)
    (folder / "runs.csv").write_text("")
    with pytest.raises(Failure) as refused:
        read_latest(folder)
    golden(refused.value)


def test_a_missing_run_json_is_called_missing(tmp_path: Path, golden: Golden) -> None:
    """It is not one without launches."""
    with pytest.raises(Failure) as refused:
        resumed(tmp_path)
    golden(refused.value)
