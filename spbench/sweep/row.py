"""The measured columns of a row, from what the ranks of a launch wrote."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spbench.launch.cluster import placement_of
from spbench.launch.launcher import LaunchResult
from spbench.results.conditions import as_columns, largest
from spbench.results.hand_over import RowStatus, Sample
from spbench.results.record import MUCH
from spbench.results.variables import column_of
from spbench.worker.sampling import outer_deciles, slowest, typical, uncertainty_ms
from spbench.workload.case import Case
from spbench.workload.flops import step_flops
from spbench.workload.mesh import Mesh
from spbench.workload.traffic import OPS, PHASES

COUNTS = (
    ("sent_bytes_{}", "sent_by_phase"),
    ("predicted_bytes_{}", "predicted_by_phase"),
    ("{}_bytes", "sent_by_op"),
)

VERSIONS = ("torch", "cuda", "nccl", "vendor")
ERRORS = ("output_error", "gradient_error", "tolerance", "float32_error")
"""Columns of the gate, which a row has also where the gate failed."""
DISTANCES = ("repeat_error", "agreement_error")
"""Columns of the timed step's numbers, which a row has also where these are wrong."""
LARGEST = (
    *ERRORS,
    *DISTANCES,
    *("warmup", "peak_allocated_bytes", "peak_reserved_bytes", "device_used_bytes"),
    *("host_rss_bytes", "optimizer_bytes", "compiled"),
)
"""Columns that hold the largest value of any rank."""
HOST_BOUND = 0.97
"""From this part of a step on, issuing it is what it takes. A GPU that sets the pace is behind by a
full queue, about a thousand launches of the thousands of a step."""
CLOCKS_ALIKE = 0.02
"""Clocks of the timed and of the silent pass that differ by more make their difference wrong."""


def columns_of(
    case: Case,
    launched: LaunchResult,
    samples: Sequence[Sample],
    status: RowStatus,
    peak_tflops: float | None,
) -> dict[str, Any]:
    """Where a launch ran, and its figures if it is ok; of a failed gate errors and counts.

    Parameters
    ----------
    case
        What was launched.
    launched
        How the launch ended.
    samples
        What its ranks wrote, as far as they did.
    status
        The status of the row.
    peak_tflops
        Tflop/s of one device, for MFU; None where it is not known.

    Returns
    -------
    Columns of runs.csv by name; those that are not known are left out.
    """
    hosts = [*launched.hosts.values()]
    columns: dict[str, Any] = {"placement": placement_of(hosts) if hosts else ""}
    if samples:  # what all ranks have in common is told by the first that wrote anything
        columns |= {name: samples[0].versions.get(name, "") for name in VERSIONS}
        columns |= {"gpu": samples[0].device_name, "gated_on": samples[0].gated_on}
        columns["agreed_with"] = samples[0].agreed_with
        pairs = (pair for sample in samples for pair in sample.environment.items())
        variables = dict.fromkeys(f"{name}={value}" for name, value in pairs)
        columns |= {"backend": samples[0].backend, "environment": " ".join(variables)}
        of_ranks = {s.rank: s.variables for s in samples if s.variables is not None}
        columns["variables"] = column_of(of_ranks)
    if status == "ok":
        columns |= measured(case, samples, peak_tflops)
    elif status == "wrong_result":
        columns |= largest_columns(ERRORS + DISTANCES, samples) | counted_columns(samples)
    return columns


def seconds_by_phase(
    samples: Sequence[Sample], launched_s: float, launch_s: float
) -> dict[str, float]:
    """Seconds of each phase of a launch, from the start of its processes to their end.

    Empty without a sample of rank 0 that has them.
    """
    first = next((sample for sample in samples if sample.rank == 0), None)
    if first is None or first.began_s is None or not first.phases_s:
        return {}
    start_s = first.began_s - launched_s
    end_s = launch_s - start_s - sum(first.phases_s.values())
    return {"start": start_s, **first.phases_s, "end": end_s}


