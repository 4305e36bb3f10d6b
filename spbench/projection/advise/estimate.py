"""What a candidate takes and holds before any dry run: by its transfers, its weights, and what
dry runs of others have told.

    seconds   what a rank computes + the update of its weights + its messages
    at least  a little less than the least that was computed, the same update, and of messages
              the part that kernels hid of none like them
    bytes     weights, what the optimizer keeps, gradients or activations: what a rank holds at
              least

A rank computes about as much by whatever strategy: products and attentions of a step over the
ranks. So the least of the dry runs tells of all, until another computes less; and a plan that ran
computes as much whatever its ranks share out.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import final

from spbench.projection.advise.plans import RECOMPUTED, Candidate
from spbench.projection.advise.project import Projection
from spbench.projection.costmodel.hardware import Cluster
from spbench.projection.costmodel.step_time import COMPUTE, HOST, OVERLAP, Mode, Prices
from spbench.projection.dryrun.depths import MOMENTS
from spbench.projection.dryrun.trace import ADAMW_PASSES
from spbench.projection.dryrun.work import Kernel, Message
from spbench.strategies.base import Plan
from spbench.workload.fields import DTYPE_BYTES
from spbench.workload.flops import executed_flops
from spbench.workload.stages import Stages
from spbench.workload.traffic import Op, Transfer, tally
from spbench.workload.weights import (
    are_shared,
    of_block,
    of_no_block,
    padded_numbers,
    sharing_axes,
    weights_of_stages,
)
from spbench.workload.workload import Workload

LESS, LESS_ALIKE = 0.97, 0.985
"""The least that a plan computes beside the least of all that ran, and of those that ran with as
many neighbours that cut the weights."""
LESS_HELD = 0.95
"""The least of the activations that a plan keeps beside the least of all that ran."""
SIDE = 4096
"""Rows and columns of the product whose rate stands for a step's until one has run."""


@final
@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A candidate's own part: all that does not depend on what others are known to do."""

    candidate: Candidate
    update_s: float
    """Seconds of the optimizer's update of the weights."""
    sent_s: Mapping[Op, float]
    """Seconds of the strategy's messages that wait for nothing but each other."""
    gathers_s: float
    """Those by which weights come together that ranks share out: a GPU may hide them."""
    gradients_s: float
    """Those of gradients, which the rest of backward may hide."""
    kept_bytes: int
    """Weights of a rank, and what its optimizer keeps."""
    gathered_bytes: int
    """Weights of others that are there as forward is over."""
    gradient_bytes: int

    @property
    def kind(self) -> tuple[str, bool]:
        """Candidates of a kind hide messages alike: a strategy, across groups that cut weights or
        not."""
        return self.candidate.strategy.partition(":")[0], self.candidate.mesh.tp > 1

    @property
    def computes(self) -> tuple[Hashable, ...]:
        """Candidates that compute the same beside the update, those that compute about the same,
        and those that have the same to compute; each as the ones before it are named."""
        way, mesh = self.candidate.workload.checkpointing, self.candidate.mesh
        return (way, self.candidate.name), (way, mesh.tp, mesh.pp), (way, mesh.pp > 1)

    @property
    def bubble(self) -> float:
        """What a stage of a pipeline waits for others, as a part of what it does."""
        stages = self.candidate.plan.stages
        return 0.0 if stages is None else float(stages.bubble)

    @property
    def launches(self) -> tuple[Hashable, Hashable]:
        """Its name, whose other forms launch no less than the one that computes nothing again and
        shares out nothing; and its kind with the same neighbours."""
        return self.candidate.name, (self.kind, self.candidate.mesh.tp)

    def held_bytes(self, activations: float) -> float:
        """What it holds at least, where forward leaves so much for backward."""
        in_forward = self.gathered_bytes + activations
        return self.kept_bytes + max(in_forward, self.gradient_bytes)


