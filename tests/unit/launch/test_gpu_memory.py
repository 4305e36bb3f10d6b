"""Memory that killed processes leave on a GPU, and the kernel's count of its own kills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.golden import Golden

from spbench.launch.gpu_memory import TOLERANCE_BYTES, GpuMemory, memory_back, oom_kills
from spbench.launch.launcher import Deadlines, LauncherError, LaunchResult
from spbench.launch.local import LocalLauncher
from spbench.sweep.plan import cells, job_of
from spbench.sweep.request import Request, every
from spbench.workload.case import QUICK
from spbench.workload.catalogue import find

GIB = 2**30


def readings(*of_gpus: list[int]) -> Iterator[list[int]]:
    yield from of_gpus
    while True:
        yield of_gpus[-1]


def test_memory_that_comes_back_is_waited_for() -> None:
    """A little more than before counts as another process's."""
    slept: list[float] = []
    used = readings([9 * GIB, GIB], [3 * GIB, GIB], [GIB + TOLERANCE_BYTES, GIB])
    assert memory_back(lambda: next(used), [GIB, GIB], 10.0, slept.append) is None
    assert len(slept) == 2


def test_memory_that_stays_is_named(golden: Golden) -> None:
    """The sentence names the GPU, the size and what to do, after the given time."""
    slept: list[float] = []
    why = memory_back(lambda: [GIB, 5 * GIB], [GIB, GIB], 10.0, slept.append)
    golden(why)
    assert sum(slept) == 10.0


def test_what_does_not_answer_is_no_proof(golden: Golden) -> None:
    """A driver that does not answer after the kill is reported."""
    golden(memory_back(lambda: [], [GIB], 2.0, lambda _: None))


def test_the_kernels_kills_are_counted(tmp_path: Path) -> None:
    """All readable counters are added; a file that cannot be read counts none."""
    events, vmstat = tmp_path / "memory.events", tmp_path / "vmstat"
    events.write_text("low 0\noom 3\noom_kill 2\n")
    vmstat.write_text("nr_free_pages 7\noom_kill 1\n")
    assert oom_kills([events, vmstat]) == 3
    vmstat.write_bytes(b"\xff\xfe")
    assert oom_kills([tmp_path / "none", vmstat]) == 0
    assert oom_kills() >= 0


@pytest.mark.long
def test_a_hung_launch_that_leaves_memory_ends_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is checked before the next launch, not after each."""
    used = [GIB]
    name = "spbench.launch.gpu_memory.memory_back"
    monkeypatch.setattr(name, lambda now, before: f"{now()} {before}")
    memory = GpuMemory(lambda: list(used))
    launcher = LocalLauncher(tmp_path / "launcher.log", gpu_memory=memory, grace_s=1.0)
    work = find("axes-2d", "verify")
    (cell,) = cells(Request(combinations=every(work, ["dsp"], [2]), device="cpu", budget=QUICK))
    job = job_of(cell.case, Deadlines(launch_s=60.0, hang_s=10.0))
    try:
        fine = launcher.run(job, tmp_path / "fine")
        assert fine.ok
        hangs = {"environment": {"SPBENCH_FAULT": "hang@rank0:init"}, "hang_s": 1.5}
        hung = launcher.run(job.model_copy(update=hangs), tmp_path / "hung")
        assert isinstance(hung, LaunchResult) and hung.hung
        used[0] = 5 * GIB
        with pytest.raises(LauncherError, match=f"\\[{5 * GIB}\\] \\[{GIB}\\]"):
            launcher.run(job, tmp_path / "next")
        beside = LocalLauncher(tmp_path / "beside.log", gpu_memory=memory)
        with pytest.raises(LauncherError, match=f"\\[{5 * GIB}\\] \\[{GIB}\\]"):
            beside.run(job, tmp_path / "the other side's")
    finally:
        launcher.close()
