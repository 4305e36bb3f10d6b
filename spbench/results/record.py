"""One flat row for each launch of a case; its fields are the columns of ``runs.csv``.

The schema only grows at its end. Blank is not measured; bytes are what a rank sends in a step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Self

from spbench.results.hand_over import RowStatus
from spbench.results.variables import compared
from spbench.workload.case import Case


def axes_text(axes: Mapping[str, int]) -> str:
    """Lengths as a row has them: time=8xspace=512."""
    return "x".join(f"{name}={length}" for name, length in axes.items())


def columns_of_case(case: Case) -> dict[str, Any]:
    """The columns that are known before anything ran."""
    work = case.workload
    of_work = ("tokens", "hidden", "heads", "batch", "dtype", "mode", "checkpointing")
    return {
        "case": case.key,
        "strategy": case.name,
        "workload": work.name,
        "axes": axes_text(work.axes),
        **{name: getattr(work, name) for name in of_work},
        "optimizer": "" if work.optimizer == "none" else work.optimizer,
        "guidance": "" if work.guidance == 1 else str(work.guidance),
        **{name: getattr(case, name) for name in ("device", "kind", "launch", "workload_key")},
        "world_size": case.ranks,
        **case.mesh.sizes(case.ranks),
        "mesh": str(case.mesh),
        "effort": case.budget.label,
    }


SCHEMA_VERSION = 4
MUCH = 0.1
"""Share of a step below which waiting is not worth a warning or a rate, and may be noise."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """A launch, measured or failed. ``docs/columns.md`` says what each field means."""

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
    kind: str = "measured"
    world_size: int
    sp_size: int
    dp_size: int = 1
    launch: int
    status: RowStatus
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
    effort: str = ""
    round: str = ""
    stopped_by: str = ""
    noisy: str = ""
    load_average: float | None = None
    others_cores: float | None = None
    gpu_clock_mhz: float | None = None
    gpu_power_w: float | None = None
    gpu_temperature_c: float | None = None
    gpu_throttle: str = ""
    gpu_neighbours: int | None = None
    hardware: str = ""
    collectives: str = ""
    launch_s: float | None = None
    steps_s: float | None = None
    placement: str = ""
    turns: int | None = None
    attention_kernel: str = ""
    issue_ms: float | None = None
    host_bound: str = ""
    alloc_retries: int | None = None
    timed_clock_mhz: float | None = None
    silent_clock_mhz: float | None = None
    exposed_comm_ms_low: float | None = None
    exposed_comm_ms_high: float | None = None
    compute_note: str = ""
    optimizer: str = ""
    optimizer_bytes: int | None = None
    repeat_error: float | None = None
    agreement_error: float | None = None
    agreed_with: str = ""
    variables: str = ""
    numa: str = ""
    steady: str = ""
    float32_error: float | None = None
    mesh: str = ""
    bytes_by_mesh_axis: str = ""
    mesh_across_nodes: str = ""
    guidance: str = ""
    cluster: str = ""
    step_ms_low: float | None = None
    step_ms_high: float | None = None
    hidden_comm_ms: float | None = None
    memory_limit_bytes: int | None = None
    tokens: int | None = None
    hidden: int | None = None
    heads: int | None = None
    exposed_gb_per_s: float | None = None
    slower_share: float | None = None
    cpu_gflop_per_s: float | None = None
    compiled: int | None = None
    unseen_operators: str = ""

    @property
    def effort_label(self) -> str:
        """Name of the measurement budget; rows of older versions have none, and were full."""
        return self.effort or "full"

    @property
    def statistic(self) -> str:
        """How ``step_ms`` is made of the iterations of the launch."""
        return "median" if self.schema_version < 4 else "trimmed mean"

    @property
    def compared_variables(self) -> str:
        """Variables of its ranks that times may depend on, besides what the strategy asks for."""
        return compared(self.variables, self.environment)

    @property
    def numa_binding(self) -> str:
        """Whether ranks were bound to NUMA nodes, whichever; blank: not known, or there is one."""
        return "" if not self.numa else "none" if "any " in self.numa else "bound"

    @property
    def ranks_by_node(self) -> str:
        """Number of ranks on each machine, as 4+4."""
        runs = [part.rpartition(" ")[2].partition("-") for part in self.placement.split(", ")]
        if not all(first.isdecimal() for first, _, _ in runs):
            return str(self.world_size)
        counts = [int(last) - int(first) + 1 if last.isdecimal() else 1 for first, _, last in runs]
        return "+".join(map(str, counts))

    @property
    def gate_error(self) -> float | None:
        """The larger error of output and gradients; infinite where one is not a number."""
        errors = [e for e in (self.output_error, self.gradient_error) if e is not None]
        return math.inf if any(map(math.isnan, errors)) else max(errors, default=None)

    @property
    def is_gate_reduced(self) -> bool:
        """Whether the gate compared a reduced workload, not the whole one."""
        return self.gated_on not in ("", self.workload)

    @property
    def compared_ms(self) -> float | None:
        """Time that launches are compared by: a step's, or one GPU's share of computation."""
        return self.compute_ms if self.kind == "one_gpu_share" else self.step_ms

    @classmethod
    def of_case(cls, case: Case, **more: Any) -> Self:
        """Record of a case before anything ran, with ``more`` columns."""
        return cls(**(columns_of_case(case) | more))


DEFAULTS = {field.name: field.default for field in fields(Record)}
COLUMNS: tuple[str, ...] = (*DEFAULTS,)
REQUIRED = tuple(name for name, default in DEFAULTS.items() if default is MISSING)
"""Columns without which it is not known what case a row belongs to."""
