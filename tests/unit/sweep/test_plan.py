"""Variables that strategies ask for: by the age of the GPUs, and never for another strategy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pynvml
import pytest
from helpers.machines import fake_nvml

from spbench.errors import USAGE, Failure
from spbench.launch.launcher import Deadlines
from spbench.results.environment import gpus
from spbench.results.nvml import Device
from spbench.sweep.devices import least_capability, why_not_here
from spbench.sweep.plan import cells, job_of, shared_environment
from spbench.sweep.request import Request
from spbench.workload.case import MAX_RANKS, Case, Combination, Job
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
    monkeypatch.setattr("spbench.results.environment.open_nvml", lambda: nvml)
    assert least_capability(gpus()) == least
    assert Device(None, 0).compute_capability is None


def test_joined_ranks_have_one_environment() -> None:
    """It is what all cases ask for, or a refusal that says how to run them instead."""
    assert shared_environment([job("megatron-sp")] * 2, {}) == ONE_QUEUE
    assert shared_environment([job("dsp"), job("rsa")], {}) == {}
    both = [job("dsp"), job("megatron-sp"), job("dsp"), job("rsa")]
    with pytest.raises(Failure) as refused:
        shared_environment(both, {"CUDA_DEVICE_MAX_CONNECTIONS": "8"})
    assert refused.value.code == USAGE
    assert str(refused.value) == (
        "megatron-sp asked for CUDA_DEVICE_MAX_CONNECTIONS=1, dsp and rsa did not, and ranks that "
        "torchrun or srun started keep one environment for all cases; run them one after the other "
        "into the same --out, -s dsp,rsa and then -s megatron-sp, or let spbench start the ranks, "
        "one spbench a node"
    )


def test_joined_ranks_that_need_no_refusal() -> None:
    """The user has set it for all, which all rows say; the GPUs are Blackwell's; or it is a CPU."""
    both = [job("dsp"), job("megatron-sp")]
    assert shared_environment(both, ONE_QUEUE) == ONE_QUEUE
    assert shared_environment([job("dsp", (10, 0)), job("megatron-sp", (10, 0))], {}) == {}
    assert (
        shared_environment([job(name, (9, 0), "cpu") for name in ("dsp", "megatron-sp")], {}) == {}
    )


def test_a_run_has_an_end() -> None:
    """Too many launches are refused before any is planned, with what would work."""
    work = find("axes-2d", "verify")
    combinations = [Combination(workload=work, strategy="dsp", ranks=2)] * 10_000
    request = Request(combinations=combinations, device="cpu", launches=1000)
    with pytest.raises(Failure, match=r"10,000 cells x 1,000 launches are 10,000,000 .* at most"):
        cells(request)


def test_a_share_has_a_largest_group() -> None:
    """More ranks than are planned for are refused, with the most that are."""
    assert why_not_here(MAX_RANKS, "cpu", share=True) is None
    refused = why_not_here(MAX_RANKS + 1, "cpu", share=True)
    assert refused == f"too many for one group; use 1 to {MAX_RANKS}"
