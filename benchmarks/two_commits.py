"""Compares the time of a step in this tree with that in another checkout, in turn.

    git worktree add --detach /tmp/base 0e84c56
    python benchmarks/two_commits.py /tmp/base [-s rsa] [--ranks 2] [--pairs 7] [--set batch=2]
    python benchmarks/two_commits.py /tmp/base -s rsa [--clock | --operations]

Ranks of both trees live side by side, and one tree's wait while the other's run a step, ABBA. Each
pair has processes of its own, since those differ by more than the steps of one. A pair compares the
processor time of all ranks over a few steps, which other work on the machine disturbs less than the
clock, or with ``--clock`` the time of the slowest rank, waits included, as a user has it; the
median of the pairs counts. With ``--operations`` a profile of rank 0 follows instead: calls and
processor time of each operation in one step of either tree.

With ``--rate`` each rank is a node of its own, and the links between them have that rate; it needs
root, as docs/netlab.md says. With ``--base-strategy`` the other checkout runs that one.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

WARM_UP, PROFILES = 3, 9
"""Profiled steps; each operation's least time counts, since the profiler has but the clock."""
HERE = Path(__file__).resolve().parent.parent
NETLAB = str(HERE / "scripts" / "netlab.sh")


@final
class Ranks:
    """The ranks of one tree as processes, which run steps when they are asked to."""

    def __init__(self, tree: Path, words: Sequence[str], ranks: int, lab: str = "") -> None:
        """``lab``: the network lab whose nodes they are; blank: they share this one."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        shared = {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(ranks)}
        shared |= {"MASTER_ADDR": "10.77.0.1" if lab else "127.0.0.1", "MASTER_PORT": str(port)}
        command = [sys.executable, __file__, "--as-rank", *words]
        self._ranks = [
            subprocess.Popen(
                [NETLAB, "exec", lab, str(rank), "--", *command] if lab else command,
                env=os.environ | shared | {"RANK": str(rank)},
                cwd=tree,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]

    def ask(self, request: str) -> list[Any]:
        """What each rank answers."""
        for rank in self._ranks:
            assert rank.stdin is not None
            rank.stdin.write(request + "\n")
            rank.stdin.flush()
        lines = [rank.stdout.readline() for rank in self._ranks if rank.stdout is not None]
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        for rank in self._ranks:
            rank.communicate("\n")


def as_rank(strategy: str, workload: str, settings: Sequence[str]) -> None:
    """Answers requests for a ``step`` or a ``profile``; ends at a blank one."""
    import torch

    from spbench.comm.group import ProcessGroup
    from spbench.strategies.registry import load
    from spbench.worker import memory
    from spbench.worker.step import Step
    from spbench.workload.catalogue import find, with_settings

    torch.set_num_threads(1)
    getattr(memory, "keep_freed_memory", lambda: None)()  # as a rank of the tree does, or not
    group = ProcessGroup(torch.device("cpu"), 600.0)
    loaded, work = load(strategy), with_settings(find(workload), list(settings))
    if hasattr(loaded, "flattened"):  # older commits cut the axes of the model
        work = loaded.flattened(work)
    step = Step(loaded.on(work, group.size), group.transports, group.device)
    given = step.seeded_inputs()
    for line in sys.stdin:
        request = line.strip()
        if not request:
            break
        if request == "profile":
            answer: Any = {}
            for _ in range(PROFILES):
                with torch.profiler.profile() as seen:
                    step(*given)
                for each in seen.key_averages():
                    least = answer.get(each.key, (0, math.inf))[1]
                    answer[each.key] = each.count, min(least, each.self_cpu_time_total / 1e3)
        else:
            group.barrier()
            began_s = time.process_time(), time.perf_counter()
            step(*given)
            ended_s = time.process_time(), time.perf_counter()
            answer = [(end - began) * 1e3 for began, end in zip(began_s, ended_s, strict=True)]
        print(json.dumps(answer), flush=True)


def started(
    trees: Sequence[Path], words: Sequence[Sequence[str]], ranks: int, lab: str
) -> list[Ranks]:
    """Warm ranks of each tree."""
    pairs = zip(trees, words, strict=True)
    started = [Ranks(tree, its_words, ranks, lab) for tree, its_words in pairs]
    for each in started * WARM_UP:
        each.ask("step")
    return started


def compare(trees: Sequence[Ranks], steps: int, clock: bool) -> list[float]:
    """Milliseconds of a step in each tree: of all processors, or of the slowest rank."""
    taken_ms = [0.0] * len(trees)
    for step in range(steps):
        for which in range(len(trees))[:: 1 if step % 2 else -1]:
            cpu_ms, wall_ms = zip(*trees[which].ask("step"), strict=True)
            taken_ms[which] += (max(wall_ms) if clock else sum(cpu_ms)) / steps
    return taken_ms


def operations(head: Ranks, base: Ranks, most: int = 30) -> list[str]:
    """Calls and processor time of each operation, those that differ most first."""
    ours, theirs = head.ask("profile")[0], base.ask("profile")[0]
    names = sorted(
        {*ours, *theirs},
        key=lambda name: -abs(ours.get(name, (0, 0))[1] - theirs.get(name, (0, 0))[1]),
    )
    lines = [f"{'operation':52} {'calls':>11} {'ms':>15}   (here, base)"]
    for name in names[:most]:
        (count, ms), (base_count, base_ms) = ours.get(name, (0, 0)), theirs.get(name, (0, 0))
        lines.append(f"{name[:52]:52} {count:5} {base_count:5} {ms:7.2f} {base_ms:7.2f}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", type=Path, nargs="?")
    parser.add_argument("-s", "--strategy", default="rsa")
    parser.add_argument("--base-strategy", metavar="STRATEGY")
    parser.add_argument("--rate")
    parser.add_argument("-w", "--workload", default="dsp-720m-small")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--clock", action="store_true")
    parser.add_argument("--operations", action="store_true")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.as_rank:
        as_rank(flags.strategy, flags.workload, flags.set)
        return 0
    words = ["-w", flags.workload, *(word for each in flags.set for word in ("--set", each))]
    strategies = flags.strategy, flags.base_strategy or flags.strategy
    both_words = [["-s", strategy, *words] for strategy in strategies]
    trees, lab = (HERE, flags.base.resolve()), ""
    if flags.rate:
        lab = f"two-commits-{os.getpid()}"
        ask = shlex.split(f"up {lab} --nodes {flags.ranks} --rate {flags.rate}")
        subprocess.run([NETLAB, *ask], check=True)
    pairs_ms = []
    try:
        for _ in range(1 if flags.operations else flags.pairs):
            both = started(trees, both_words, flags.ranks, lab)
            if flags.operations:
                print(*operations(*both), sep="\n")
            else:
                pairs_ms.append(compare(both, flags.steps, flags.clock or bool(lab)))
            for each in both:
                each.close()
    finally:
        if lab:
            subprocess.run([NETLAB, "down", lab], check=True)
    if pairs_ms:
        ratios = sorted(head / base for head, base in pairs_ms)
        medians = [statistics.median(each) for each in zip(*pairs_ms, strict=True)]
        print(
            f"{flags.strategy} on {flags.ranks} ranks {' '.join(flags.set)} {flags.rate or ''}: "
            f"{medians[0]:.1f} ms, base {medians[1]:.1f} ms, "
            f"ratio {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