@final
@dataclass(kw_only=True)
class Estimator:
    """Estimates of one workload on a cluster, and what dry runs tell of all candidates."""

    cluster: Cluster
    mode: Mode
    ranks: int
    prices: Prices = field(default_factory=Prices)
    computed_s: dict[Hashable, float] = field(default_factory=dict)
    """The least that a rank computes beside the update, by what ``Estimate.computes`` names."""
    host_s: dict[Hashable, float] = field(default_factory=dict)
    """The least that the host takes to launch what a candidate calls, by its name, and by those
    that launch about as much."""
    activations: dict[Hashable, int] = field(default_factory=dict)
    """The least that forward leaves for backward, by the same names."""
    hidden: dict[tuple[str, bool], dict[str, float]] = field(default_factory=dict)
    """By the kind of candidates, the largest part of an operation's messages that was hidden."""
    _of_weights: dict[Hashable, tuple[float, float]] = field(default_factory=dict)
    _of_plans: dict[Plan, Mapping[Op, float]] = field(default_factory=dict)
    _held: dict[Hashable, tuple[int, int]] = field(default_factory=dict)
    _operations: dict[str, int] = field(default_factory=dict)

    def estimate(self, candidate: Candidate) -> Estimate:
        """What is told without a dry run."""
        whole, own = self._weight_bytes(candidate)
        workload = candidate.workload
        trains, updates = workload.mode == "train", workload.optimizer != "none"
        gathers_s, gradients_s = self._sent_of_weights(candidate)
        return Estimate(
            candidate=candidate,
            update_s=self._pass_s(ADAMW_PASSES * own, workload) if updates else 0.0,
            sent_s=self._sent_of_sublayers(candidate.plan),
            gathers_s=gathers_s,
            gradients_s=gradients_s,
            kept_bytes=own * (1 + MOMENTS * updates),
            gathered_bytes=whole if own < whole and workload.zero < 3 else 0,
            # Stage 1 has all gradients whole before they go to the ranks that keep them.
            gradient_bytes=trains
            * (whole if own == whole else own if workload.zero > 1 else whole),
        )

    def learn(self, estimate: Estimate, run: Projection) -> None:
        """What a dry run tells of other candidates."""
        if run.cost is None or run.work is None:
            return
        terms = run.took.terms
        took = sum(terms.get(term, 0.0) for term in COMPUTE) - estimate.update_s
        for group in estimate.computes:
            self.computed_s[group] = min(took, self.computed_s.get(group, took))
            if run.work.memory:
                kept = run.work.memory.activations
                self.activations[group] = min(kept, self.activations.get(group, kept))
        for group in estimate.launches:
            self.host_s[group] = min(terms[HOST], self.host_s.get(group, terms[HOST]))
        hidden = self.hidden.setdefault(estimate.kind, {})
        for op in estimate.sent_s:
            inside, outside = (
                sum(s for term, s in terms.items() if term.startswith(op) and term.endswith(end))
                for end in (" hidden", " exposed")
            )
            part = inside / (inside + outside) if inside else 0.0
            hidden[op] = max(part, hidden.get(op, 0.0))

    def least_s(self, estimate: Estimate) -> float:
        """Seconds that a candidate takes at least, as far as is known."""
        hidden = self.hidden.get(estimate.kind, {})
        sent_s = sum(s * (1 - hidden.get(op, OVERLAP)) for op, s in estimate.sent_s.items())
        is_gpu = self.cluster.device.kind == "gpu"
        sent_s += (1 - OVERLAP * is_gpu) * estimate.gathers_s
        sent_s += (1 - OVERLAP) * estimate.gradients_s
        factors = 1.0, LESS_ALIKE, LESS
        known = (
            factor * self.computed_s[group]
            for factor, group in zip(factors, estimate.computes, strict=True)
            if group in self.computed_s
        )
        compute_s = next(known, LESS * self.compute_s(estimate))
        own, alike = estimate.launches
        host_s = self.host_s.get(own, LESS * self.host_s.get(alike, 0.0))
        busy_s = compute_s + estimate.update_s + sent_s
        return (max(busy_s, host_s) if is_gpu else busy_s + host_s) * (1 + estimate.bubble)

    def likely_s(self, estimate: Estimate) -> float:
        """Seconds by which candidates are put in order: half of what may be hidden is, where
        nothing is known of the like."""
        hidden = self.hidden.get(estimate.kind, {})
        sent_s = sum(s * (1 - hidden.get(op, OVERLAP / 2)) for op, s in estimate.sent_s.items())
        is_gpu = self.cluster.device.kind == "gpu"
        sent_s += (1 - 0.5 * is_gpu) * estimate.gathers_s + 0.5 * estimate.gradients_s
        own = self.compute_s(estimate) * estimate.candidate.plan.unevenness
        return (own + estimate.update_s + sent_s) * (1 + estimate.bubble)

    def compute_s(self, estimate: Estimate) -> float:
        """What a rank computes beside the update: as the least that ran."""
        workload = estimate.candidate.workload
        flops = self._flops(workload, workload.checkpointing)
        for way in (workload.checkpointing, *RECOMPUTED):
            if (known := self.computed_s.get((way, False))) is not None:
                return known * flops / self._flops(workload, way)
        shape = (1, SIDE, SIDE, SIDE)
        of_one = 2 * prod(shape)
        product = Kernel(kind="gemm", phase="forward", shape=shape, flops=of_one, moved_bytes=0)
        rates = self.prices.rates(self._on.device, workload.dtype, self.mode)
        return flops / self.ranks / of_one * rates.cost(product).seconds

    def held_bytes(self, estimate: Estimate) -> float:
        """Bytes that a candidate holds at least, as far as is known."""
        own, _, alike = estimate.computes
        of_others = LESS_HELD * self.activations.get(alike, 0)
        kept = self.activations.get(own, of_others)
        return estimate.held_bytes(kept)

    @property
    def _on(self) -> Cluster:
        return self.cluster.used_by(self.ranks)

    def _pass_s(self, moved: int, workload: Workload) -> float:
        kernel = Kernel(kind="elementwise", phase="gradients", shape=(), flops=0, moved_bytes=moved)
        return self.prices.rates(self._on.device, workload.dtype, self.mode).cost(kernel).seconds

    def _seconds(self, plan: Plan, transfer: Transfer) -> float:
        """Seconds of a transfer, of as many bytes as a rank sends on average."""
        sent = sum(map(float, transfer.sent)) / len(transfer.sent)
        if not sent:
            return 0.0
        message = Message(
            op=transfer.op, phase=transfer.phase, axis=transfer.axis, sent_bytes=round(sent)
        )
        return self.prices.message(message, plan.mesh, self._on, plan.mesh.names).seconds

    def _flops(self, workload: Workload, way: str) -> int:
        """Operations of a step that computes so much again."""
        if way not in self._operations:
            other = workload.model_copy(update={"checkpointing": way})
            self._operations[way] = executed_flops(other)
        return self._operations[way]

    def _weight_bytes(self, candidate: Candidate) -> tuple[int, int]:
        """Bytes of the weights that a rank computes with, and of those that it keeps."""
        plan, workload = candidate.plan, candidate.workload
        parts = plan.mesh.size_of(plan.mesh.last) if plan.cuts_weights else 1
        sharing = 1
        if are_shared(workload, plan.mesh, plan.cuts_weights):
            sharing = plan.mesh.only(*sharing_axes(plan.mesh, plan.cuts_weights)).size
        key = parts, sharing, plan.stages
        if key not in self._held:
            self._held[key] = _numbers(plan.workload, parts, sharing, plan.stages)
        whole, own = self._held[key]
        size = DTYPE_BYTES[workload.dtype]
        return whole * size, own * size

    def _sent_of_sublayers(self, plan: Plan) -> Mapping[Op, float]:
        """Seconds of each operation: the same for all candidates of a plan."""
        if plan not in self._of_plans:
            sent: dict[Op, float] = {}
            for transfer, times in tally(plan.of_sublayers):
                seconds = times * self._seconds(plan, transfer)
                sent[transfer.op] = sent.get(transfer.op, 0.0) + seconds
            self._of_plans[plan] = sent
        return self._of_plans[plan]

    def _sent_of_weights(self, candidate: Candidate) -> tuple[float, float]:
        """Seconds of gathers, and of gradients: the same for all plans that hold weights alike."""
        plan, workload = candidate.plan, candidate.workload
        key = plan.mesh, plan.cuts_weights, plan.holds_whole, plan.stages, workload.zero
        if key not in self._of_weights:
            own = replace(plan, workload=plan.workload.model_copy(update={"zero": workload.zero}))
            gathers_s = gradients_s = 0.0
            for transfer, times in tally(own.of_weights):
                seconds = times * self._seconds(plan, transfer)
                if transfer.phase == "gradients":
                    gradients_s += seconds
                else:
                    gathers_s += seconds
            self._of_weights[key] = gathers_s, gradients_s
        return self._of_weights[key]


def _numbers(
    workload: Workload, parts: int, sharing: int, stages: Stages | None
) -> tuple[int, int]:
    """Numbers of all weights that are cut in so many parts, or of the stage that has the most, and
    of what a rank keeps of them."""
    if workload.is_attention_alone:
        return 0, 0
    if stages is not None:
        of_stages = weights_of_stages(workload, stages)
        most = max(sum(prod(each.of(0, parts)) for each in own) for own in of_stages)
        return most, most
    stacks = [(of_block(part, workload), part.depth) for part in workload.parts]
    whole = own = 0
    for weights, depth in [(of_no_block(workload), 1), *stacks]:
        shapes = [weight.of(0, parts) for weight in weights]
        whole += depth * sum(map(prod, shapes))
        own += depth * sum(
            padded_numbers(shape, sharing) if sharing > 1 else prod(shape) for shape in shapes
        )
    return whole, own
