"""spbench's strategies against other packages' own code: time, memory and the floor, in one launch.

    python benchmarks/vendors.py [-g 2,4] [--rounds 7] [--only ulysses,ring]

Both of a pair run in the same processes, on the same group and inputs, in rounds ABBA; a round's
time is the slowest rank's, and a ratio is one round's, ours over theirs: its median, and extremes.
Peak memory is of a step of its own, of all storages alive. The floor is what a step cannot go
below: attention of a rank's share, the bare sends of the bytes that are counted, and one pass over
q, k, v, and the result each way. Times are refused where others use the machine.

Exit code: 0; 6 where others use the machine, or a package is missing.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import psutil

from spbench.errors import DONE, UNFIT
from spbench.strategies.registry import load
from spbench.workload.catalogue import load_text
from spbench.workload.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor

    from spbench.comm.group import Group
    from spbench.model.inputs import Inputs
    from spbench.worker.step import Step

SHAPE = """\
version: 1
name: {name}
source: "the attention along time alone, every place of a frame a sample"
axes: {{time: 16}}
hidden: 1536
heads: 8
head_dim: 64
depth: 1
block: [{{attention: time, alone: true}}]
batch: {places}
dtype: float32
mode: train
checkpointing: none
"""
BLOCK = """\
version: 1
name: block
source: "one block over time and space"
axes: {time: 16, space: 256}
hidden: 512
heads: 8
depth: 1
block: [{attention: space}, {attention: time}, {mlp: 4}]
batch: 1
dtype: float32
mode: train
checkpointing: none
"""
TEMPORAL, SMALL = SHAPE.format(name="temporal", places=256), SHAPE.format(name="s16", places=16)
PAIRS = (
    ("ulysses", "deepspeed-ulysses", TEMPORAL, (2, 4)),
    ("ulysses", "deepspeed-ulysses", SMALL, (2,)),
    ("ring", "ring-flash-attn", TEMPORAL, (2, 4)),
    ("kv-gather", "torch-kv-gather", TEMPORAL, (2, 4)),
    ("usp:ulysses=2", "yunchang-usp:ulysses=2", TEMPORAL, (4,)),
    ("megatron-sp", "megatron-core-sp", BLOCK, (2, 4)),
    ("ulysses", "deepspeed-ulysses", BLOCK, (2, 4)),
)
"""Ours, theirs, the workload, and the numbers of ranks."""
BUSY = 0.15
"""Processors that others may use."""
ROUND_S = 0.25
"""A round has as many steps as take about this long."""
HEAD = ("ours", "theirs", "workload", "ranks", "ratio", "extremes", "ms", "peak MiB", "over floor")


@dataclass(frozen=True, kw_only=True)
class Found:
    """What one rank measured of a pair; times are the slowest rank's."""

    ours_ms: tuple[float, ...]
    theirs_ms: tuple[float, ...]
    peaks: tuple[int, int]
    floor_ms: float | None
    """None: of a block, whose products are not in it."""


def timed(call: Callable[[], object], times: int, group: Group) -> float:
    """Milliseconds of one of so many calls, of the slowest rank."""
    group.barrier()
    began = time.perf_counter()
    for _ in range(times):
        call()
    (slowest,) = group.largest([time.perf_counter() - began])
    return 1e3 * slowest / times


def measure(ours: str, theirs: str, text: str, rounds: int, group: Group) -> Found:
    """Both in turn, in rounds of as many steps."""
    from spbench.worker.step import Step

    work = load_text(text, "this file")
    calls, peaks = [], []
    for name in (ours, theirs):
        strategy = load(name)
        own = strategy.flattened(work)
        step = Step(strategy.on(own, group.size), group.transports, group.device)
        inputs = step.seeded_inputs()
        calls.append(partial(step, *inputs))
        calls[-1]()
        peaks.append(peak_bytes(step, inputs))
    first = [timed(call, 3, group) for call in calls]
    times = max(1, round(1e3 * ROUND_S / max(first)))
    taken: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for which in (0, 1, 1, 0) if number % 2 else (1, 0, 0, 1):
            taken[which].append(timed(calls[which], times, group))
    both = [tuple(map(statistics.mean, zip(one[::2], one[1::2], strict=True))) for one in taken]
    alone = work.is_attention_alone
    return Found(
        ours_ms=both[0],
        theirs_ms=both[1],
        peaks=(peaks[0], peaks[1]),
        floor_ms=floor_ms(work, times, rounds, group) if alone else None,
    )


