"""Whether another launch like the one under way would find memory."""

from __future__ import annotations

from pathlib import Path

import psutil

from spbench.results.cgroup import allowed
from spbench.results.safe_query import told

SPARE = 1.2
"""Times the peaks: two launches are never quite alike."""


def has_memory_for_another() -> bool:
    """Whether so much is free as all processes that this one has started held at their peaks.
    Pages that they share count for each."""
    peaks = sum(_peak_bytes(one.pid) for one in psutil.Process().children(recursive=True))
    free = psutil.virtual_memory().available
    limit = allowed().memory_bytes
    return SPARE * peaks < (free if limit is None else min(free, limit - peaks))


def _peak_bytes(pid: int) -> int:
    """Where the system does not tell, what it holds now; of one that has ended nothing."""
    return told(lambda: _high_water_bytes(pid)) or told(lambda: _held_bytes(pid)) or 0


def _high_water_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    (line,) = (line for line in text.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def _held_bytes(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)
