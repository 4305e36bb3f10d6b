"""Compares spbench's timed step with the same step in a bare hand-written loop: at most 1.02.

    python benchmarks/harness_overhead.py [--strategy dsp] [--ranks 2] [--rounds 9]

Both run in the same processes, on the same process group, model and inputs. The bare loop is what a
user would write around that model: a barrier, a clock, forward, backward, gradient all-reduce. So
the ratio is the cost of being timed by spbench, not the cost of its model. The rank's heartbeat is
written as in a launch; in the bare loop by transfers alone. Blocks of steps alternate between the
two. The ratio is taken block by block, for the slowest rank, so that drift cancels; the median over
blocks counts.
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

from spbench.comm.group import ProcessGroup
from spbench.results.heartbeat import Heartbeat, heartbeat_path
from spbench.strategies.registry import load
from spbench.worker.observer import Observer
from spbench.worker.step import Step
from spbench.worker.timer import Stopwatch
from spbench.workload.catalogue import find

LIMIT = 1.02
STEPS = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategy", default="dsp")
    parser.add_argument("--workload", default="open-sora-1.2-480p-small")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        words = (flags.ranks, port, flags.strategy, flags.workload, flags.rounds, folder)
        mp.start_processes(rank_main, words, flags.ranks, start_method="forkserver")
        by_rank = [json.loads((Path(folder) / f"{r}.json").read_text()) for r in range(flags.ranks)]
    ours, bare = (
        [
            statistics.median(map(max, zip(*(times[name][i] for times in by_rank), strict=True)))
            for i in range(flags.rounds)
        ]
        for name in ("ours", "bare")
    )
    ratios = [a / b for a, b in zip(ours, bare, strict=True)]
    ratio = statistics.median(ratios)
    print(
        f"{flags.strategy} on {flags.ranks} ranks: spbench {statistics.median(ours):.1f} ms, "
        f"bare loop {statistics.median(bare):.1f} ms, ratio {ratio:.3f} "
        f"(blocks {min(ratios):.3f} to {max(ratios):.3f})"
    )
    print(f"limit {LIMIT}: {'ok' if ratio <= LIMIT else 'TOO SLOW'}")
    return 0 if ratio <= LIMIT else 1


def rank_main(
    rank: int, ranks: int, port: int, strategy: str, workload: str, rounds: int, folder: str
) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    heartbeat = Heartbeat(heartbeat_path(Path(folder), rank))
    group = ProcessGroup(torch.device("cpu"), 120.0, heartbeat)
    group.warm()
    observer = Observer(heartbeat=heartbeat)
    loaded = load(strategy)
    work = loaded.flattened(find(workload))
    step = Step(loaded.on(work, group.size), group.transports, group.device, observer=observer)
    inputs, cotangent = step.seeded_inputs()
    watch = Stopwatch(group=group, now_s=time.perf_counter)

    def ours() -> list[float]:
        return watch.time(lambda: step(inputs, cotangent), STEPS)

    def bare() -> list[float]:
        times = []
        for _ in range(STEPS):
            dist.barrier()
            start = time.perf_counter()
            inputs.forget_gradients()
            step.model.zero_grad(set_to_none=True)
            out = step.model(inputs)
            out.backward(cotangent)
            assert step.gradients is not None
            step.gradients.finish()
            times.append((time.perf_counter() - start) * 1e3)
        return times

    blocks: dict[str, list[list[float]]] = {"ours": [], "bare": []}
    for i in range(-1, rounds):
        for name, run in (("ours", ours), ("bare", bare))[:: 1 if i % 2 else -1]:
            times = run()
            if i >= 0:
                blocks[name].append(times)
    (Path(folder) / f"{rank}.json").write_text(json.dumps(blocks))
    group.close()


if __name__ == "__main__":
    sys.exit(main())