def measured(case: Case, samples: Sequence[Sample], peak_tflops: float | None) -> dict[str, Any]:
    """The measured columns of a launch whose ranks all succeeded."""
    columns = largest_columns(LARGEST, samples) | counted_columns(samples)
    columns |= {"stopped_by": samples[0].stopped_by, "steps_s": samples[0].steps_s}
    columns["attention_kernel"] = _kernels(samples)
    unseen = dict.fromkeys(s.unseen_operators for s in samples if s.unseen_operators)
    columns["unseen_operators"] = "; ".join(unseen)  # one list, unless ranks differ in it
    steady = [sample.steady for sample in samples if sample.steady is not None]
    columns["steady"] = "" if not steady else "yes" if all(steady) else "no"
    numa = [sample.numa for sample in samples]
    columns["numa"] = placement_of(numa) if all(numa) else ""
    columns |= as_columns(case.device, [sample.conditions for sample in samples])
    steps = slowest([sample.step_ms for sample in samples])
    silent = slowest([sample.compute_ms for sample in samples])
    issued = slowest([sample.issue_ms for sample in samples])
    columns["compute_note"] = next((s.compute_note for s in samples if s.compute_note), "")
    if silent:
        columns |= {"compute_ms": typical(silent), "iterations": len(silent)}
        if (bubble := samples[0].bubble) is not None:
            columns["bubble_ms"] = bubble * columns["compute_ms"]
    if steps or silent:  # a share has silent steps alone
        columns |= _issuing(typical(steps or silent), issued)
    if steps:
        columns |= _speeds(case, steps, peak_tflops)
        if silent:
            clocks = [sample.conditions.clocks_mhz for sample in samples if sample.conditions]
            ratios = [silent_mhz / timed_mhz for timed_mhz, silent_mhz in filter(None, clocks)]
            columns |= _exposed(columns, steps, silent, ratios)
            columns["exposed_gb_per_s"] = _exposed_rate(columns)
    return columns


def _issuing(step_ms: float, issued_ms: list[float]) -> dict[str, Any]:
    """How long the host takes to issue a step, and whether that is what the step takes."""
    if not issued_ms:
        return {}
    issue_ms = typical(issued_ms)
    is_bound = issue_ms >= HOST_BOUND * step_ms
    return {"issue_ms": issue_ms, "host_bound": "yes" if is_bound else "no"}


def _exposed(
    columns: Mapping[str, Any],
    steps: list[float],
    silent: list[float],
    silent_over_timed: list[float],
) -> Mapping[str, float | str | None]:
    """Time that a step waits for communication: known, between two bounds, or not known.

    Computation takes as long in a real step as in a silent one only at the same clock; at another
    its time is between that and what the clocks' ratio makes of it, of whichever rank is the
    slowest. Where the host sets the pace, the difference says nothing about communication. Nor does
    it where silent steps took longer than real ones by more than chance: then they were other
    steps, or met another machine, and their time is no step's computation. Within chance it stays,
    below 0, so that the mean over launches is not pulled up.

    ``silent_over_timed``: the ratio of the clocks of each rank that knows both.
    """
    step_ms, compute_ms = columns["step_ms"], columns["compute_ms"]
    # Bytes that were not counted, as those of a share, may be some.
    if not any(columns.get(f"sent_bytes_{phase}", 1) for phase in PHASES):
        return {"compute_ms": step_ms, "exposed_comm_ms": 0.0}
    if columns.get("host_bound") == "yes":
        part = columns["issue_ms"] / step_ms
        return {"compute_note": f"host-bound: issuing takes {part:.0%} of the step"}
    error_ms = uncertainty_ms(steps) + uncertainty_ms(silent)
    if all(abs(ratio - 1) <= CLOCKS_ALIKE for ratio in silent_over_timed):
        # Clocks that count as alike may make the silent steps longer by as much.
        chance_ms = error_ms + CLOCKS_ALIKE * compute_ms
        if compute_ms - step_ms <= chance_ms:
            return {"exposed_comm_ms": step_ms - compute_ms}
        return _not_comparable(compute_ms - step_ms, chance_ms)
    timed_mhz, silent_mhz = (columns[f"{name}_clock_mhz"] for name in ("timed", "silent"))
    # At the clock of timed steps computation takes what it takes in silent ones, or as much longer
    # as their clock was faster: between the two lies what waits for memory, at its own clock.
    ratios = [1.0, *silent_over_timed]
    least_ms, most_ms = compute_ms * min(ratios), compute_ms * max(ratios)
    if least_ms - step_ms > error_ms:
        return _not_comparable(least_ms - step_ms, error_ms)
    return {
        "exposed_comm_ms_low": step_ms - most_ms - error_ms,
        "exposed_comm_ms_high": step_ms - least_ms + error_ms,
        "compute_note": f"clocks differ: {timed_mhz:.0f} MHz in timed steps, "
        f"{silent_mhz:.0f} MHz in silent ones",
    }


