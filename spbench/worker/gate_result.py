"""What the gate has found on one rank, and what is wrong with it in a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spbench.results.agreement import Difference
from spbench.workload.mesh import ALL
from spbench.workload.traffic import Count


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """One rank's errors nearest to their tolerance, and its bytes."""

    workload: str
    """The name of the workload that was compared."""
    output: Difference
    gradient: Difference | None
    """The worst error of all gradients and of updated weights; None in forward mode."""
    bypassed: str | None
    """What passed by ``comm/``, which counts the bytes."""
    sent: Count
    predicted: Count
    twin: GateResult | None = None
    """The float32 twin of a workload in 16 bits."""
    silent: tuple[float, float] | None = None
    """Bytes that a silent step writes beyond a real one, and bytes that it does not send."""

    @property
    def figures(self) -> dict[str, Any]:
        """What was compared, and how it went, as the fields of Sample and Checked call it."""
        return {
            "gated_on": self.workload,
            "output_error": self.output.relative,
            "gradient_error": None if self.gradient is None else self.gradient.relative,
            "tolerance": self.worst.tolerance,
            "float32_error": None if self.twin is None else self.twin.worst.relative,
        }

    @property
    def worst(self) -> Difference:
        return max(filter(None, (self.output, self.gradient)), key=lambda error: error.excess)

    def why_wrong(self) -> str | None:
        """The reason in a sentence; None if the gate is passed."""
        worst = self.worst
        if not worst.excess <= 1:
            return (
                f"{worst.name} differs from one device by {worst.relative:.2g} "
                f"(relative; tolerance {worst.tolerance:.2g})"
            )
        if self.bypassed is not None:
            return self.bypassed
        for key in sorted(self.sent.keys() | self.predicted.keys()):
            sent, predicted = self.sent.get(key, 0), self.predicted.get(key, 0)
            if sent != predicted:
                phase, op, axis = key
                where = f"{phase} over {axis}" if axis != ALL else phase
                wrong, right = float(sent), float(predicted)
                return f"{op} sent {wrong:.0f} bytes in {where}, predicted {right:.0f}"
        twin = self.twin and self.twin.why_wrong()
        return f"in the float32 twin of the case {twin}" if twin else None
