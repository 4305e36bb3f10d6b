"""The gate: a strategy is proved equal to one device before anything is timed.

Every rank has the whole answer of one device (``reference.py``) and compares its own shard of the
output, of the input's gradient and of every weight's gradient. An error is relative: the root mean
square of (got - wanted) on this rank over that of the whole tensor. The largest of all tensors and
ranks counts, so a fault of one rank is not diluted by the others. The bytes that the rank sent are
held against the prediction, exactly, and no collective may pass by ``comm/``, which counts them.

Tolerances (their constants are in ``results/agreement.py``; ``GateResult.why_wrong`` here decides
by them): float64 1e-9 and float32 1e-4 against one device in the same dtype. In 16 bits
both are compared with float32 arithmetic on the same rounded weights, and each tensor of the
strategy may be at most four times as far from it as one device's is. In float32 with sharp rows
of scores float64 is what both are compared with, and 1e-4 holds if it is more
(``Comparison.tolerances`` in ``worker/tensor_errors.py``). Right strategies were seen up to 3e-5 in
float32 and to 0.67 of the limit in 16 bits (docs/decisions/0005). An absolute tolerance, or a loose
one, would let pass what others have shipped.

What is wrong by less than 16 bits round is seen in the float32 copy of the step: from the same
rounded weights and inputs, computed in float32, held to 1e-4. Other packages' code has no such copy
where it is right in 16 bits alone, or its kernels take no others.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch

from spbench.comm.collectives import Collectives
from spbench.comm.transport import Transports
from spbench.results.agreement import Difference
from spbench.strategies.base import Plan
from spbench.worker.memory import is_out_of_memory
from spbench.worker.observer import Observer
from spbench.worker.reference import (
    Reference,
    flipped,
    run_flipped,
    run_seeded,
    updated,
    updated_weights,
    without_weights,
)
from spbench.worker.step import Step
from spbench.worker.tensor_errors import Comparison, Named
from spbench.worker.witness import Witness
from spbench.workload.case import Execution
from spbench.workload.mesh import ALL
from spbench.workload.traffic import Count, count, merged


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """One rank's errors nearest to their tolerance, and its bytes."""

    workload: str
    """The name of the workload that was compared."""
    output: Difference
    gradient: Difference | None
    """The worst error of all gradients and of updated weights; None in forward mode."""
    other: Difference
    """The worst error of a step on other inputs, which shows what is kept from the first."""
    bypassed: str | None
    """What passed by ``comm/``, which counts the bytes."""
    sent: Count
    predicted: Count
    twin: "GateResult | None" = None
    """The result of the step in float32, where the workload is in 16 bits."""
    silent: tuple[float, float, float, float] | None = None
    """Bytes that a silent step writes beyond a real one, does not send, computes less, and more."""

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
        every = filter(None, (self.output, self.gradient, self.other))
        return max(every, key=lambda error: error.excess)

    def why_wrong(self) -> str | None:
        """The reason in a sentence; None if the gate is passed."""
        if not self.worst.excess <= 1:
            return self.worst.in_words("differs from one device")
        if self.bypassed is not None:
            return self.bypassed
        # What was predicted and never sent is as wrong as what was sent unforeseen.
        for key in sorted(self.sent.keys() | self.predicted.keys()):
            sent, predicted = self.sent.get(key, 0), self.predicted.get(key, 0)
            if sent != predicted:
                phase, op, axis = key
                where = f"{phase} over {axis}" if axis != ALL else phase
                wrong, right = float(sent), float(predicted)
                return f"{op} sent {wrong:.0f} bytes in {where}, predicted {right:.0f}"
        twin = self.twin and self.twin.why_wrong()
        return f"in the float32 copy of the step {twin}" if twin else None


