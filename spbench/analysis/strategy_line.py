"""What a comparison of strategies says of one of them, on one number of ranks."""

from dataclasses import asdict, dataclass
from typing import Any

from spbench.analysis.case_figures import Figure
from spbench.analysis.compare import Comparison

SURE = 0.9
"""Share of a projection's draws in which a strategy must be slower to be told apart."""
USABLE = 0.92
"""Part of a device's memory that tensors may take."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One strategy at one number of ranks. None: not measured."""

    workload: str
    panel: str
    """Workload, shape and mode in words: lines of one panel may be compared."""
    kind: str
    ranks: int
    strategy: str
    launches: int
    """Launches that the figures are computed from; none of a projected case."""
    status: str
    reason: str
    """Why there are no figures, or which launches they leave out."""
    is_noisy: bool
    """Whether noisy launches count, since too few were quiet: the times are unreliable."""
    step_ms: Figure | None
    only_launch_ms: tuple[float, float] | None
    """Tenth and ninetieth percentile of the steps, where there is one launch: their spread is no
    interval."""
    reference: str
    """The strategy that speed-ups are relative to."""
    to_reference: Comparison | None
    """This step time over the reference's; None of a share of one GPU, which has no step."""
    to_fastest: Comparison | None
    """This step time over the lowest of a strategy that can be ranked; None for that itself."""
    tokens_per_s: float | None
    compute_ms: float | None
    exposed_comm_ms: float | None
    peak_allocated_bytes: float | None
    sent_bytes: dict[str, int | None]
    predicted_bytes: dict[str, int | None]
    output_error: float | None
    gradient_error: float | None
    tolerance: float | None
    gate: str
    """passed, failed (in any launch: the errors above are that launch's), or not run."""
    wrong: str = ""
    """What was wrong in a launch whose gate passed: bytes, or the timed step."""
    gated_on: str = ""
    """The reduced workload that the gate compared; blank: it was the whole one."""
    agreed_with: str = ""
    """What the whole workload's step was compared with."""
    mfu: float | None = None
    exposed_gb_per_s: float | None = None
    """Bytes of a step over the time that it waits, where that is long enough to tell."""
    memory_limit_bytes: int | None = None
    """Memory of one device, where the row knows it."""
    slower_share: float | None = None
    """Share of the draws in which a projected case is slower than the fastest."""

    @property
    def speedup(self) -> float | None:
        """The reference's step time over this line's: above 1 is faster than the reference."""
        ratio = self.to_reference.ratio if self.to_reference else None
        return 1 / ratio if ratio else None

    @property
    def is_share(self) -> bool:
        """Whether one GPU computed a rank's share, without messages: no step, and never ranked."""
        return self.kind == "one_gpu_share"

    @property
    def time_ms(self) -> float | None:
        """Milliseconds of the step; None of a share of one GPU, which has none."""
        return self.step_ms.mean if self.step_ms and not self.is_share else None

    @property
    def fits(self) -> bool:
        """Whether it fits into a device's memory, as far as both are known."""
        limit, peak = self.memory_limit_bytes, self.peak_allocated_bytes
        if self.kind != "projected" or not limit or peak is None:
            return True
        return peak <= USABLE * limit

    @property
    def is_slower(self) -> bool:
        """Whether it is told apart from the fastest: by its launches, or by the draws."""
        if self.kind == "projected":
            return (self.slower_share or 0.0) >= SURE
        return self.to_fastest is not None and self.to_fastest.verdict == "slower"

    def as_data(self) -> dict[str, Any]:
        """The line as JSON has it."""
        return asdict(self) | {"speedup": self.speedup}
