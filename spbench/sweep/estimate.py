"""What a run will take, estimated before its ranks start: seconds and memory of its launches.

Operations and bytes sent are counted by formula; how fast a machine does them is not known. A core
is timed for a moment, a GPU does a part of what its data sheet says. In tries on two busy cores and
one H200 launches took 0.7 to 2.9 times as long, and ranks 0.7 to 1.4 times the memory.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from spbench.errors import or_none
from spbench.report import units
from spbench.strategies.describe import predictions
from spbench.strategies.registry import in_mesh
from spbench.sweep.devices import Machines, known_peak
from spbench.text import counted
from spbench.workload.case import Case, Cell
from spbench.workload.catalogue import SMALL
from spbench.workload.flops import step_flops
from spbench.workload.predicted import Estimate, Prediction, step_bytes

LOAD_S, START_S = 5.0, 1.5
"""Loading torch, once; and starting and ending the ranks of a launch."""
PART_OF_PEAK = 0.3
"""What steps reach of a core's, or a GPU's, rate in large products."""
CROWDED = 2.0
"""How much longer steps take where ranks outnumber cores and wait for each other."""
BYTES_PER_S = {"cpu": 1e9, "cuda": 5e10}
"""What all ranks of a machine send through its memory together, and what each sends by NVLink."""
PROOF_STEPS, STEADY_STEPS, STEADY_S = 4.5, 5.5, {"cpu": 2.4, "cuda": 3.0}
"""Steps of memory and proof, of warm-up, and the least seconds of warm-up."""
PROCESS_BYTES = 300 * 2**20
"""Python and torch in a rank's process."""
LONGER = "Tries took 0.7 to 3 times as long"
LARGER = ", and 0.7 to 1.4 times the memory"
"""Memory by formula was off by so much; a dry run counts it to the byte."""
SMALLER = "  small forms (--sweep NAME --small, -w NAME-small) or shorter axes (--set) would do"
SHORTER = "  shorter axes or a smaller batch (--set, or a changed copy of the sweep) would do"


@final
@dataclass(frozen=True, kw_only=True)
class Foreseen:
    """What is known of a run before it starts; by the keys of cases, those that can run."""

    predictions: Mapping[str, Prediction]
    estimates: Mapping[str, Estimate]
    sentences: Sequence[str]
    machines: Machines | None = None
    """None where the machine cannot be asked."""


def foreseen(cells: Sequence[Cell], nodes: int, limit_s: float) -> Foreseen:
    """``limit_s``: the deadline of a launch. No estimates where the machine cannot be asked."""
    predicted = predictions(cells)
    machines = or_none(lambda: Machines.here(nodes)) if predicted else None
    known = estimates(cells, predicted, machines) if machines else {}
    said = announcement(cells, known, machines, limit_s) if machines else []
    return Foreseen(predictions=predicted, estimates=known, sentences=said, machines=machines)


def counted_sentences(
    before: Foreseen, cells: Sequence[Cell], limit_s: float, peak_bytes: Mapping[str, int]
) -> Sequence[str]:
    """The sentences of ``before``, with memory as a dry run counted it in place of the formula's.

    ``peak_bytes``: of a rank, by the keys of the cases that were counted.
    """
    if before.machines is None:
        return before.sentences
    return announcement(cells, before.estimates, before.machines, limit_s, peak_bytes)


def estimates(
    cells: Sequence[Cell], predicted: Mapping[str, Prediction], machines: Machines
) -> dict[str, Estimate]:
    """For each case that can run, by its key."""
    cases = {cell.case.key: cell.case for cell in cells if cell.why_not is None}
    return {key: _estimate(case, predicted[key], machines) for key, case in cases.items()}


def _estimate(case: Case, prediction: Prediction, machines: Machines) -> Estimate:
    compute_s = _compute_s(case, step_flops(case.workload), machines)
    rank_bytes = _rank_bytes(case)
    if compute_s is None:
        return Estimate(launch_s=None, rank_bytes=rank_bytes)
    sent = 0 if case.kind == "one_gpu_share" else sum(prediction.sent_bytes.values())
    senders = case.ranks if case.device == "cpu" else 1
    step_s = compute_s + sent * senders / BYTES_PER_S[case.device]
    budget = case.budget
    steady_s = min(max(STEADY_S[case.device], STEADY_STEPS * step_s), budget.max_warmup * step_s)
    timed = min(max(budget.seconds / step_s, budget.min_iterations), budget.max_iterations)
    each_s = step_s + (compute_s if budget.silent else 0.0)
    launch_s = START_S + PROOF_STEPS * step_s + steady_s + timed * each_s
    return Estimate(launch_s=launch_s, rank_bytes=rank_bytes)


