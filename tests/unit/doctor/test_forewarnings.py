"""What is known to disturb times is said before the first launch."""

from __future__ import annotations

import os

import pynvml
import pytest
from helpers.golden import Golden
from helpers.machines import fake_nvml

from spbench.doctor.examine import forewarnings
from spbench.results import machine
from spbench.results.machine import Allowed


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight cores without limits."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(machine, "allowed", Allowed)


def test_a_quiet_machine_needs_no_word() -> None:
    """Nor does a run that has no launch left."""
    assert forewarnings("cpu", [1, 2, 4], {}) == []
    assert forewarnings("cpu", [], {"OMP_NUM_THREADS": "3"}) == []


def test_gpus_that_others_use_are_said(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    """And those that are held down."""
    for name, answer in vars(fake_nvml()).items():
        monkeypatch.setattr(pynvml, name, answer)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    golden("\n".join(forewarnings("cuda", [3], {})))


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


def test_variables_that_distort_are_named(golden: Golden) -> None:
    """A planted fault has a sentence of its own."""
    environ = {"CUDA_LAUNCH_BLOCKING": "1", "NCCL_P2P_DISABLE": "0", "SPBENCH_FAULT": "x"}
    (said,) = forewarnings("cpu", [2], environ)
    golden(said)