def peak_bytes(step: Step, inputs: tuple[Inputs, Tensor]) -> int:
    """The most that is alive during a step, beyond weights and inputs."""
    from spbench.worker.memory import LiveStorages

    given, cotangent = inputs
    with LiveStorages([*step.model.parameters(), given.x, cotangent]) as seen:
        before = seen.live_bytes
        step(given, cotangent)
    return seen.peak_bytes - before


def floor_ms(work: Workload, times: int, rounds: int, group: Group) -> float:
    """Attention of 1 / N of the heads, sends of what ulysses sends, one pass over its tensors."""
    import torch
    from torch import distributed as dist

    from spbench.layers.kernels import kernel

    shape = work.batch, work.heads // group.size, work.tokens, work.head_size
    q, k, v, grad = (torch.randn(shape, requires_grad=True) for _ in range(4))

    def attention() -> None:
        kernel(q, k, v, is_causal=False).backward(grad.detach())

    part = torch.randn(q.numel() // group.size)
    coming = [torch.empty_like(part) for _ in range(group.size)]

    def sends() -> None:
        for _ in range(8):  # q, k, v and the result, there and back
            ops = []
            for hop in range(1, group.size):
                to, source = (group.rank + hop) % group.size, (group.rank - hop) % group.size
                ops.append(dist.P2POp(dist.irecv, coming[hop], source))
                ops.append(dist.P2POp(dist.isend, part, to))
            for request in dist.batch_isend_irecv(ops):
                request.wait()

    into, of = torch.empty_like(grad), grad.detach()

    def passes() -> None:
        for _ in range(8):
            into.detach().copy_(of)

    calls = attention, sends, passes
    for call in calls:
        call()
    return sum(
        statistics.median(timed(call, times, group) for _ in range(rounds)) for call in calls
    )


def rank_main(
    ranks: int, port: int, pairs: Sequence[tuple[str, str, str]], rounds: int, rank: int
) -> list[Found]:
    """The process of one rank: every pair in turn."""
    import torch

    from spbench.comm.group import ProcessGroup
    from spbench.worker.memory import keep_freed_memory

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    keep_freed_memory()
    group = ProcessGroup(torch.device("cpu"), 120.0)
    found = [measure(*pair, rounds, group) for pair in pairs]
    group.close()
    return found


def measured_on(ranks: int, rounds: int, only: Sequence[str]) -> list[tuple[str, ...]]:
    """The rows of so many ranks."""
    pairs = [
        (ours, theirs, text)
        for ours, theirs, text, counts in PAIRS
        if ranks in counts and (not only or ours.partition(":")[0] in only)
    ]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["spbench.launch.preload"])  # torch, once for all ranks
    with ProcessPoolExecutor(ranks, context) as processes:
        run = partial(rank_main, ranks, port, pairs, rounds)
        by_rank = list(processes.map(run, range(ranks)))
    return [
        row(pair, ranks, each) for pair, each in zip(pairs, zip(*by_rank, strict=True), strict=True)
    ]


def row(pair: tuple[str, str, str], ranks: int, by_rank: Sequence[Found]) -> tuple[str, ...]:
    """What the ranks found, as the table shows it."""
    found = by_rank[0]
    ratios = [a / b for a, b in zip(found.ours_ms, found.theirs_ms, strict=True)]
    ours, theirs = statistics.median(found.ours_ms), statistics.median(found.theirs_ms)
    peaks = [max(one.peaks[which] for one in by_rank) / 2**20 for which in (0, 1)]
    floor = found.floor_ms
    return (
        *(pair[0], pair[1], load_text(pair[2], "this file").name, str(ranks)),
        f"{statistics.median(ratios):.2f}",
        f"{min(ratios):.2f}-{max(ratios):.2f}",
        f"{ours:.1f} : {theirs:.1f}",
        f"{peaks[0]:.0f} : {peaks[1]:.0f}",
        "" if floor is None else f"{ours / floor:.2f} : {theirs / floor:.2f}",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-g", "--gpus", default="2,4", help="numbers of ranks")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="names of ours, with commas")
    parser.add_argument("--busy-too", action="store_true", help="times say little then")
    asked = parser.parse_args()
    others = psutil.cpu_percent(2.0) / 100 * (os.cpu_count() or 1)
    if others > BUSY and not asked.busy_too:
        print(f"others use {others:.1f} processors: times would say little", file=sys.stderr)
        return UNFIT
    only = [name for name in asked.only.split(",") if name]
    for _, theirs, text, counts in PAIRS:
        declined = load(theirs).declines(load_text(text, "this file"), counts[0])
        if declined:
            print(declined, file=sys.stderr)
            return UNFIT
    rows = [HEAD]
    for ranks in map(int, asked.gpus.split(",")):
        rows += measured_on(ranks, asked.rounds, only)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)))
    return DONE


if __name__ == "__main__":
    sys.exit(main())
