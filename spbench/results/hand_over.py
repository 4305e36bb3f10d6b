"""What a rank hands to the parent by its file: samples of a launch, checks and exchanges."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, get_args

from pydantic import BaseModel, TypeAdapter

from spbench.errors import or_none
from spbench.results.agreement import Fingerprint
from spbench.results.conditions import Conditions

Content = TypeVar("Content", bound=BaseModel)
RowStatus = Literal[
    "ok",
    "oom",
    "timeout",
    "hang",
    "comm_error",
    "wrong_result",
    "crash",
    "host_oom",
    "skipped",
    "interrupted",
]
STATUSES: tuple[RowStatus, ...] = get_args(RowStatus)


class Sample(BaseModel, frozen=True):
    """Raw figures of one rank in one launch. None: not measured. A checkout that is a few commits
    older or newer may have written it: fields that are not known are ignored."""

    rank: int
    status: RowStatus
    reason: str = ""
    failed_at_s: float | None = None
    """Wall-clock time of the failure: the earliest of a launch is its cause."""
    host: str = ""
    backend: str = ""
    began_s: float | None = None
    """Wall-clock time at which the rank had joined the others and turned to its case."""
    phases_s: dict[str, float] = {}
    """Seconds of each phase from then on, in their order."""
    steps_s: float | None = None
    """Seconds inside steps: of the gate, its reference, warm-up and every pass."""
    warmup: int | None = None
    steady: bool | None = None
    """Whether steps were steady when the warm-up ended."""
    step_ms: list[float] | None = None
    compute_ms: list[float] | None = None
    """Milliseconds of the steps with silent collectives."""
    compute_note: str = ""
    """Why ``compute_ms`` is blank although steps were timed."""
    issue_ms: list[float] | None = None
    """Milliseconds until the call of each timed step returned; None without a GPU that works on."""
    stopped_by: str = ""
    """What ended the sampling: precision, seconds or iterations."""
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    host_rss_bytes: int | None = None
    sent_by_phase: dict[str, int] | None = None
    sent_by_op: dict[str, int] | None = None
    collectives: dict[str, int] | None = None
    """Calls in one step that sent something, as {"forward.all_to_all": 55}."""
    predicted_by_phase: dict[str, int] | None = None
    mesh: dict[str, int] = {}
    """Axes of the mesh and their sizes, outermost first."""
    sent_by_axis: dict[str, int] | None = None
    predicted_by_axis: dict[str, int] | None = None
    output_error: float | None = None
    gradient_error: float | None = None
    tolerance: float | None = None
    float32_error: float | None = None
    gated_on: str = ""
    device_name: str = ""
    versions: dict[str, str] = {}
    """Versions of torch, cuda and nccl, and of the vendor whose code the strategy is."""
    environment: dict[str, str] = {}
    """Variables that the strategy asked for, and a fault that was planted."""
    conditions: Conditions | None = None
    variables: dict[str, str] | None = None
    """Variables of CUDA, NCCL, torch and OpenMP, as they were when the case ran."""
    numa: str = ""
    """NUMA nodes on which the rank of a GPU may run, as numa0; any: all of several nodes."""
    attention_kernel: str = ""
    """Kernels that served torch's attention, as "cudnn+flash"; blank: there was none."""
    compiled: int | None = None
    """Compiled graphs that ran in the step behind the timed ones."""
    unseen_operators: str = ""
    """Operators in the first step that nothing can look into, and how often each was called."""
    bubble: float | None = None
    """What a stage of a pipeline waits for others, as a part of what it computes."""
    optimizer_bytes: int | None = None
    """Bytes that the optimizer keeps from step to step; None: there is no optimizer."""
    repeat_error: float | None = None
    agreement_error: float | None = None
    agreed_with: str = ""
    fingerprint: Fingerprint | None = None
    """The fingerprint of the first step; rank 0 alone has it."""


class Checked(BaseModel, frozen=True):
    """One check on one rank; blank where the strategy declines."""

    declined: str = ""
    gated_on: str = ""
    """The workload that was compared, and what it has of the full one if that is too large."""
    wrong: str = ""
    output_error: float | None = None
    gradient_error: float | None = None
    tolerance: float | None = None
    float32_error: float | None = None


CHECKED = TypeAdapter(list[Checked])
"""The file of a rank after a job of checks."""


@dataclass(frozen=True, kw_only=True)
class VerifyResult:
    """One check on one number of ranks: the largest error of any rank."""

    strategy: str
    workload: str
    ranks: int
    dtype: str
    sharpness: float
    outcome: str
    """passed, WRONG, FAILED (ranks ended in the midst of it) or declined."""
    reason: str
    output_error: float | None = None
    gradient_error: float | None = None
    tolerance: float | None = None
    float32_error: float | None = None
    is_reduced: bool = False
    """Whether ``workload`` is a reduced one."""


def sample_path(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.json"


def checks_path(folder: Path, rank: int) -> Path:
    """The rank's checks so far, a line each, which outlive a check that ends the rank."""
    return folder / f"rank{rank}.checks"


def read_json(path: Path, kind: type[Content]) -> Content | None:
    """What a rank or another process wrote; None where that is missing or unreadable."""
    return or_none(lambda: kind.model_validate_json(path.read_text(encoding="utf-8")))


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a file by a temporary file and a rename: a reader sees all of it or nothing."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
