"""After processes were killed: is what they held free again, and did the kernel do the killing?"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

TOLERANCE_BYTES = 256 * 2**20
"""What a desktop or another tenant may take meanwhile."""
WAIT_S = 60.0
LOOK_S = 0.5
OOM_COUNTERS = (Path("/sys/fs/cgroup/memory.events"), Path("/proc/vmstat"))


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
        f"'nvidia-smi' lists, end it, and go on with the same --out"
    )


def oom_kills(counters: Sequence[Path] = OOM_COUNTERS) -> int:
    """How many processes the kernel has killed for want of memory, as far as it tells."""
    found = [0]
    for path in counters:
        with contextlib.suppress(OSError, ValueError):
            lines = dict(line.split() for line in path.read_text(encoding="ascii").splitlines())
            found.append(int(lines.get("oom_kill", 0)))
    return sum(found)
