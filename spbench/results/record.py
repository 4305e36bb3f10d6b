"""One flat row for each launch of a case; its fields are the columns of ``runs.csv``.

The schema only ever grows at its end. A field is blank where nothing was measured; bytes are
what one rank sends in one step, the largest over the ranks.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Self, get_type_hints

from spbench.results.sample import Sample, Status
from spbench.workload.case import QUICK, Case
from spbench.workload.cost import step_flops

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Record:
    """A launch, measured or failed."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    started_utc: str
    case: str
    strategy: str
    workload: str
    axes: str
    batch: int
    dtype: str
    mode: str
    checkpointing: str
    device: str
    backend: str = ""
    kind: str
    world_size: int
    sp_size: int
    dp_size: int = 1
    launch: int
    status: Status
    reason: str = ""
    step_ms: float | None = None
    step_ms_p10: float | None = None
    step_ms_p90: float | None = None
    iterations: int | None = None
    warmup: int | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_rank: float | None = None
    tflops_per_rank: float | None = None
    mfu: float | None = None
    compute_ms: float | None = None
    exposed_comm_ms: float | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    host_rss_bytes: int | None = None
    sent_bytes_forward: int | None = None
    sent_bytes_backward: int | None = None
    sent_bytes_gradients: int | None = None
    predicted_bytes_forward: int | None = None
    predicted_bytes_backward: int | None = None
    predicted_bytes_gradients: int | None = None
    all_to_all_bytes: int | None = None
    all_gather_bytes: int | None = None
    reduce_scatter_bytes: int | None = None
    all_reduce_bytes: int | None = None
    p2p_bytes: int | None = None
    output_error: float | None = None
    gradient_error: float | None = None
    tolerance: float | None = None
    torch: str = ""
    cuda: str = ""
    nccl: str = ""
    gpu: str = ""
    git_commit: str = ""
    gated_on: str = ""
    log: str = ""
    workload_key: str = ""
    environment: str = ""
    """Variables that the strategy's best form asks for, as the ranks found them."""
    effort: str = ""
    """quick or full: how long it was measured. Blank, in rows of before, is full."""

    @property
    def is_quick(self) -> bool:
        return self.effort == "quick"

    @classmethod
    def of_case(cls, case: Case, **more: Any) -> Self:
        """What is known before anything ran, and ``more``."""
        work = case.workload
        return cls(
            case=case.key,
            strategy=case.strategy,
            workload=work.name,
            axes="x".join(f"{name}={length}" for name, length in work.axes.items()),
            batch=work.batch,
            dtype=work.dtype,
            mode=work.mode,
            checkpointing=work.checkpointing,
            device=case.device,
            kind=case.kind,
            world_size=case.ranks,
            sp_size=case.ranks,
            launch=case.launch,
            workload_key=case.workload_key,
            effort="quick" if case.effort == QUICK else "full",
            **more,
        )


COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(Record))


@cache
def column_types() -> dict[str, type]:
    """The plain type of each column: int, float or str."""
    hints = get_type_hints(Record)
    return {
        name: next((kind for kind in (int, float) if _mentions(hints[name], kind)), str)
        for name in COLUMNS
    }


def _mentions(hint: Any, kind: type) -> bool:
    return hint is kind or kind in getattr(hint, "__args__", ())


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
    found |= _largest_of("sent_bytes_{}", [sample.sent_by_phase for sample in samples])
    found |= _largest_of("predicted_bytes_{}", [sample.predicted_by_phase for sample in samples])
    found |= _largest_of("{}_bytes", [sample.sent_by_op for sample in samples])
    steps = slowest([sample.step_ms for sample in samples])
    silent = slowest([sample.compute_ms for sample in samples])
    if silent:
        found["compute_ms"] = statistics.median(silent)
        found["iterations"] = len(silent)
    if steps:
        found |= _speeds(case, steps, peak_tflops)
        if silent:
            found["exposed_comm_ms"] = found["step_ms"] - found["compute_ms"]
    return found


def _speeds(case: Case, steps: list[float], peak_tflops: float | None) -> dict[str, Any]:
    step_ms = statistics.median(steps)
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


def _largest_of(column: str, counts: Sequence[dict[str, int] | None]) -> dict[str, float | None]:
    """Each count of the ranks under the name of its column; nothing where none was taken."""
    present = [count for count in counts if count is not None]
    names = present[0] if present else {}
    return {column.format(name): largest(count[name] for count in present) for name in names}
