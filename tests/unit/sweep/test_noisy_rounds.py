"""Rounds with noisy launches are measured again, as long as that can bring enough quiet ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from helpers.examples import ALL

from spbench.launch.launcher import LaunchResult
from spbench.results.conditions import Conditions
from spbench.results.reading import read_runs
from spbench.results.sample import Sample, sample_path
from spbench.sweep import run as run_module
from spbench.sweep.plan import cells
from spbench.sweep.request import Request, every
from spbench.workload.case import QUICK, Job, MeasurementBudget
from spbench.workload.catalogue import find


@dataclass
class NoisyLauncher:
    """A launcher whose ranks report other work in the launches with these numbers."""

    noisy: Sequence[int]
    jobs: list[Job] = field(default_factory=list)

    def run(self, job: Job, folder: Path) -> LaunchResult:
        assert job.case is not None
        job.write(folder)
        self.jobs.append(job)
        busy_s = 30.0 if job.case.launch in self.noisy else 20.0
        machine = Conditions(host="here", cores=4, wall_s=10.0, busy_s=busy_s, cpu_s=10.0)
        for rank in range(job.ranks):
            sample = Sample(rank=rank, status="ok", step_ms=[10.0], conditions=machine)
            sample_path(folder, rank).write_text(sample.model_dump_json())
        return LaunchResult(ok=True)

    def close(self) -> None:
        """Nothing is running."""


FULL = MeasurementBudget()


@pytest.mark.parametrize(
    ("noisy", "launches", "budget", "measured"),
    [
        ((), 3, FULL, [0, 1, 2]),
        ((1,), 3, FULL, [0, 1, 2, 3]),
        pytest.param((0, 3, 4), 3, FULL, [0, 1, 2, 3, 4, 5], marks=pytest.mark.long),
        ((0, 3, 4, 5), 3, FULL, [0, 1, 2, 3, 4, 5]),
        ((0, 1, 2), 3, FULL, [0, 1, 2, 3, 4, 5]),
        (range(99), 3, FULL, [0, 1, 2, 3]),
        ((0, 1), 5, FULL, [0, 1, 2, 3, 4]),
        pytest.param(range(99), 2, FULL, [0, 1], marks=pytest.mark.long),
        (range(99), 3, QUICK, [0, 1, 2]),
    ],
)
def test_noisy_rounds_are_measured_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    noisy: Sequence[int],
    launches: int,
    budget: MeasurementBudget,
    measured: list[int],
) -> None:
    """Whole rounds, until three are quiet or no longer can be; what was disturbed is kept. Done
    again, as one is in a short run, the run has nothing left to do."""
    launcher = NoisyLauncher(noisy)
    monkeypatch.setattr(run_module, "_local_launcher", lambda *_: launcher)
    request = asked(tmp_path, launches, budget)
    for _ in range(2 if ALL or noisy == (1,) else 1):
        finished = run_module.run(request, cells(request))
        assert finished is not None and not finished.unfinished
        assert sorted({record.launch for record in finished.records}) == measured
        frame = read_runs(tmp_path / "run")
        assert len(frame) == len(launcher.jobs) == 2 * len(measured)
        assert frame.groupby("round")["strategy"].nunique().eq(2).all()


def asked(folder: Path, launches: int, budget: MeasurementBudget) -> Request:
    """A run of two strategies on two ranks."""
    combinations = every(find("axes-2d", "verify"), ["dsp", "rsa"], [2])
    return Request(
        combinations=combinations,
        device="cpu",
        launches=launches,
        budget=budget,
        out=folder / "run",
    )


def test_a_quick_look_measures_no_round_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where full launches of the same cases are noisy."""
    launcher = NoisyLauncher(range(99))
    monkeypatch.setattr(run_module, "_local_launcher", lambda *_: launcher)
    for launches, budget, measured in ((3, FULL, 4), (5, QUICK, 5)):
        request = asked(tmp_path, launches, budget)
        run_module.run(request, cells(request))
        assert len(launcher.jobs) == 2 * measured
