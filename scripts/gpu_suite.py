"""What gpu_suite.sh must work out: in which order to run its cells, and what to say at the end.

    spbench run ... --dry-run --json | gpu_suite.py order WORKLOAD [--set KEY=VALUE]...
    gpu_suite.py rows FOLDER
    gpu_suite.py summary FOLDER

A cell's time is expected from its operations, its memory from the activations that are kept.
Both are rough: they put the cheap cells first and tell a reader whether the rest will fit.
What is reported is what the cells then measure.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spbench.errors import ResultsError
from spbench.results.record import Record
from spbench.results.runs_csv import latest, read_runs, records_of
from spbench.workload.catalogue import find, with_settings
from spbench.workload.fields import DTYPE_BYTES
from spbench.workload.flops import executed_flops, parameters
from spbench.workload.traffic import PHASES, shared_length
from spbench.workload.workload import Workload

FLOP_PER_S = 4e14
"""What a large step reaches on an H200 in bfloat16, norms and copies included."""
START_S = 12.0
"""A rank's start, its gate and its weights."""
UNTIMED_STEPS = 6
LEAST_TIMED_STEPS = 5
TIMED_S = 3.0
BLOCK_ACTIVATIONS = 40
"""Activations that autograd keeps of one block of attention, attention, cross-attention, mlp."""
GATE_FAILED = 3
NOTHING_RAN = 6
WRONG = "WRONG"
GATES = ("verify-float64.json", "verify-float32.json", "verify-bfloat16.json")


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a cell is expected to take."""

    step_s: float
    peak_bytes: float

    @property
    def cell_s(self) -> float:
        timed = max(LEAST_TIMED_STEPS, TIMED_S / self.step_s)
        return START_S + self.step_s * (UNTIMED_STEPS + timed)


def estimate(work: Workload, strategy: str, sharded: str, ranks: int) -> Estimate:
    """One rank's share of a step. Replicated weights: themselves, gradients, buckets."""
    blocks = BLOCK_ACTIVATIONS + work.blocks if work.recomputes else BLOCK_ACTIVATIONS * work.blocks
    kept = blocks * work.activation_bytes / ranks
    weights = 3 * parameters(work).total * DTYPE_BYTES[work.dtype]
    if strategy.startswith("rsa"):  # whole rows: scores, their softmax, its gradient
        axis, *_ = sharded.split()
        row = shared_length(work, axis)
        kept += (
            3 * work.samples * work.all_tokens * row * work.heads * DTYPE_BYTES[work.dtype] / ranks
        )
    flops = executed_flops(work)
    return Estimate(step_s=flops / ranks / FLOP_PER_S, peak_bytes=weights + kept)


def order(work: Workload, cells: list[dict[str, Any]]) -> str:
    """Numbers of ranks, the cheapest first; what each is expected to take, on stderr."""
    by_ranks: dict[int, list[Estimate]] = {cell["ranks"]: [] for cell in cells}
    for cell in cells:
        if cell["why_not"] is None:
            found = estimate(work, cell["strategy"], cell["sharded"], cell["ranks"])
            by_ranks[cell["ranks"]].append(found)
    total_s = {ranks: sum(one.cell_s for one in found) for ranks, found in by_ranks.items()}
    ordered = sorted(by_ranks, key=total_s.__getitem__)
    for ranks in ordered:
        step_s = max((one.step_s for one in by_ranks[ranks]), default=0.0)
        peak_bytes = max((one.peak_bytes for one in by_ranks[ranks]), default=0.0)
        print(
            f"expected on {ranks:2d} ranks: {len(by_ranks[ranks])} cells, {total_s[ranks]:.0f} s; "
            f"a step {step_s * 1e3:.3g} ms and {peak_bytes / 2**30:.3g} GiB at most",
            file=sys.stderr,
        )
    return ",".join(map(str, ordered))


