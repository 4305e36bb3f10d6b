"""From what the ranks of a launch wrote to the columns of its row."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from spbench.launch.cluster import placement_of
from spbench.launch.launcher import LaunchResult
from spbench.results.conditions import as_columns
from spbench.results.sample import Sample, Status
from spbench.results.step_time import typical
from spbench.workload.case import Case
from spbench.workload.flops import step_flops


def facts_of(
    case: Case, ended: LaunchResult, samples: Sequence[Sample], status: Status, peak: float | None
) -> dict[str, Any]:
    """Where it ran; figures if it is ok, and of a failed gate those that exist.

    ``peak``: of a device, in Tflop/s.
    """
    facts: dict[str, Any] = {}
    facts["placement"] = placement_of([*ended.hosts.values()]) if ended.hosts else ""
    if samples:
        versions = samples[0].versions
        facts |= {name: versions.get(name, "") for name in ("torch", "cuda", "nccl")}
        facts |= {"gpu": samples[0].device_name, "gated_on": samples[0].gated_on}
        facts["backend"] = samples[0].backend
        facts["environment"] = " ".join(told(samples))
    if status == "ok":
        facts |= measured(case, samples, peak)
    elif status == "wrong_result":
        facts |= proofs(samples) | counts(samples)
    return facts


def spent(samples: Sequence[Sample], launched_s: float, launch_s: float) -> dict[str, float]:
    """Seconds from the start of the processes to their end; empty where rank 0 cannot tell."""
    first = next((one for one in samples if one.rank == 0), None)
    if first is None or first.began_s is None or not first.phases_s:
        return {}
    start_s = first.began_s - launched_s
    end_s = launch_s - start_s - sum(first.phases_s.values())
    return {"start": start_s, **first.phases_s, "end": end_s}


def told(samples: Iterable[Sample]) -> list[str]:
    """NAME=value of each variable that any of the ranks tells of, each once."""
    pairs = (pair for sample in samples for pair in sample.environment.items())
    return list(dict.fromkeys(f"{name}={value}" for name, value in pairs))


def proofs(samples: Sequence[Sample]) -> dict[str, float]:
    """The errors of a failed gate are worth keeping; its times do not exist."""
    found = {}
    for name in ("output_error", "gradient_error", "tolerance"):
        values = [value for s in samples if (value := getattr(s, name)) is not None]
        if values:
            found[name] = max(values)
    return found


def measured(case: Case, samples: Sequence[Sample], peak_tflops: float | None) -> dict[str, Any]:
    """The measured columns of a launch whose ranks all succeeded."""
    found: dict[str, Any] = {"backend": samples[0].backend}
    for name in ("output_error", "gradient_error", "tolerance", "warmup"):
        found[name] = largest(getattr(sample, name) for sample in samples)
    for name in ("allocated", "reserved"):
        column = f"peak_{name}_bytes"
        found[column] = largest(getattr(sample, column) for sample in samples)
    for column in ("device_used_bytes", "host_rss_bytes"):
        found[column] = largest(getattr(sample, column) for sample in samples)
    found |= counts(samples)
    found |= {"stopped_by": samples[0].stopped_by, "steps_s": samples[0].steps_s}
    found |= as_columns(case.device, [one.conditions for one in samples])
    steps = slowest([sample.step_ms for sample in samples])
    silent = slowest([sample.compute_ms for sample in samples])
    if silent:
        found["compute_ms"] = typical(silent)
        found["iterations"] = len(silent)
    if steps:
        found |= _speeds(case, steps, peak_tflops)
        if silent:
            found["exposed_comm_ms"] = found["step_ms"] - found["compute_ms"]
    return found


def counts(samples: Sequence[Sample]) -> dict[str, Any]:
    """What was sent, as far as it was counted: also where that was not what was predicted."""
    found: dict[str, Any] = {}
    found |= _largest_of("sent_bytes_{}", [sample.sent_by_phase for sample in samples])
    found |= _largest_of("predicted_bytes_{}", [sample.predicted_by_phase for sample in samples])
    found |= _largest_of("{}_bytes", [sample.sent_by_op for sample in samples])
    return found | {"collectives": _busiest([sample.collectives or {} for sample in samples])}


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


def slowest(times: Sequence[list[float] | None]) -> list[float]:
    """Each iteration takes as long as its slowest rank."""
    present = [one for one in times if one]
    return [max(ranks) for ranks in zip(*present, strict=True)] if present else []


def largest(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return max(present, default=None)


def _busiest(calls: Sequence[dict[str, int]]) -> str:
    """Of the rank that calls most; all do the same, but for parts that are empty."""
    most = max(calls, key=lambda of_rank: sum(of_rank.values()))
    return " ".join(f"{name}={count}" for name, count in most.items())


def _largest_of(column: str, counts: Sequence[dict[str, int] | None]) -> dict[str, float | None]:
    """Each count of the ranks under the name of its column; nothing where none was taken."""
    present = [count for count in counts if count is not None]
    names = present[0] if present else {}
    return {column.format(name): largest(count[name] for count in present) for name in names}
