"""From what the ranks of a launch wrote to the columns of its row."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from spbench.launch.cluster import placement_of
from spbench.launch.launcher import LaunchResult
from spbench.results.conditions import as_columns
from spbench.results.sample import RowStatus, Sample
from spbench.workload.case import Case
from spbench.workload.flops import step_flops

ERRORS = ("output_error", "gradient_error", "tolerance")
"""Columns of the gate, which a row has also where the gate failed."""
LARGEST = (
    *ERRORS,
    *("warmup", "peak_allocated_bytes", "peak_reserved_bytes", "device_used_bytes"),
    "host_rss_bytes",
)
"""Columns that hold the largest value of any rank."""
TRIMMED = 10
"""One part in so many is left out at each end."""


def columns_of(
    case: Case,
    launched: LaunchResult,
    samples: Sequence[Sample],
    status: RowStatus,
    peak_tflops: float | None,
) -> dict[str, Any]:
    """Where a launch ran, and its figures if it is ok; of a failed gate errors and counts.

    ``peak_tflops`` is that of one device.
    """
    hosts = [*launched.hosts.values()]
    columns: dict[str, Any] = {"placement": placement_of(hosts) if hosts else ""}
    if samples:
        versions = samples[0].versions
        columns |= {name: versions.get(name, "") for name in ("torch", "cuda", "nccl")}
        columns |= {"gpu": samples[0].device_name, "gated_on": samples[0].gated_on}
        pairs = (pair for sample in samples for pair in sample.environment.items())
        variables = dict.fromkeys(f"{name}={value}" for name, value in pairs)
        columns |= {"backend": samples[0].backend, "environment": " ".join(variables)}
    if status == "ok":
        columns |= measured(case, samples, peak_tflops)
    elif status == "wrong_result":
        columns |= largest_columns(ERRORS, samples) | _counts(samples)
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
    columns = largest_columns(LARGEST, samples) | _counts(samples)
    columns |= {"stopped_by": samples[0].stopped_by, "steps_s": samples[0].steps_s}
    columns["attention_kernel"] = _kernels(samples)
    columns |= as_columns(case.device, [sample.conditions for sample in samples])
    steps = slowest([sample.step_ms for sample in samples])
    silent = slowest([sample.compute_ms for sample in samples])
    if silent:
        columns |= {"compute_ms": typical(silent), "iterations": len(silent)}
    if steps:
        columns |= _speeds(case, steps, peak_tflops)
        if silent:
            columns["exposed_comm_ms"] = columns["step_ms"] - columns["compute_ms"]
    return columns


def _speeds(case: Case, steps: list[float], peak_tflops: float | None) -> dict[str, Any]:
    step_ms = typical(steps)
    deciles = statistics.quantiles(steps, n=10, method="inclusive") if len(steps) > 1 else steps
    work = case.workload
    per_s = 1e3 / step_ms
    tokens_per_s = work.batch * work.tokens * per_s
    tflops_per_rank = step_flops(work) * per_s / case.ranks / 1e12
    return {
        "step_ms": step_ms,
        "step_ms_p10": deciles[0],
        "step_ms_p90": deciles[-1],
        "iterations": len(steps),
        "samples_per_s": work.batch * per_s,
        "tokens_per_s": tokens_per_s,
        "tokens_per_s_per_rank": tokens_per_s / case.ranks,
        "tflops_per_rank": tflops_per_rank,
        "mfu": tflops_per_rank / peak_tflops if peak_tflops else None,
    }


def typical(times: Sequence[float]) -> float:
    """The step time of a launch (docs/decisions/0022): the mean of its iterations without the
    fastest and the slowest tenth; of three and more without at least one.

    However long a single hiccup is, it does not count; and on shared cores this scatters less than
    a median, since it goes by nearly all of the times (Tukey and McLaughlin 1963). Raises
    ValueError where there are none.
    """
    if not times:
        raise ValueError("no times, so no typical time")
    ordered = sorted(times)
    out = max(1, len(ordered) // TRIMMED) if len(ordered) >= 3 else 0
    middle = ordered[out : len(ordered) - out]
    return math.fsum(middle) / len(middle)


def slowest(times: Sequence[list[float] | None]) -> list[float]:
    """Each iteration takes as long as its slowest rank."""
    present = [of_rank for of_rank in times if of_rank]
    return [max(ranks) for ranks in zip(*present, strict=True)] if present else []


def largest(values: Iterable[float | None]) -> float | None:
    """The largest value that was measured; None without one."""
    return max((value for value in values if value is not None), default=None)


def largest_columns(names: Iterable[str], by_rank: Sequence[object]) -> dict[str, float | None]:
    """The largest value of any rank in each of these columns."""
    return {name: largest(getattr(of_rank, name) for of_rank in by_rank) for name in names}


def _counts(samples: Sequence[Sample]) -> dict[str, Any]:
    """Bytes and calls, also those that are not what was predicted; nothing if not counted."""
    columns: dict[str, Any] = {}
    for column, field in (
        ("sent_bytes_{}", "sent_by_phase"),
        ("predicted_bytes_{}", "predicted_by_phase"),
        ("{}_bytes", "sent_by_op"),
    ):
        by_rank = [counts for sample in samples if (counts := getattr(sample, field)) is not None]
        for name in by_rank[0] if by_rank else ():
            columns[column.format(name)] = max(counts[name] for counts in by_rank)
    calls = [sample.collectives or {} for sample in samples]
    # All ranks call the same, except for parts that are empty.
    busiest = max(calls, key=lambda of_rank: sum(of_rank.values()))
    return columns | {"collectives": " ".join(f"{name}={n}" for name, n in busiest.items())}


def _kernels(samples: Iterable[Sample]) -> str:
    """Attention kernels of all ranks, each once."""
    names = (name for sample in samples for name in sample.attention_kernel.split("+"))
    return "+".join(dict.fromkeys(name for name in names if name))
