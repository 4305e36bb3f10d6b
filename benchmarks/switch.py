"""Compares DSP's switch with a bare all_to_all_single of the same bytes: at most 1.3 times as long.

    python benchmarks/switch.py [--ranks 2,4] [--repeats 60]

The switch is what the model calls: pack, all-to-all, unpack, without gradients. The bare
call moves a flat buffer of the same bytes with the same split sizes on the same group. The
two alternate; the ratio of the slowest rank is taken pair by pair, and the median counts. The batch
is 1; time to space and space to time are both measured.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from spbench.comm.collectives import Collectives
from spbench.comm.group import ProcessGroup
from spbench.workload.sharding import Shard

SHAPE = (1, 16, 1024, 768)  # 48 MiB in float32
LIMIT = 1.3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--repeats", type=int, default=60)
    flags = parser.parse_args()
    worst = 0.0
    for ranks in map(int, flags.ranks.split(",")):
        for way, (before, after) in {"time -> space": (1, 2), "space -> time": (2, 1)}.items():
            ratios, switch_ms = measure(ranks, before, after, flags.repeats)
            ratio = statistics.median(ratios)
            worst = max(worst, ratio)
            low, _, high = statistics.quantiles(ratios, n=4)
            print(
                f"{ranks} ranks, {way}: switch / bare all-to-all = {ratio:.2f} "
                f"(quartiles {low:.2f} to {high:.2f}; switch {statistics.median(switch_ms):.1f} ms)"
            )
    print(f"worst {worst:.2f}, limit {LIMIT}: {'ok' if worst <= LIMIT else 'TOO SLOW'}")
    return 0 if worst <= LIMIT else 1


def measure(ranks: int, before: int, after: int, repeats: int) -> tuple[list[float], list[float]]:
    """The slowest rank's ratio of each pair, and its milliseconds in the switch."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        words = (ranks, port, before, after, repeats, folder)
        mp.start_processes(rank_main, words, ranks, start_method="forkserver")
        by_rank = [json.loads((Path(folder) / f"{r}.json").read_text()) for r in range(ranks)]
    switch = [max(times) for times in zip(*(rank["switch"] for rank in by_rank), strict=True)]
    bare = [max(times) for times in zip(*(rank["bare"] for rank in by_rank), strict=True)]
    return [a / b for a, b in zip(switch, bare, strict=True)], switch


def rank_main(
    rank: int, ranks: int, port: int, before: int, after: int, repeats: int, folder: str
) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    group = ProcessGroup(torch.device("cpu"), 120.0)
    group.warm()
    comm = Collectives(group.transports.strategy)
    old = Shard.even(before, SHAPE[before], ranks)
    new = Shard.even(after, SHAPE[after], ranks)
    x = comm.take(torch.randn(SHAPE), old).contiguous()
    sent = x.clone().view(-1)
    received = torch.empty_like(sent)
    splits = [sent.numel() // ranks] * ranks

    def switch() -> None:
        comm.exchange([x], [old], [new])

    def bare() -> None:
        dist.all_to_all_single(received, sent, splits, splits)

    times: dict[str, list[float]] = {"switch": [], "bare": []}
    for i in range(-3, repeats):
        for name, run in (("switch", switch), ("bare", bare))[:: 1 if i % 2 else -1]:
            group.barrier()
            start = time.perf_counter()
            run()
            if i >= 0:
                times[name].append((time.perf_counter() - start) * 1e3)
    (Path(folder) / f"{rank}.json").write_text(json.dumps(times))
    group.close()


if __name__ == "__main__":
    sys.exit(main())