def _compute_s(case: Case, flops: float, machines: Machines) -> float | None:
    """Seconds of a step without communication; None on a GPU whose data sheet is not known."""
    work, processes = case.workload, _processes(case)
    if work.recomputes:
        flops *= 4 / 3
    if case.device == "cuda":
        peak = known_peak(machines.gpus, work.dtype)
        return flops / case.ranks / (PART_OF_PEAK * peak * 1e12) if peak else None
    threads = max(1, machines.cores // processes)
    rate = PART_OF_PEAK * machines.core_flops_per_s * min(machines.cores, processes * threads)
    crowded = CROWDED if processes > machines.cores else 1.0
    return crowded * flops * processes / case.ranks / rate


def _processes(case: Case) -> int:
    return 1 if case.kind == "one_gpu_share" else case.ranks


def _rank_bytes(case: Case) -> float:
    strategy = in_mesh(case.strategy, case.mesh)
    plan = strategy.on(strategy.flattened(case.workload), case.ranks).group
    axis = plan.layout[0] if plan.keeps_scores and plan.ranks > 1 else ""
    neighbours = plan.mesh.size_of(plan.mesh.last)
    parts = neighbours if plan.cuts_weights else 1
    copies = neighbours if plan.holds_whole else 1
    return step_bytes(plan.workload, plan.ranks, parts=parts, copies=copies, scored_axis=axis)


def announcement(
    cells: Sequence[Cell],
    known: Mapping[str, Estimate],
    machines: Machines,
    limit_s: float,
    peak_bytes: Mapping[str, int] | None = None,
) -> list[str]:
    """Sentences that say what the launches will take, and what they will not be given.

    ``peak_bytes``: counted peaks of a rank by the keys of cases, for the formula's estimates.
    """
    peaks = peak_bytes or {}
    cases = [cell.case for cell in cells if cell.why_not is None]
    each_s = [known[case.key].launch_s for case in cases]
    needs = [_needed_bytes(case, peaks.get(case.key, known[case.key].rank_bytes)) for case in cases]
    most, largest = max(zip(needs, cases, strict=True), key=lambda pair: pair[0])
    has = _room_bytes(largest, machines)
    there = "" if math.isinf(has) else f", of {units.size('GiB', has)}"
    of = "for all ranks" if largest.device == "cpu" else "on a GPU"
    tries = LONGER if largest.key in peaks else f"{LONGER}{LARGER}"
    lines = [
        f"estimated: {_in_all(each_s, limit_s)}; up to {units.size('GiB', most)} of memory "
        f"{of}{there}. {tries}"
    ]
    is_late = [s is not None and s > limit_s for s in each_s]
    is_tight = [need > has for need in needs]
    if late := sum(is_late):
        limit = f"--timeout, which is {units.roughly(limit_s)}"
        lines.append(f"warning: {counted(late, 'launch')} will hardly be done within {limit}")
    if tight := sum(is_tight):
        what = f"the largest being {largest.label} of {largest.workload.name}"
        lines.append(f"warning: {counted(tight, 'launch')} will hardly fit into memory, {what}")
    warned = {x.workload.name for x, *why in zip(cases, is_late, is_tight, strict=True) if any(why)}
    are_small = all(name.split(" ")[0].endswith(SMALL) for name in warned)
    advice = [SHORTER if are_small else SMALLER] if warned else []
    return [*lines, *advice, *_crowded(cases, machines)]


def _in_all(each_s: Sequence[float | None], limit_s: float) -> str:
    known_s = [min(seconds, limit_s) for seconds in each_s if seconds is not None]
    if len(known_s) < len(each_s):
        return "time not known, since this GPU's rate is not"
    about = f"about {units.roughly(LOAD_S + sum(known_s))}"
    whole_s = LOAD_S + sum(seconds for seconds in each_s if seconds is not None)
    late = sum(seconds is not None and seconds > limit_s for seconds in each_s)
    if not late:
        return about
    ended = f"{counted(late, 'launch')} after {units.roughly(limit_s)} each"
    return f"{about}, since --timeout ends {ended} (about {units.roughly(whole_s)} without it)"


def _crowded(cases: Sequence[Case], machines: Machines) -> list[str]:
    """A warning of ranks that share a core."""
    crowded = [c for c in cases if c.device == "cpu" and _processes(c) > machines.cores]
    if not crowded:
        return []
    ranks = ", ".join(map(str, sorted({case.ranks for case in crowded})))
    few = ",".join(str(2**n) for n in range(6) if 2**n <= machines.cores)
    return [
        f"warning: {counted(len(crowded), 'launch')} on {ranks} ranks, more than "
        f"{counted(machines.cores, 'core')}: ranks wait for each other, and times say little; "
        f"--gpus {few} {'leaves them out' if len(crowded) < len(cases) else 'gives each a core'}"
    ]


def _needed_bytes(case: Case, rank_bytes: float) -> float:
    """All ranks on a CPU, which share its memory; on GPUs one, which has its own."""
    if case.device == "cuda":
        return rank_bytes
    return _processes(case) * (rank_bytes + PROCESS_BYTES)


def _room_bytes(case: Case, machines: Machines) -> float:
    """Memory for what the case needs; infinite where it is not known."""
    if case.device == "cpu":
        return machines.memory_bytes
    sizes = [gpu["memory_bytes"] for gpu in machines.gpus if gpu.get("memory_bytes")]
    return float(min(sizes, default=math.inf))