def rows(folder: Path) -> int:
    """A line for each row: how it ended, its error at the gate, bytes sent and predicted."""
    try:
        records = records_of(latest(read_runs(folder)))
    except ResultsError:
        return NOTHING_RAN
    for record in records:
        print(f"  {record.strategy}: {record.status}. {record.reason}".rstrip())
        if record.status == "ok":
            sent = [getattr(record, f"sent_bytes_{phase}") for phase in PHASES]
            expected = [getattr(record, f"predicted_bytes_{phase}") for phase in PHASES]
            same = "as predicted" if sent == expected else f"{WRONG}: predicted {expected}"
            print(f"    gate {record.gate_error:.1e}, sent {sent} {same}; {record.collectives}")
        elif record.status == "wrong_result":
            print(f"    {WRONG}")
    return 0


def summary(folder: Path) -> int:
    """Prints what the folder holds, on one screen; the suite's exit code."""
    try:
        records = records_of(latest(read_runs(folder)))
    except ResultsError:
        records = []
    print(f"\n{folder}")
    for library in ("gpu", "torch", "cuda", "nccl"):
        for found in sorted({getattr(record, library) for record in records} - {""}):
            print(f"  {library:8s} {found}")
    right = [_gate(folder / name) for name in GATES]
    right += [_gate(path) for path in sorted(folder.glob("verify-*ranks*.json"))]
    right.append(_of_nodes(folder / "nodes-on-one-device.txt"))
    for kind, name in dict.fromkeys((record.kind, record.workload) for record in records):
        these = [record for record in records if (record.kind, record.workload) == (kind, name)]
        print(f"  {kind}, {name}: {_counted(record.status for record in these)}")
        _print_times(these)
    print("  tables: compare.txt; what ranks on one device said: ranks-on-one-device.txt")
    if not any(record.status == "ok" for record in records):
        return NOTHING_RAN
    wrong = any(record.status == "wrong_result" for record in records)
    return GATE_FAILED if wrong or not all(right) else 0


def _gate(path: Path) -> bool:
    """Whether all that was proved there is right; prints how many."""
    outcomes = []
    if path.exists():
        try:
            outcomes = [one["outcome"] for one in json.loads(path.read_text(encoding="utf-8"))]
        except ValueError:
            print(f"  {path.stem}: DAMAGED, see the file")
            return False
    print(f"  {path.stem}: {_counted(outcomes) or 'NOT RUN'}")
    return bool(outcomes) and WRONG not in outcomes


def _of_nodes(path: Path) -> bool:
    """Right where nothing was found, too: two nodes need not be to be had."""
    said = path.read_text(encoding="utf-8") if path.exists() else ""
    found = f"{said.count('as predicted')} as predicted, {said.count(WRONG)} {WRONG}"
    print(f"  {path.stem}: {found if said else 'NOT RUN'}")
    return WRONG not in said.partition("@rank")[0]  # a planted fault may well be wrong


def _counted(words: Any) -> str:
    return ", ".join(f"{count} {word}" for word, count in Counter(words).items())


def _print_times(records: list[Record]) -> None:
    """A line for each number of ranks: computation in ms and peak memory in GiB."""
    strategies = list(dict.fromkeys(record.strategy for record in records))
    print("    ranks" + "".join(f"{name:>22s}" for name in strategies))
    for ranks in sorted({record.world_size for record in records}):
        cells = {r.strategy: _cell(r) for r in records if r.world_size == ranks}
        print(f"    {ranks:5d}" + "".join(f"{cells.get(name, ''):>22s}" for name in strategies))


def _cell(record: Record) -> str:
    if record.compute_ms is None or record.peak_allocated_bytes is None:
        return record.status
    return f"{record.compute_ms:.4g} ms {record.peak_allocated_bytes / 2**30:.3g} GiB"


def main() -> int:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    ordering = commands.add_parser("order")
    ordering.add_argument("workload")
    ordering.add_argument("--set", action="append", default=[])
    commands.add_parser("rows").add_argument("folder", type=Path)
    commands.add_parser("summary").add_argument("folder", type=Path)
    asked = parser.parse_args()
    if asked.command == "rows":
        return rows(asked.folder)
    if asked.command == "summary":
        return summary(asked.folder)
    print(order(with_settings(find(asked.workload), asked.set), json.load(sys.stdin)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
