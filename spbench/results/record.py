"""One flat row for each launch of a case; its fields are the columns of ``runs.csv``.

The schema only ever grows at its end. A field is blank where nothing was measured; bytes are
what one rank sends in one step, the largest over the ranks.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, Self, get_type_hints

from spbench.results.sample import RowStatus
from spbench.workload.case import Case

SCHEMA_VERSION = 4


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
    """Variables that the strategy's best form asks for, as the ranks found them."""
    effort: str = ""
    """How it was measured: full, quick, counted (one step), or the seconds that were aimed at.
    Blank, in rows of before, is full."""
    round: str = ""
    """Launches that ran in one pass of one invocation: they saw the same machine."""
    stopped_by: str = ""
    """What ended sampling: precision, seconds or iterations."""
    noisy: str = ""
    """What disturbed the timed pass, in a few words; blank when it was quiet."""
    load_average: float | None = None
    others_cores: float | None = None
    """Cores of a host that anything but the ranks used during the timed pass."""
    gpu_clock_mhz: float | None = None
    gpu_power_w: float | None = None
    gpu_temperature_c: float | None = None
    gpu_throttle: str = ""
    gpu_neighbours: int | None = None
    """Processes of others on one of the GPUs."""
    hardware: str = ""
    """Stable facts of the machine: launches on other hardware are not to be compared."""
    collectives: str = ""
    """Calls of the busiest rank in one step, as forward.all_to_all=55 backward.all_to_all=55."""
    launch_s: float | None = None
    """Of the whole launch, as it was seen from outside."""
    steps_s: float | None = None
    """Of that, inside steps of rank 0, untimed ones included."""
    placement: str = ""
    """Which ranks were on which machine, as node-a 0-3, node-b 4-7; blank on one alone."""
    turns: int | None = None
    """That it took right behind one of another side's launch of its round; blank: it ran alone."""

    @property
    def effort_label(self) -> str:
        """As a case's effort is called; rows of before say none, and were full."""
        return self.effort or "full"

    @property
    def statistic(self) -> str:
        """What ``step_ms`` is of its launch's iterations."""
        return "median" if self.schema_version < 4 else "trimmed mean"

    @property
    def ranks_by_node(self) -> str:
        """How many ranks each machine had, as 4+4; of one machine all."""
        if not self.placement:
            return str(self.world_size)
        runs = [part.rpartition(" ")[2].partition("-") for part in self.placement.split(", ")]
        if not all(first.isdecimal() for first, _, _ in runs):
            return str(self.world_size)
        counts = [int(last) - int(first) + 1 if last.isdecimal() else 1 for first, _, last in runs]
        return "+".join(map(str, counts))

    @property
    def gate_error(self) -> float | None:
        """The larger of output and gradients; infinite where one is no number."""
        found = [e for e in (self.output_error, self.gradient_error) if e is not None]
        return math.inf if any(map(math.isnan, found)) else max(found, default=None)

    @property
    def compared_ms(self) -> float | None:
        """What stands for the launch's time: of a step, or of what one GPU's share computes."""
        return self.compute_ms if self.kind == "one_gpu_share" else self.step_ms

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
            effort=case.budget.label,
            **more,
        )


COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(Record))
REQUIRED = tuple(field.name for field in fields(Record) if field.default is MISSING)
"""A row without one of these is not known to be of any case."""
REQUIRED = tuple(field.name for field in fields(Record) if field.default is MISSING)
"""A row without one of these is not known to be of any case."""
REQUIRED = tuple(field.name for field in fields(Record) if field.default is MISSING)
"""A row without one of these is not known to be of any case."""


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
