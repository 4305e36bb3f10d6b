"""Shows what heads cost that do not divide: 14 of 128 on 4 ranks, Ulysses over USP in groups of 2.

    OMP_NUM_THREADS=1 python benchmarks/uneven_heads.py [--length 2048] [--pairs 31]

Ulysses' slowest rank has 4 heads, where groups of 2 leave each rank what 3.5 heads are: 8/7 of the
work, which ``tests/unit/strategies/test_work_of_ranks.py`` counts. Here it is processor time: the
kernels of attention that a step of rank 0, the slowest, calls forward and backward, called again
with the same operands. Strategies in turn, ABBA; the median of pairs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from spbench.comm.fake import silent_transports
from spbench.layers.dispatch_modes import WatchingMode
from spbench.strategies.registry import load
from spbench.worker.step import Step
from spbench.workload.workload import Workload

RANKS, HEADS, HEAD_DIM = 4, 14, 128
STRATEGIES = ("ulysses", "usp:ulysses=2:across=kv-gather")
RIGHT, WITHIN = 8 / 7, 0.03


def workload(length: int) -> Workload:
    return Workload.model_validate(
        {
            "name": "14 heads",
            "axes": {"sequence": length},
            "hidden": 3 * HEADS * HEAD_DIM,
            "heads": HEADS,
            "head_dim": HEAD_DIM,
            "depth": 1,
            "block": [{"attention": "sequence", "alone": True}],
        }
    )


class Kernels(WatchingMode):
    """Keeps the calls of kernels of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], object]] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "attention" in op.__name__:
            self.calls.append(partial(op, *args, **(kwargs or {})))
        return op(*args, **(kwargs or {}))

    def seconds(self) -> float:
        """Processor seconds of all of them, called once more."""
        start = time.process_time()
        for call in self.calls:
            call()
        return time.process_time() - start


def kernels_of(strategy: str, work: Workload) -> Kernels:
    """What rank 0 calls in a step with silent collectives."""
    loaded, alone = load(strategy), silent_transports(0, RANKS)
    step = Step(loaded.on(loaded.flattened(work), RANKS), alone, torch.device("cpu"))
    with Kernels() as kept:
        step(*step.seeded_inputs())
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--pairs", type=int, default=31)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    work = workload(flags.length)
    kernels = {name: kernels_of(name, work) for name in STRATEGIES}
    times: dict[str, list[float]] = {name: [] for name in STRATEGIES}
    for i in range(flags.pairs):
        for name in STRATEGIES[:: 1 if i % 2 else -1]:
            times[name].append(kernels[name].seconds())
    by_heads, by_groups = times.values()
    ratios = [a / b for a, b in zip(by_heads, by_groups, strict=True)]
    low, ratio, high = statistics.quantiles(ratios, n=4)
    print(
        f"{flags.length} positions: ulysses {statistics.median(by_heads):.3f} s, "
        f"usp {statistics.median(by_groups):.3f} s, ratio {ratio:.3f} "
        f"(quartiles {low:.3f} to {high:.3f}); of the quickest calls "
        f"{min(by_heads) / min(by_groups):.3f}"
    )
    print(f"8/7 = {RIGHT:.3f}, within {WITHIN:.0%}: {abs(ratio / RIGHT - 1) <= WITHIN}")
    return 0 if abs(ratio / RIGHT - 1) <= WITHIN else 1


if __name__ == "__main__":
    sys.exit(main())
