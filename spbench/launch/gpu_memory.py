"""What killed ranks leave: memory of GPUs that does not come back, and the kernel's own kills."""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Self, final

from spbench.results.machine import VISIBLE, gpu_memory
from spbench.workload.case import Case

TOLERANCE_BYTES = 256 * 2**20
"""How much a desktop or another tenant may take meanwhile."""
WAIT_S = 60.0
LOOK_S = 0.5
OOM_COUNTERS = (Path("/sys/fs/cgroup/memory.events"), Path("/proc/vmstat"))


@final
class GpuMemory:
    """How much memory of the GPUs was in use before the first launch, and whether one failed."""

    def __init__(self, used: Callable[[], list[int]]) -> None:
        """``used``: bytes in use on each GPU."""
        self._used, self._before = used, used()
        self._failed = False

    @classmethod
    def of(cls, cases: Iterable[Case]) -> Self | None:
        """None for cases that run on CPUs alone."""
        on_gpus = any(case.device == "cuda" for case in cases)
        return cls(partial(gpu_memory, os.environ.get(VISIBLE))) if on_gpus else None

    def launch_ended(self, *, ok: bool) -> None:
        """Not ``ok``: its ranks may have been killed."""
        self._failed = self._failed or not ok

    def why_not(self) -> str | None:
        """Waits for the memory of a failed launch; why the next one cannot begin, or None."""
        why_not = memory_back(self._used, self._before) if self._failed else None
        self._failed = why_not is not None
        return why_not


def memory_back(
    used: Callable[[], Sequence[int]],
    before: Sequence[int],
    wait_s: float = WAIT_S,
    sleep: Callable[[float], None] = time.sleep,
) -> str | None:
    """Waits until each GPU uses no more than before: None, or a sentence of which uses more.

    Parameters
    ----------
    used:
        Bytes in use on each GPU now; fewer numbers where NVML does not answer for all.
    before:
        Bytes in use on each GPU before the first launch.
    wait_s:
        Seconds to wait at most, asking every half second.
    sleep:
        Waits for so many seconds.
    """
    held: dict[int, int] = {}
    for _ in range(round(wait_s / LOOK_S)):
        more = [after - earlier for after, earlier in zip(used(), before, strict=False)]
        if len(more) == len(before):  # else NVML does not answer for all of them
            # The last look that was complete is what the sentence tells of.
            held = {gpu: size for gpu, size in enumerate(more) if size > TOLERANCE_BYTES}
            if not held:
                return None
        sleep(LOOK_S)
    if not held:
        return "NVML does not tell any more how much GPU memory is in use; see 'nvidia-smi'"
    gpu, held_bytes = next(iter(held.items()))
    return (
        f"{round(held_bytes / 2**20):,} MiB of GPU {gpu} are still in use {wait_s:g} s after its "
        f"ranks were killed, which would disturb the next launch. End the processes that "
        f"'nvidia-smi' lists, and start again"
    )


def oom_kills(counters: Sequence[Path] = OOM_COUNTERS) -> int:
    """How many processes the kernel has killed for want of memory, as far as it tells."""
    counts = [0]
    for path in counters:
        with contextlib.suppress(OSError, ValueError):
            # Each line is a name and a number: "oom_kill 3".
            lines = dict(line.split() for line in path.read_text(encoding="ascii").splitlines())
            counts.append(int(lines.get("oom_kill", 0)))
    return sum(counts)
