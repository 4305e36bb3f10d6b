"""compare and plot on 10,000 rows, as whole processes: at most 2 s and 6 s.

    python benchmarks/large_results.py [--out FOLDER] [--rounds 3]

Writes a results folder of 4 strategies x 4 rank counts x 5 launches x 125 shapes with made-up
figures and its run.json (with --out it is kept), calls each command three times and takes the
median. Measure on a quiet machine: the load is printed beside the figures.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path

from spbench.results.hand_over import Sample
from spbench.results.record import COLUMNS, Record
from spbench.results.samples import write_samples
from spbench.sweep.run_folder import as_in_run_json
from spbench.workload.case import Case, Cell
from spbench.workload.catalogue import find

LIMITS_S = {"compare": 2.0, "plot": 6.0}
STRATEGIES = {"dsp": 1.0, "ulysses": 1.15, "megatron-sp": 1.6, "rsa": 1.3}
"""How much longer each communicates than the first."""
RANKS = (2, 4, 8, 16)
LAUNCHES = 5
LENGTHS = (16, 32, 48, 64, 96)
BATCHES = (1, 2, 4, 8, 16)
WORKLOADS = ("made-up-a", "made-up-b", "made-up-c", "made-up-d", "made-up-e")
ITERATIONS = 20


def cases() -> Iterator[Case]:
    """Every launch, in the order of a run."""
    small = find("dsp-720m-small")
    for name, length, batch in product(WORKLOADS, LENGTHS, BATCHES):
        shape = {"name": name, "axes": {"time": length, "space": 256}, "batch": batch}
        workload = small.model_copy(update=shape)
        for ranks, launch, strategy in product(RANKS, range(LAUNCHES), STRATEGIES):
            fixed = {"workload": workload, "strategy": strategy, "ranks": ranks, "device": "cpu"}
            yield Case(**fixed, launch=launch)


def record_of(case: Case, chance: random.Random) -> Record:
    """A launch with made-up figures that agree with each other."""
    work, ranks = case.workload, case.ranks
    tokens = math.prod(work.axes.values()) * work.batch
    sent = tokens * 4096 * (ranks - 1) // ranks**2
    compute_ms = tokens / ranks * 2e-3 * chance.gauss(1, 0.01)
    exposed_ms = sent * STRATEGIES[case.strategy] * 1e-6 * chance.gauss(1, 0.05)
    step_ms = compute_ms + exposed_ms
    failed = case.strategy == "megatron-sp" and work.batch == 16 and work.axes["time"] == 96
    figures: dict[str, object] = {"status": "oom", "reason": "rank 0: no memory"}
    if not failed:
        figures = {"status": "ok", "step_ms": step_ms, "compute_ms": compute_ms}
        figures |= {"exposed_comm_ms": exposed_ms, "iterations": ITERATIONS, "warmup": 3}
        figures |= {"step_ms_p10": step_ms * 0.99, "step_ms_p90": step_ms * 1.01}
        figures |= {"samples_per_s": work.batch / step_ms * 1e3}
        figures |= {"tokens_per_s": tokens / step_ms * 1e3}
        figures |= {"tokens_per_s_per_rank": tokens / step_ms * 1e3 / ranks}
        figures |= {"peak_allocated_bytes": tokens * 4096 * 12 // ranks}
        for phase, times in (("forward", 1), ("backward", 2), ("gradients", 1)):
            figures |= {f"sent_bytes_{phase}": sent * times}
            figures |= {f"predicted_bytes_{phase}": sent * times}
        figures |= {"output_error": 1e-7, "gradient_error": 2e-7, "tolerance": 1e-5}
    return Record.of_case(
        case,
        run_id="large",
        started_utc="2030-01-01T00:00:00Z",
        backend="gloo",
        torch="2.11.0",
        round=f"made-up.{case.launch}",
        **figures,
    )


def rows() -> Iterator[Record]:
    """Records of all launches; the figures are alike each time."""
    chance = random.Random(1)
    return (record_of(case, chance) for case in cases())


def samples_of(record: Record, chance: random.Random) -> list[Sample]:
    """Samples that have the figures of the record; now and then one takes half as long again."""
    if record.step_ms is None or record.compute_ms is None:
        return []
    last = 1.5 if chance.random() < 0.4 else 1.01
    pattern = [*4 * [0.99], *(ITERATIONS - 8) * [1.0], *3 * [1.01], last]
    chance.shuffle(pattern)
    return [
        Sample(
            rank=rank,
            status="ok",
            step_ms=[record.step_ms * part * (1 - 0.001 * rank) for part in pattern],
            compute_ms=[record.compute_ms * part * (1 - 0.001 * rank) for part in pattern],
        )
        for rank in range(record.world_size)
    ]


def write(folder: Path, records: Iterable[Record]) -> None:
    """The first of all launches, as a run leaves them: runs.csv, samples/ and run.json."""
    folder.mkdir(parents=True, exist_ok=True)
    chance, entries = random.Random(2), []
    with (folder / "runs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for case, record in zip(cases(), records, strict=False):
            writer.writerow(asdict(record))
            write_samples(folder, record, samples_of(record, chance))
            entries.append(as_in_run_json(Cell(case=case, why_not=None)))
    (folder / "run.json").write_text(json.dumps({"cases": entries}, indent=2))


def seconds(command: str, folder: Path) -> float:
    """A whole process, from its start to its end."""
    start = time.perf_counter()
    words = [sys.executable, "-m", "spbench", command, str(folder)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="keep the folder")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.out or Path(temporary)
        if not (folder / "runs.csv").exists():
            write(folder, rows())
        too_slow = False
        for command, limit_s in LIMITS_S.items():
            took_s = [seconds(command, folder) for _ in range(arguments.rounds)]
            median_s = statistics.median(took_s)
            too_slow |= median_s > limit_s
            each = ", ".join(f"{took:.2f}" for took in took_s)
            print(
                f"{command}: {median_s:.2f} s, at most {limit_s:g} ({each}; load "
                f"{os.getloadavg()[0]:.1f})"
            )
    return int(too_slow)


if __name__ == "__main__":
    sys.exit(main())
