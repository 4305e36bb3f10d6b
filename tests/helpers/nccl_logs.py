"""Output of nccl-tests with invented hosts and times, in the form of its versions."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

TESTS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv")
SIZES = tuple(2**power for power in range(10, 31, 2))
"""As ``-b 1K -e 1G -f 4``."""
COLUMNS = "#       size         count      type   redop    root  "
HALF = "   time   algbw   busbw  #wrong  "
RANK = "#  Rank {rank:2d} Group {group:2d} Pid {pid} on {host:>10s} device {device:2d} [{bus}] H100"
Seconds = Callable[[float], float]


def factor(test: str, ranks: int) -> float:
    """busbw over algbw."""
    return {"all_reduce": 2 * (ranks - 1) / ranks, "sendrecv": 1.0}.get(test, (ranks - 1) / ranks)


def at_rate(gb_per_s: float, latency_us: float) -> Seconds:
    """Seconds of what a rank sends, in bytes."""
    return lambda sent: latency_us / 1e6 + sent / gb_per_s / 1e9


def text(
    test: str,
    ranks: int = 8,
    seconds: Seconds = at_rate(360.0, 20.0),  # noqa: B008  # a function without state
    *,
    hosts: Sequence[str] = ("node-a",),
    devices: Sequence[int] = (),
    sizes: Sequence[int] = SIZES,
    is_named: bool = True,
    wrong: tuple[str, str] = ("0", "0"),
    redop: str = "none",
    groups: int = 1,
    listed: Sequence[int] | None = None,
) -> str:
    """What one run prints. ``seconds``: of what one rank sends. ``wrong``: errors out of place and
    in place; ``listed``: the ranks in '# Rank' lines, all by default."""
    per_host = ranks // len(hosts)
    places = devices or [rank % per_host for rank in range(ranks)]
    seats = [
        RANK.format(
            rank=rank,
            group=rank % groups,
            pid=4000 + rank,
            host=hosts[rank // per_host],
            device=places[rank],
            bus=f"{16 + rank:02x}",
        )
        for rank in range(ranks)
        if listed is None or rank in listed
    ]
    rows = [_row(size, seconds, factor(test, ranks), wrong, redop) for size in sizes]
    named = [f"# Collective test starting: {test}_perf"] if is_named else []
    lines = [
        *(
            ["# nccl-tests version 2.18.3 nccl-headers=23003 nccl-library=23003"]
            if is_named
            else []
        ),
        *named,
        "# nThread 1 nGpus 1 minBytes 1024 maxBytes 1073741824 step: 4(factor) warmup iters: 5",
        "#",
        "# Using devices",
        *seats,
        "#",
        COLUMNS + HALF + HALF,
        *rows,
        "# Out of bounds values : 0 OK",
        "# Avg bus bandwidth    : 1",
        "#",
    ]
    return "\n".join(lines) + "\n"


def _row(size: int, seconds: Seconds, of_bus: float, wrong: tuple[str, str], redop: str) -> str:
    us = 1e6 * seconds(size * of_bus)
    algbw = size / us / 1e3
    times = f"{us:10.2f}  {algbw:8.2f}  {algbw * of_bus:8.2f}"
    halves = "  ".join(f"{times}  {each:>6}" for each in wrong)
    return f"{size:12d}  {size // 4:12d}     float  {redop:>6}      -1  {halves}"


def as_json(test: str, ranks: int = 8, **more: Any) -> str:
    """What ``-J FILE`` writes, with other ``nwrong`` or keys of the first result in ``more``."""
    of_bus, seconds = factor(test, ranks), at_rate(360.0, 20.0)
    results = []
    for size in SIZES:
        us = 1e6 * seconds(size * of_bus)
        half = {"time": us, "alg_bw": size / us / 1e3, "bus_bw": size * of_bus / us / 1e3}
        results.append({"size": size, "type": "float", "out_of_place": {**half, "nwrong": 0.0}})
    results[0] |= more
    devices = [
        {"rank": rank, "group": 0, "hostname": "node-a", "device": rank} for rank in range(ranks)
    ]
    return json.dumps({"version": 3, "config": {"devices": devices}, "results": results}, indent=1)


def write(folder: Path, name: str, *runs: str) -> Path:
    """A file of these runs, one after the other."""
    path = folder / name
    path.write_text("\n".join(runs), encoding="utf-8")
    return path
