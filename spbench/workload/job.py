"""What a launcher is asked to start: some ranks on a device, and what they do together."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, PositiveFloat, PositiveInt

from spbench.workload.block import Frozen
from spbench.workload.case import Case, Device
from spbench.workload.workload import Workload


class Check(Frozen):
    """One run of the gate: a strategy on a workload, with the logits this much sharper."""

    workload: Workload
    strategy: str
    sharpness: PositiveFloat = 1.0


class Job(Frozen):
    """One start of ``ranks`` processes: a case to measure, collectives to try, or checks."""

    ranks: PositiveInt
    device: Device
    case: Case | None = None
    checks: list[Check] = Field(default_factory=list)
    collectives: bool = False
    """Whether ranks are to send each other known numbers."""
    wire: bool = False
    """Whether the checks hold what is counted against what the kernel saw, and not results
    against one device's."""
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
