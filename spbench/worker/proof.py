"""What ``spbench.prove`` has found: how far each tensor is from one device's, and bytes sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from spbench.results.agreement import Difference
from spbench.text import counted


@final
@dataclass(frozen=True, kw_only=True)
class Proof:
    """A parallel module is equal to one device; the same on every rank but ``uncounted``."""

    ranks: int
    differences: tuple[Difference, ...]
    """The output, each input's gradient and each weight's: the largest relative error of any rank,
    a root mean square over that of the whole tensor, and the tolerance that it kept."""
    sent_bytes_forward: int
    """Bytes that the busiest rank sends in forward."""
    sent_bytes_backward: int
    """Bytes that the busiest rank sends in backward, without the sum of gradients."""
    sent_bytes_gradients: int
    """Bytes that the busiest rank sends in the sum of gradients."""
    uncounted: Mapping[str, int]
    """Calls on this rank of torch's own collectives, whose bytes nobody counts, by operation."""

    @property
    def output_error(self) -> float:
        """The output's relative error."""
        return self.differences[0].relative

    @property
    def gradient_error(self) -> float:
        """The largest relative error of all gradients; 0 where there are none."""
        return max((each.relative for each in self.differences[1:]), default=0.0)

    @property
    def tolerance(self) -> float:
        """The tolerance of the tensor that came nearest to its own."""
        return max(self.differences, key=lambda each: each.excess).tolerance

    def __str__(self) -> str:
        gradients = counted(len(self.differences) - 1, "gradient")
        beside = ", ".join(f"{name} ({counted(n, 'call')})" for name, n in self.uncounted.items())
        return (
            f"equal to one device on {counted(self.ranks, 'rank')}: relative error of the output "
            f"{self.output_error:.2g}, of {gradients} at most {self.gradient_error:.2g} "
            f"(tolerance {self.tolerance:.2g})\nbytes sent by the busiest rank: "
            f"{self.sent_bytes_forward:,} forward, {self.sent_bytes_backward:,} backward, "
            f"{self.sent_bytes_gradients:,} in the sum of gradients"
            + (f"\nnot counted: {beside}" if beside else "")
        )


@final
class ProofError(AssertionError):
    """A parallel module differs from one device; raised on every rank, with the same tensor."""

    def __init__(self, message: str, differences: Sequence[Difference] = ()) -> None:
        super().__init__(message)
        self.differences = tuple(differences)
        """How far each tensor is off; none where the outputs have other shapes."""


def in_words(differences: Sequence[Difference], rank: int, hint: str) -> str:
    """Which tensor is wrong, the output before any gradient, and how many more."""
    wrong = [each for each in differences if not each.excess <= 1]
    worst = blamed(differences)
    more = f", and so do {len(wrong) - 1} of {len(differences) - 1} others" if wrong[1:] else ""
    return (
        f"{worst.name} differs from one device by {worst.relative:.2g} (relative; tolerance "
        f"{worst.tolerance:.2g}) on rank {rank}{more}{hint and f'. {hint}'}"
    )


def blamed(differences: Sequence[Difference]) -> Difference:
    """The output if it is wrong, from which every gradient follows; else the worst tensor."""
    output = differences[0]
    is_wrong = not output.excess <= 1
    return output if is_wrong else max(differences, key=lambda each: each.excess)
