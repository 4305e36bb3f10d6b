"""Compares DSP's switch with a bare all_to_all_single of the same bytes: at most 1.3 times as long.

    python benchmarks/switch.py [--ranks 2,4] [--repeats 60]
    python benchmarks/switch.py --host [--ranks 8,64,128]

The switch is what the model calls: pack, all-to-all, unpack, without gradients. The bare
call moves a flat buffer of the same bytes with the same split sizes on the same group. The
two alternate; the ratio of the slowest rank is taken pair by pair, and the median counts. The batch
is 1; time to space and space to time are both measured.

``--host``: what a switch of q, k and v costs the host alone, with NCCL's packing and no transfer.
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
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from spbench.comm.collectives import Collectives, make_whole
from spbench.comm.group import ProcessGroup
from spbench.comm.packing import Cut, Cuts, pack, splits, unpacked
from spbench.comm.transport import DONE, Fill, Handle, Several, Transport
from spbench.workload.mesh import Groups
from spbench.workload.sharding import Shard

SHAPE = (1, 16, 1024, 768)  # 48 MiB in float32
LIMIT = 1.3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default=None)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--host", action="store_true")
    flags = parser.parse_args()
    flags.ranks = flags.ranks or ("8,64,128" if flags.host else "2,4")
    if flags.host:
        return show_host_costs([int(ranks) for ranks in flags.ranks.split(",")], flags.repeats)
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


class PackOnly(Transport):
    """Packs and unpacks as NCCL's transport does, and moves nothing."""

    def _part(self, groups: Groups) -> PackOnly:
        (members,) = (group for group in groups if self.rank in group)
        return PackOnly(members.index(self.rank), len(members))

    def _all_to_all(self, received: Cuts, sent: Cuts) -> Handle:
        _, unpack = unpacked(received)
        pack(sent), splits(received), splits(sent)
        return Several([], [unpack])

    def _all_gather(self, received: Cut, sent: Tensor) -> Handle:
        return DONE

    def _reduce_scatter(self, received: Tensor, sent: Cut, fill: Fill) -> Handle:
        return DONE

    def _all_reduce(self, x: Tensor) -> Handle:
        return DONE

    def _shift(self, received: Tensor, sent: Tensor) -> Handle:
        return DONE

    def _send(self, x: Tensor, to: int) -> Handle:
        return DONE

    def _receive(self, x: Tensor, source: int) -> Handle:
        return DONE


def show_host_costs(by_ranks: Sequence[int], repeats: int) -> int:
    """Numbers of ranks take turns; the median of ``repeats`` rounds of a hundred switches."""
    torch.set_num_threads(1)
    longest = max(by_ranks)
    xs = [torch.zeros(1, 2, longest, 4) for _ in range(3)]
    times: dict[int, list[float]] = {ranks: [] for ranks in by_ranks}
    for _ in range(repeats):
        for ranks, each in times.items():
            comm = Collectives(PackOnly(0, ranks))
            before, after = Shard.even(1, 2 * ranks, ranks), Shard.even(2, longest, ranks)
            start = time.perf_counter()
            for _ in range(100):
                make_whole(comm.transport, xs, before, [after] * 3)
            each.append((time.perf_counter() - start) * 1e4)
    for ranks, each in times.items():
        print(f"{ranks} ranks: {statistics.median(each):.0f} us of the host for q, k and v")
    return 0


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
        make_whole(comm.transport, [x], old, [new])

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
