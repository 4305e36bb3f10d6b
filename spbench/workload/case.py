"""A Case: one cell of a sweep, with everything that decides its outcome.

``key`` is a hash of the resolved fields. Resuming and comparing go by it; how often and how
long a case is measured is not part of it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from spbench.workload.block import Frozen
from spbench.workload.workload import Workload

Kind = Literal["measured", "one_gpu_share"]
Device = Literal["cuda", "cpu"]


class MeasurementBudget(Frozen):
    """How long a rank warms up and measures."""

    min_warmup: PositiveInt = 3
    max_warmup: PositiveInt = 12
    min_iterations: PositiveInt = 5
    max_iterations: PositiveInt = 200
    seconds: PositiveFloat = 3.0
    """Aimed at for the timed pass; min_iterations and the last block may exceed it."""
    precision: PositiveFloat = 0.01
    """Enough when the median's 95 % interval, were iterations independent, is this far to each
    side of it. They are not, so another launch may differ by more (see worker/sampling.py)."""
    silent: bool = True
    """Whether steps without communication are timed too; if not, what is exposed stays blank."""

    @property
    def label(self) -> str:
        """Times of two efforts are not compared: what runs between the steps might change them."""
        named = {QUICK: "quick", COUNTED: "counted", MeasurementBudget(): "full"}
        return named.get(self, f"{self.seconds:g} s{'' if self.silent else ', none silent'}")

    @property
    def most_steps(self) -> int:
        """That a rank may run: the gate's, two that are counted, warm-up, and both passes."""
        silent = 1 + self.max_iterations if self.silent else 0
        return 3 + self.max_warmup + self.max_iterations + silent


QUICK = MeasurementBudget(max_warmup=5, min_iterations=3, max_iterations=20, seconds=0.5)
COUNTED = MeasurementBudget(
    silent=False, min_warmup=1, max_warmup=1, min_iterations=1, max_iterations=1
)
"""Where no time is judged: memory and bytes are counted before the timed steps."""


@dataclass(frozen=True, kw_only=True)
class Combination:
    """What is asked for: a workload, a strategy with its options, and a number of ranks."""

    workload: Workload
    strategy: str
    ranks: int
    place: str = field(default="", compare=False)
    """Where it was asked for, as ``file:line``; empty on the command line."""


class Case(Frozen):
    """A workload, a strategy with its options, and the ranks that share it."""

    workload: Workload
    strategy: str
    ranks: PositiveInt
    device: Device
    kind: Kind = "measured"
    seed: NonNegativeInt = 0
    launch: NonNegativeInt = 0
    budget: MeasurementBudget = Field(
        default_factory=MeasurementBudget, validation_alias="effort", serialization_alias="effort"
    )
    """``effort`` in job.json and in the columns of results."""

    @property
    def key(self) -> str:
        """16 hexadecimal digits; equal for cases that ask for the same thing."""
        resolved = self.model_dump(
            mode="json", by_alias=True, exclude={"launch", "budget", "workload"}
        )
        resolved["workload"] = _stated(self.workload, {"source"})
        text = json.dumps(resolved, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def workload_key(self) -> str:
        """Equal for workloads that compute the same thing, whatever they are called."""
        resolved = _stated(self.workload, {"name", "source"})
        return hashlib.sha256(json.dumps(resolved, sort_keys=True).encode()).hexdigest()[:8]

    @property
    def label(self) -> str:
        return f"{self.strategy} on {self.ranks}"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A case of the sweep, and why it cannot run, if it cannot."""

    case: Case
    why_not: str | None


def _stated(workload: Workload, without: set[str]) -> dict[str, Any]:
    """What differs from the defaults: a key outlives new fields that are left alone.

    Axes keep their order, which is the tensor's; what is said in two ways is said in one.
    """
    stated = workload.model_dump(mode="json", by_alias=True, exclude=without, exclude_defaults=True)
    stated["axes"] = list(workload.axes.items())
    if workload.key_heads == workload.heads:
        stated.pop("kv_heads", None)
    told = {axis: how for axis in workload.axes if (how := workload.position_of(axis)) != "none"}
    stated["positions"] = sorted(told.items())
    return stated


class GateCheck(Frozen):
    """One run of the gate: a strategy on a workload, with the logits this much sharper."""

    workload: Workload
    strategy: str
    sharpness: PositiveFloat = 1.0


class Job(Frozen):
    """One start of ``ranks`` processes: a case to measure, collectives to try, or checks."""

    ranks: PositiveInt
    device: Device
    case: Case | None = None
    checks: list[GateCheck] = Field(default_factory=list)
    collectives: bool = False
    """Whether ranks are to send each other known numbers."""
    timeout_s: PositiveFloat = 600.0
    """Of the whole launch."""
    hang_s: PositiveFloat = 180.0
    """Without a sign of life of any rank."""
    nodes: list[int] = Field(default_factory=list)
    """Ranks on each machine that takes part; empty: all on this one."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables to set in each rank before its device is touched."""

    @property
    def processes(self) -> int:
        """A share of a group is one process, whatever group it claims."""
        return 1 if self.case is not None and self.case.kind == "one_gpu_share" else self.ranks

    @classmethod
    def read(cls, folder: Path) -> Job:
        return cls.model_validate_json((folder / "job.json").read_text(encoding="utf-8"))

    def write(self, folder: Path) -> None:
        """Without what is left at its default: a checkout that is a few commits older or newer
        can read it as long as nothing is stated that it does not know."""
        folder.mkdir(parents=True, exist_ok=True)
        text = self.model_dump_json(by_alias=True, exclude_defaults=True)
        (folder / "job.json").write_text(text, encoding="utf-8")
