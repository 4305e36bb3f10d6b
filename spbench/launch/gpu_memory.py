"""After processes were killed: is what they held free again, and did the kernel do the killing?"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Self, final

from spbench.results.environment import gpu_memory
from spbench.workload.case import Case

SHOWN = "CUDA_VISIBLE_DEVICES"
TOLERANCE_BYTES = 256 * 2**20
"""What a desktop or another tenant may take meanwhile."""
WAIT_S = 60.0
LOOK_S = 0.5
OOM_COUNTERS = (Path("/sys/fs/cgroup/memory.events"), Path("/proc/vmstat"))


@final
class GpuMemory:
    """The memory of the GPUs that launches run on, one after another: what was in use before the
    first of them, and whether the last one was killed."""

    def __init__(self, used: Callable[[], list[int]]) -> None:
        """``used``: bytes in use on each GPU."""
        self._used, self._before = used, used()
        self._killed = False

    @classmethod
    def of(cls, cases: Iterable[Case]) -> Self | None:
        """None where they run on CPUs alone."""
        on_gpus = any(case.device == "cuda" for case in cases)
        return cls(partial(gpu_memory, os.environ.get(SHOWN))) if on_gpus else None

    def ended(self, *, ok: bool) -> None:
        """A launch has."""
        self._killed = self._killed or not ok

    def why_not(self) -> str | None:
        """Waits for what a killed launch held; why the next one cannot begin, if it cannot."""
        why_not = memory_back(self._used, self._before) if self._killed else None
        self._killed = why_not is not None
        return why_not


def memory_back(
    used: Callable[[], Sequence[int]],
    before: Sequence[int],
    wait_s: float = WAIT_S,
    sleep: Callable[[float], None] = time.sleep,
) -> str | None:
    """Waits until each GPU uses no more than before; else which does, how much, and what helps."""
    held: list[tuple[int, int]] = []
    for _ in range(round(wait_s / LOOK_S)):
        now = used()
        if len(now) < len(before):
            sleep(LOOK_S)
            continue
        held = [
            (gpu, after - earlier)
            for gpu, (after, earlier) in enumerate(zip(now, before, strict=False))
            if after > earlier + TOLERANCE_BYTES
        ]
        if not held:
            return None
        sleep(LOOK_S)
    if not held:
        return "NVML tells no longer what is held of the GPUs' memory; see what 'nvidia-smi' says"
    gpu, more = held[0]
    return (
        f"{round(more / 2**20):,} MiB of GPU {gpu} are still held {wait_s:g} s after its "
        f"ranks were killed: a measurement beside them would be worth nothing. See what "
        f"'nvidia-smi' lists, end it, and start again; a run goes on with the same --out"
    )


def oom_kills(counters: Sequence[Path] = OOM_COUNTERS) -> int:
    """How many processes the kernel has killed for want of memory, as far as it tells."""
    found = [0]
    for path in counters:
        with contextlib.suppress(OSError, ValueError):
            lines = dict(line.split() for line in path.read_text(encoding="ascii").splitlines())
            found.append(int(lines.get("oom_kill", 0)))
    return sum(found)
