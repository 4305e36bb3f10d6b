"""From what the ranks of a launch wrote to the columns of its row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from spbench.launch.cluster import placement_of
from spbench.launch.launcher import Ended
from spbench.results.sample import Sample, Status
from spbench.sweep.row_figures import counts, measured
from spbench.workload.case import Case


def facts_of(
    case: Case, ended: Ended, samples: Sequence[Sample], status: Status, peak: float | None
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
