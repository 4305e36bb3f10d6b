"""What is known to disturb times is said before the first launch."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pynvml
import pytest
from helpers.machines import fake_nvml

from spbench.doctor import forewarnings as module
from spbench.doctor import noise
from spbench.doctor.forewarnings import forewarnings
from spbench.doctor.noise import Load, load_if_busy
from spbench.results import machine
from spbench.results.machine import Allowed

BUSY = Load(cores=8, busy_cores=6.5, load_average=9.0, busiest=[("cc1plus (71)", 1.0)])


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight cores that nobody uses, without limits."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(noise, "load_if_busy", lambda: None)
    for place in (machine, module):
        monkeypatch.setattr(place, "allowed", Allowed)


def test_a_quiet_machine_needs_no_word() -> None:
    """Nor does a run that has no launch left."""
    assert forewarnings("cpu", [1, 2, 4], {}) == []
    assert forewarnings("cpu", [], {"OMP_NUM_THREADS": "3"}) == []


def test_a_busy_machine_is_said_with_who_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU; what others compute does not disturb a GPU."""
    monkeypatch.setattr(noise, "load_if_busy", lambda: BUSY)
    assert forewarnings("cpu", [2], {}) == [
        "warning: quiet: other processes use 6.5 of 8 cores; load average 9.0; end them or wait "
        "(cc1plus (71) uses 1.0); launches would be flagged noisy"
    ]
    monkeypatch.setattr(module, "_usable_gpus", list)
    assert forewarnings("cuda", [2], {}) == []


def test_gpus_that_others_use_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """And those that are held down."""
    for name, answer in vars(fake_nvml()).items():
        monkeypatch.setattr(pynvml, name, answer)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    idle, clocks = forewarnings("cuda", [3], {})
    assert idle.startswith("warning: gpus idle: GPU 1: 1.0 GiB in use, 45 % busy; GPU 2: 1 compute")
    assert clocks.startswith("warning: gpu clocks: GPU 2: thermal slowdown; let them cool")


def test_a_quota_below_the_cores_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (machine, module):
        monkeypatch.setattr(place, "allowed", lambda: Allowed(cores=0.5))
    (said,) = forewarnings("cpu", [1], {})
    assert said.startswith("warning: cores: ") and "quota is the time of 0.5; give the" in said


@pytest.mark.parametrize(
    ("asked", "ranks", "said"),
    [
        ("4", [2], []),
        ("", [2], []),
        (
            "1",
            [2],
            ["OMP_NUM_THREADS=1 is not used: each rank computes with its share of the cores"],
        ),
        ("4", [1, 2], ["(threads by ranks on a machine: 8 on 1, 4 on 2)"]),
        ("4,2", [2], ["OMP_NUM_THREADS=4,2 is not used"]),
    ],
)
def test_threads_that_are_not_used_are_named(asked: str, ranks: list[int], said: list[str]) -> None:
    """All strategies get the same share of the cores, whatever the user has set."""
    found = forewarnings("cpu", ranks, {"OMP_NUM_THREADS": asked})
    assert len(found) == len(said)
    assert all(words in sentence for words, sentence in zip(said, found, strict=True))


def test_variables_that_distort_are_named() -> None:
    """A planted fault has a sentence of its own."""
    environ = {"CUDA_LAUNCH_BLOCKING": "1", "NCCL_P2P_DISABLE": "0", "SPBENCH_FAULT": "x"}
    (said,) = forewarnings("cpu", [2], environ)
    assert said == (
        "warning: variables: CUDA_LAUNCH_BLOCKING set, which makes steps slower; unset "
        "CUDA_LAUNCH_BLOCKING"
    )


@pytest.mark.parametrize(("percent", "looks"), [(5.0, 0), (40.0, 1)])
def test_only_a_busy_machine_is_looked_at_for_long(
    monkeypatch: pytest.MonkeyPatch, percent: float, looks: int
) -> None:
    """A tenth of a second tells; who uses it takes half a second more."""
    seen: list[Callable[..., Any]] = []

    def load(sleep: Callable[[float], None]) -> Load:
        seen.append(sleep)
        return BUSY

    monkeypatch.setattr(noise, "load", load)
    monkeypatch.setattr(noise.psutil, "cpu_percent", lambda: percent)
    slept: list[float] = []
    assert load_if_busy(slept.append) == (BUSY if looks else None)
    assert (len(seen), slept) == (looks, [0.1])