def run_gate(
    plan: Plan,
    transports: Transports,
    device: torch.device,
    reference: Reference,
    observer: Observer,
    *,
    with_silent: bool = False,
    execution: Execution = "eager",
) -> GateResult:
    """Compares this rank's part of a step with one device's. Every rank must call it.

    Parameters
    ----------
    plan
        What is proved; bound anew where the reference is of a reduced workload.
    transports, device
        How this rank sends, and where it computes.
    reference
        One device's answer.
    observer
        Learns of the steps.
    with_silent
        Whether a silent step is run as well.
    execution
        How the step runs that is proved; one device's is eager.

    Returns
    -------
    GateResult
        This rank's errors and bytes.
    """
    result = _compare(plan, transports, device, reference, observer, with_silent, execution)
    twin = reference.float32_twin
    if twin is None or not plan.group.strategy.has_float32_copy:
        return result
    observer.heartbeat.working()
    uncounted = Observer(times=observer.times)  # planted faults count the case's own steps
    return replace(
        result, twin=_compare(plan, transports, device, twin, uncounted, False, execution)
    )


def _compare(
    plan: Plan,
    transports: Transports,
    device: torch.device,
    reference: Reference,
    observer: Observer,
    with_silent: bool,
    execution: Execution,
) -> GateResult:
    workload, seed, sharpness = reference.workload, reference.seed, reference.sharpness
    plan = plan.rebound(workload)
    step = Step(
        plan,
        transports,
        device,
        seed=seed,
        sharpness=sharpness,
        observer=observer,
        several_buckets=True,
    )
    step.run_as(execution)
    transports.reset()
    with step.witness() as witness:
        mine = run_seeded(step, reference.rounded_to, observer)
    mine["output"] = observer.output(mine["output"])
    sent = merged(transports.sent(), witness.sent)
    shards = step.cuts
    # Tensors of the other inputs, and updated weights, are cut as the ones that they come from.
    shards |= {flipped(name): cut for name, cut in shards.items()}
    shards |= {updated(n): shards[f"gradient of {n}"] for n in step.weights}
    comm = Collectives(transports.strategy)
    comparison = Comparison(
        reference.exact, reference.own, dtype=workload.dtype, shards=shards, comm=comm
    )
    tolerances = comparison.tolerances(list(mine))
    with step.witness() as other_witness:
        other = without_weights(step, run_flipped(step, reference.rounded_to, observer))
    tolerances |= comparison.tolerances(list(other))
    weights = updated_weights(step, reference.rounded_to, reference.exact, observer)
    tolerances |= comparison.tolerances(list(weights)) if weights else {}

    def worst(tensors: Named) -> Difference | None:
        differences = (
            Difference(name=name, relative=comparison.error(name, got), tolerance=tolerances[name])
            for name, got in tensors.items()
        )
        return max(differences, key=lambda error: error.excess, default=None)

    output, on_other = worst({"output": mine.pop("output")}), worst(other)
    assert output is not None and on_other is not None
    gradient = worst(mine | weights)  # before a silent step moves the weights again
    is_silent_too = with_silent and not plan.group.sends_itself
    silent = _silent_step(step, reference, other_witness) if is_silent_too else None
    return GateResult(
        silent=silent,
        workload=workload.name,
        output=output,
        gradient=gradient,
        other=on_other,
        bypassed=witness.why_wrong() or other_witness.why_wrong() or witness.differs(other_witness),
        sent=sent,
        predicted=count(plan.traffic, step.rank),
    )


def _silent_step(
    step: Step, reference: Reference, real: Witness
) -> tuple[float, float, float, float] | None:
    """How a silent step differs from the ``real`` one, as ``why_silent_differs`` takes it; None
    without the memory."""
    step.silent.reset()
    try:
        with step.silenced(), Witness(step.silent) as witness:
            run_flipped(step, reference.rounded_to, Observer())
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return None
    more = float(witness.written_bytes - real.written_bytes)
    less = float(real.computed_bytes - witness.computed_bytes)
    # Less and more computed are the same difference with either sign: the largest over the ranks
    # tells both.
    return more, float(sum(step.silent.sent().values())), less, -less
