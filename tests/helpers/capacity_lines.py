"""Lines of capacity.csv as a command would write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas

from spbench.results.capacities import COLUMNS, read_capacities, write_capacities


def capacity_line(strategy: str, ranks: int, largest: int | None, **more: Any) -> dict[str, Any]:
    """The largest batch of a workload on so many ranks, by dry runs."""
    known: dict[str, Any] = {
        "workload": "dsp-720m",
        "axes": "time=64xspace=4096",
        "dtype": "bfloat16",
        "mode": "train",
        "checkpointing": "full",
        "optimizer": "",
        "guidance": "",
        "grows": "batch",
        "budget_bytes": 73_600_000_000,
        "kind": "dry_run",
        "gpu": "",
        "strategy": strategy,
        "ranks": ranks,
        "largest": largest,
        "peak_bytes": 73 * 10**9,
        "tries": 5,
        "torch": "2.11.0",
        "git_commit": "0123456789abcdef",
        "started_utc": "2030-01-01T00:00:00Z",
    }
    return {**dict.fromkeys(COLUMNS), "why_not": "", **known, **more}


def capacities_of(lines: Sequence[dict[str, Any]], folder: Any) -> pandas.DataFrame:
    """The lines as they are read again."""
    write_capacities(lines, folder)
    return read_capacities(folder)
