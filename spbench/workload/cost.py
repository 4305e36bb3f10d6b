"""How many parameters a workload has and how many operations a step takes, by formula.

torch's FlopCounterMode sees nothing of CPU attention, so operations are counted here and
tested against it on the math backend. A multiply and an add are two operations.

    linear     2 x tokens x in x out
    attention  4 x tokens x attended length x hidden   (scores, and their product with v)
    backward   twice the forward; recomputation is not counted (model operations)
"""

from __future__ import annotations

from dataclasses import dataclass

from spbench.workload.workload import Attention, CrossAttention, Mlp, Sublayer, Workload


@dataclass(frozen=True, kw_only=True)
class ParameterCount:
    """Parameters of a workload, by what a tensor-cutting strategy may do with them."""

    cuttable: int
    """Weights and biases of projections into sublayers, weights of those out of them."""
    replicated: int
    """Norms, modulation, biases added after a reduction, the final projection."""

    @property
    def total(self) -> int:
        return self.cuttable + self.replicated


def parameters(workload: Workload) -> ParameterCount:
    hidden = workload.hidden
    cuttable = replicated = 0
    modulated = 0
    for sublayer in workload.block:
        match sublayer:
            case Attention() | CrossAttention():
                cuttable += 4 * hidden * hidden + 3 * hidden
            case Mlp():
                columns = workload.columns(sublayer)
                cuttable += 2 * hidden * columns + columns
        replicated += hidden  # the bias of the projection out
        modulates = is_modulated(sublayer, workload)
        modulated += modulates
        replicated += 3 * hidden if modulates else 2 * hidden  # table, or the norm's own affine
    shared = 3 * modulated * (hidden * hidden + hidden)  # one projection of the condition for all
    final = 2 * hidden + workload.out_channels * (hidden + 1)
    return ParameterCount(
        cuttable=workload.depth * cuttable,
        replicated=workload.depth * replicated + shared + final,
    )


def is_modulated(sublayer: Sublayer, workload: Workload) -> bool:
    """adaLN acts on self-attention and mlp, as in the DiT family, not on cross-attention."""
    return workload.modulation != "none" and not isinstance(sublayer, CrossAttention)


def step_flops(workload: Workload) -> int:
    """Operations of one step of the whole batch, all ranks together."""
    return forward_flops(workload) * (3 if workload.mode == "train" else 1)


def forward_flops(workload: Workload) -> int:
    hidden, tokens = workload.hidden, workload.batch * workload.tokens
    total = 0
    for sublayer in workload.block:
        match sublayer:
            case Attention():
                total += 8 * tokens * hidden * hidden
                total += 4 * tokens * workload.axes[sublayer.axis] * hidden
            case CrossAttention():
                total += 4 * (tokens + workload.batch * sublayer.length) * hidden * hidden
                total += 4 * tokens * sublayer.length * hidden
            case Mlp():
                total += 4 * tokens * hidden * workload.columns(sublayer)
    modulated = sum(is_modulated(sublayer, workload) for sublayer in workload.block)
    times = workload.axes["time"] if workload.modulation == "per_time" else 1
    condition = 2 * workload.batch * times * hidden * 3 * modulated * hidden
    final = 2 * tokens * hidden * workload.out_channels
    return workload.depth * total + condition + final
