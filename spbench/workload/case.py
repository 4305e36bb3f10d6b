"""A case: a workload, a strategy and ranks; and the job that a launcher is given to start.

Runs are resumed and compared by a case's ``key``, a hash of its resolved fields. How often and
how long a case is measured is not part of the key.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from spbench.workload.block import Frozen
from spbench.workload.mesh import CaseMesh
from spbench.workload.timed import TimedKernel, TimedTransfer
from spbench.workload.workload import Workload

Kind = Literal["measured", "one_gpu_share", "dry_run", "projected"]
"""Where figures come from; times of different kinds are never judged against each other."""
Device = Literal["cuda", "cpu"]
Execution = Literal["eager", "compiled", "graph"]
"""How a step runs: operation by operation as it is written, each sublayer as torch.compile makes
it, or the whole step captured as one CUDA graph and replayed."""
MAX_RANKS = 65_536
"""Ranks of a case. Its bytes are worked out rank by rank."""
Ranks = Annotated[int, Field(gt=0, le=MAX_RANKS)]


class MeasurementBudget(Frozen):
    """How long a rank warms up and measures."""

    min_warmup: PositiveInt = 3
    max_warmup: PositiveInt = 2000
    min_iterations: PositiveInt = 5
    max_iterations: PositiveInt = 200
    seconds: PositiveFloat = 3.0
    """Aim for the timed pass; min_iterations and the last block may exceed it."""
    precision: PositiveFloat = 0.01
    """Half width of the median's 95 % interval, relative to it, that ends the timed pass. The
    interval assumes independent iterations, so launches may differ by more (worker/sampling.py)."""
    silent: bool = True
    """Whether steps without communication are timed too; if not, exposed time stays blank."""

    @property
    def label(self) -> str:
        """The budget's name in results. Times of different budgets are not compared, since the
        steps that run between the timed ones may change them."""
        named = {QUICK: "quick", COUNTED: "counted", MeasurementBudget(): "full"}
        return named.get(self, f"{self.seconds:g} s{'' if self.silent else ', none silent'}")

    @property
    def max_steps(self) -> int:
        """Steps of a rank at most: the gate's, two counted, warm-up, both passes, and those that
        are looked at before and after them."""
        silent = 2 + self.max_iterations if self.silent else 0
        return 5 + self.max_warmup + self.max_iterations + silent


QUICK = MeasurementBudget(max_warmup=5, min_iterations=3, max_iterations=20, seconds=0.5)
COUNTED = MeasurementBudget(
    silent=False, min_warmup=1, max_warmup=1, min_iterations=1, max_iterations=1
)
"""For metrics other than time: memory and bytes are counted before the timed steps."""


@dataclass(frozen=True, kw_only=True)
class Combination:
    """A requested workload, strategy with its options, and number of ranks."""

    workload: Workload
    strategy: str
    ranks: int
    mesh: CaseMesh = field(default_factory=CaseMesh)
    place: str = field(default="", compare=False)
    """``file:line`` of the request; empty for the command line."""


class Meshed(Frozen):
    """A workload, and a strategy with its options in the mesh around it."""

    workload: Workload
    strategy: str
    mesh: CaseMesh = Field(default_factory=CaseMesh)

    @property
    def name(self) -> str:
        """The strategy, and the mesh around it: what cases of a workload and ranks differ in."""
        return self.mesh.beside(self.strategy)


class Case(Meshed):
    """A workload, a strategy with its options, and the ranks that share it."""

    ranks: Ranks
    device: Device
    kind: Kind = "measured"
    execution: Execution = "eager"
    seed: NonNegativeInt = 0
    launch: NonNegativeInt = 0
    budget: MeasurementBudget = Field(
        default_factory=MeasurementBudget, validation_alias="effort", serialization_alias="effort"
    )
    """Written as ``effort`` in job.json, as is its label in runs.csv."""

    @property
    def key(self) -> str:
        """16 hexadecimal digits; equal for cases that measure the same thing."""
        without = {
            "launch",
            "budget",
            "workload",
            "mesh",
            *(["execution"] if self.is_eager else []),
        }
        fields = self.model_dump(mode="json", by_alias=True, exclude=without)
        fields |= {"mesh": str(self.mesh)} if str(self.mesh) else {}
        return _hash(fields | {"workload": _resolved_fields(self.workload, "source")})[:16]

    @property
    def is_eager(self) -> bool:
        return self.execution == "eager"

    @property
    def workload_key(self) -> str:
        """8 hexadecimal digits; equal for workloads that compute the same, whatever their names."""
        return _hash(_resolved_fields(self.workload, "name", "source"))[:8]

    @property
    def label(self) -> str:
        return f"{self.name} on {self.ranks}"

    @property
    def processes(self) -> int:
        """Processes that it takes: one for a share of a group, however large the group."""
        return 1 if self.kind == "one_gpu_share" else self.ranks


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A case of the sweep, and why it cannot run, if it cannot."""

    case: Case
    why_not: str | None


def _hash(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


@lru_cache
def _resolved_fields(work: Workload, *without: str) -> Mapping[str, Any]:
    """Fields that differ from their defaults, so that a key outlives new fields.

    Axes keep their order, which is the tensor's. Equivalent spellings give equal fields.
    """
    fields = work.model_dump(mode="json", by_alias=True, exclude={*without}, exclude_defaults=True)
    fields["axes"] = list(work.axes.items())
    if len(fields.get("stacks", ())) == 1:
        fields |= fields.pop("stacks")[0]
    if work.key_heads == work.heads:
        fields.pop("kv_heads", None)
    if work.attention_width == work.hidden:
        fields.pop("head_dim", None)
    if work.value_size == work.head_size:
        fields.pop("v_head_dim", None)
    positions = {axis: work.position_of(axis) for axis in work.axes}
    fields["positions"] = sorted(pair for pair in positions.items() if pair[1] != "none")
    return fields


class GateCheck(Meshed):
    """One run of the gate: a strategy on a workload."""

    sharpness: PositiveFloat = 1.0
    """Factor on the projections to q, k and v, and so on the differences between scores."""


class Job(Frozen):
    """One start of ``ranks`` processes: to measure, run gate checks, try or time collectives."""

    ranks: PositiveInt
    device: Device
    case: Case | None = None
    checks: list[GateCheck] = Field(default_factory=list)
    collectives: bool = False
    """Whether the ranks try each collective with known numbers."""
    transfers: list[TimedTransfer] = Field(default_factory=list)
    kernels: list[TimedKernel] = Field(default_factory=list)
    steps: list[GateCheck] = Field(default_factory=list)
    """What each rank times beside the transfers, at once; steps alone, its share, and together."""
    timeout_s: PositiveFloat = 600.0
    hang_s: PositiveFloat = 180.0
    """Time without progress of any rank after which the launch is ended."""
    nodes: list[int] = Field(default_factory=list)
    """Ranks on each node; empty: all on this one."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables to set in each rank before its device is touched."""

    @property
    def processes(self) -> int:
        """Processes to start."""
        return self.ranks if self.case is None else self.case.processes

    @classmethod
    def read(cls, folder: Path) -> "Job":
        return cls.model_validate_json((folder / "job.json").read_text(encoding="utf-8"))

    def write(self, folder: Path) -> None:
        """Writes job.json without fields at their defaults, so that checkouts a few commits older
        or newer can read it."""
        folder.mkdir(parents=True, exist_ok=True)
        text = self.model_dump_json(by_alias=True, exclude_defaults=True)
        (folder / "job.json").write_text(text, encoding="utf-8")