def _not_comparable(longer_ms: float, chance_ms: float) -> dict[str, str | None]:
    """What is known where silent steps took longer than real ones by more than chance."""
    note = f"silent steps took {longer_ms:.3g} ms longer than real ones, of which chance explains "
    return {"compute_ms": None, "compute_note": f"{note}{chance_ms:.2g}: they do not compare"}


def _exposed_rate(columns: Mapping[str, Any]) -> float | None:
    """Gigabytes a second that the busiest rank sends while it waits; None where it hardly does."""
    exposed_ms = columns.get("exposed_comm_ms")
    if exposed_ms is None or exposed_ms < MUCH * columns["step_ms"]:
        return None
    return (
        sum(columns.get(f"{op}_bytes", 0) for op in OPS) / exposed_ms / 1e6
    )  # bytes / ms, in GB/s


def _speeds(case: Case, steps: list[float], peak_tflops: float | None) -> dict[str, Any]:
    step_ms = typical(steps)
    fast_ms, slow_ms = outer_deciles(steps)
    work = case.workload
    per_s = 1e3 / step_ms
    tokens_per_s = work.batch * work.tokens * per_s  # branches of guidance are no further samples
    tflops_per_rank = step_flops(work) * per_s / case.ranks / 1e12
    return {
        "step_ms": step_ms,
        "step_ms_p10": fast_ms,
        "step_ms_p90": slow_ms,
        "iterations": len(steps),
        "samples_per_s": work.batch * per_s,
        "tokens_per_s": tokens_per_s,
        "tokens_per_s_per_rank": tokens_per_s / case.ranks,
        "tflops_per_rank": tflops_per_rank,
        "mfu": tflops_per_rank / peak_tflops if peak_tflops else None,
    }


def largest_columns(names: Iterable[str], by_rank: Sequence[object]) -> dict[str, float | None]:
    """The largest value of any rank in each of these columns."""
    return {name: largest(getattr(of_rank, name) for of_rank in by_rank) for name in names}


def _kernels(samples: Iterable[Sample]) -> str:
    """Attention kernels of all ranks, each once."""
    names = (name for sample in samples for name in sample.attention_kernel.split("+"))
    return "+".join(dict.fromkeys(name for name in names if name))


def counted_columns(samples: Sequence[Sample]) -> dict[str, Any]:
    """Bytes and calls, also those that are not what was predicted; nothing if not counted."""
    columns: dict[str, Any] = {}
    for column, field in COUNTS:
        for name, sent in _busiest(samples, field).items():
            columns[column.format(name)] = sent
    calls = [sample.collectives or {} for sample in samples]
    # All ranks call the same, except for parts that are empty.
    busiest = max(calls, key=lambda of_rank: sum(of_rank.values()))
    return columns | {"collectives": _in_words(busiest)} | _mesh(samples)


def _mesh(samples: Sequence[Sample]) -> dict[str, str]:
    """Nothing where all ranks are one group."""
    mesh = Mesh.of(samples[0].mesh)
    if len(mesh.axes) < 2:
        return {}
    hosts = {sample.rank: sample.host for sample in samples}
    return {
        "mesh": str(mesh),
        "bytes_by_mesh_axis": _in_words(_busiest(samples, "sent_by_axis")),
        "mesh_across_nodes": " ".join(mesh.across(hosts)),
    }


def _busiest(samples: Sequence[Sample], field: str) -> dict[str, int]:
    """The most that a rank sends of each kind; nothing where none was counted."""
    of_ranks = [getattr(sample, field) for sample in samples]
    by_rank = [counts for counts in of_ranks if counts is not None]
    names = dict.fromkeys(name for counts in by_rank for name in counts)
    return {name: max(counts.get(name, 0) for counts in by_rank) for name in names}


def _in_words(counts: dict[str, int]) -> str:
    return " ".join(f"{name}={n}" for name, n in counts.items())
