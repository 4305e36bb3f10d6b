"""Plans: variables that strategies ask for, and noisy rounds that are measured again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml
import pytest
from helpers.examples import ALL
from helpers.golden import Golden
from helpers.machines import fake_nvml

from spbench.errors import USAGE, Failure
from spbench.launch.launcher import Deadlines, LaunchResult
from spbench.results.conditions import Conditions
from spbench.results.hand_over import Sample, sample_path
from spbench.results.machine import gpus
from spbench.results.nvml import Device
from spbench.results.runs_csv import read_runs
from spbench.sweep import run as run_module
from spbench.sweep.devices import least_capability, why_not_here
from spbench.sweep.plan import cells, job_of, shared_environment
from spbench.sweep.request import Request, every
from spbench.workload.case import MAX_RANKS, QUICK, Case, Combination, Job, MeasurementBudget
from spbench.workload.catalogue import find

ONE_QUEUE = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def job(strategy: str, capability: tuple[int, int] = (9, 0), device: str = "cuda") -> Job:
    fields = {"workload": find("axes-2d", "verify"), "strategy": strategy, "ranks": 2}
    return job_of(Case.model_validate(fields | {"device": device}), Deadlines(), capability)


@pytest.mark.parametrize(
    ("capability", "asked"),
    [
        ((8, 0), ONE_QUEUE),
        ((9, 0), ONE_QUEUE),
        ((0, 0), ONE_QUEUE),
        ((10, 0), {}),
        ((10, 3), {}),
        ((12, 0), {}),
    ],
)
def test_hoppers_setting_is_not_blackwells(
    capability: tuple[int, int], asked: dict[str, str]
) -> None:
    """Megatron-SP asks for it up to Hopper, and where the GPU does not say what it is."""
    assert job("megatron-sp", capability).environment == asked
    assert job("dsp", capability).environment == {}
    assert job("megatron-sp", capability, "cpu").environment == {}


@dataclass
class Capabilities:
    """NVML's answers on each GPU of a machine; an exception is raised."""

    answers: list[Any]

    def __call__(self, index: int) -> Any:
        answer = self.answers[index]
        if isinstance(answer, Exception):
            raise answer
        return answer


NO_ANSWER = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


@pytest.mark.parametrize(
    ("answers", "least"),
    [
        ([(10, 0)] * 3, (10, 0)),
        ([(10, 0), (9, 0), (12, 0)], (9, 0)),
        ([[9, 0], NO_ANSWER, None], (9, 0)),
        ([NO_ANSWER, "x", (1, 2, 3)], (0, 0)),
    ],
)
def test_nvml_says_how_old_gpus_are(
    monkeypatch: pytest.MonkeyPatch, answers: list[Any], least: tuple[int, int]
) -> None:
    """The oldest decides; no answer stops anything, and CUDA is not started to ask."""
    nvml = fake_nvml(nvmlDeviceGetCudaComputeCapability=Capabilities(answers))
    monkeypatch.setattr("spbench.results.machine.open_nvml", lambda: nvml)
    assert least_capability(gpus()) == least
    assert Device(None, 0).compute_capability is None


def test_joined_ranks_have_one_environment(golden: Golden) -> None:
    """It is what all cases ask for, or a refusal that says how to run them instead."""
    assert shared_environment([job("megatron-sp")] * 2, {}) == ONE_QUEUE
    assert shared_environment([job("dsp"), job("rsa")], {}) == {}
    both = [job("dsp"), job("megatron-sp"), job("dsp"), job("rsa")]
    with pytest.raises(Failure) as refused:
        shared_environment(both, {"CUDA_DEVICE_MAX_CONNECTIONS": "8"})
    assert refused.value.code == USAGE
    golden(str(refused.value))


def test_joined_ranks_that_need_no_refusal() -> None:
    """The user has set it for all, which all rows say; the GPUs are Blackwell's; or it is a CPU."""
    both = [job("dsp"), job("megatron-sp")]
    assert shared_environment(both, ONE_QUEUE) == ONE_QUEUE
    assert shared_environment([job("dsp", (10, 0)), job("megatron-sp", (10, 0))], {}) == {}
    assert (
        shared_environment([job(name, (9, 0), "cpu") for name in ("dsp", "megatron-sp")], {}) == {}
    )


def test_a_run_has_an_end(golden: Golden) -> None:
    """Too many launches are refused before any is planned, with what would work."""
    work = find("axes-2d", "verify")
    combinations = [Combination(workload=work, strategy="dsp", ranks=2)] * 10_000
    request = Request(combinations=combinations, device="cpu", launches=1000)
    with pytest.raises(Failure) as refused:
        cells(request)
    golden(refused.value)


def test_a_share_has_a_largest_group(golden: Golden) -> None:
    """More ranks than are planned for are refused, with the most that are."""
    assert why_not_here(MAX_RANKS, "cpu", share=True) is None
    refused = why_not_here(MAX_RANKS + 1, "cpu", share=True)
    golden(refused)


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
        ((0, 1, 3), 3, FULL, [0, 1, 2, 3, 4, 5]),
        ((0, 1, 2), 3, FULL, [0, 1, 2]),
        (range(99), 3, FULL, [0, 1, 2]),
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
    """Whole rounds, until three are quiet or no longer can be, and none where all were noisy; what
    was disturbed is kept. Done
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
    for launches, budget, measured in ((3, FULL, 3), (5, QUICK, 5)):
        request = asked(tmp_path, launches, budget)
        run_module.run(request, cells(request))
        assert len(launcher.jobs) == 2 * measured
