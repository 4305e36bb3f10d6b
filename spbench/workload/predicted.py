"""Predictions of what a strategy shards, sends and holds, as plain data that needs no torch.

``strategies.describe`` makes them before any rank is started; dry run and diagram print them. The
memory of a rank is estimated by formula: what a step keeps, not what passes by.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import final

from spbench.workload.block import Attention, Mlp, Sublayer
from spbench.workload.flops import modulated, parameters
from spbench.workload.traffic import Op
from spbench.workload.workload import DTYPE_BYTES, Workload


@final
@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The sharding and bytes of a case that has not run."""

    sharded: str
    """The axis that every sublayer of the stack shards, or those of the first block in order; or
    ``none``."""
    sent_bytes: Mapping[str, int]
    """Bytes of the busiest rank in a step, by phase."""
    note: str
    """What the strategy does on this workload beyond its usual idea; or empty."""


@final
@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a launch of a case will take, about: no more is known before it runs."""

    launch_s: float | None
    """None where the device's rate is not known."""
    rank_bytes: float


@final
@dataclass(frozen=True, kw_only=True)
class RankWork:
    """What the busiest rank of a case computes and holds in a step."""

    flops: Mapping[str, int]
    """Operations by kind of kernel: of products (gemm), and of attention."""
    kernels: int
    """Launches of kernels."""
    peak_bytes: Mapping[str, int]
    """Bytes at the peak, by what holds them: parameters, gradients, optimizer, activations and
    temporaries."""


@final
@dataclass(frozen=True, kw_only=True)
class Sent:
    """One collective, and the bytes that the lane's rank sends in it."""

    op: Op
    sent_bytes: Fraction


@final
@dataclass(frozen=True, kw_only=True)
class Leg:
    """One sublayer: the axis that is sharded while it runs, if any, and what its forward sends."""

    axis: str
    transfers: tuple[Sent, ...]
    switch: Sent | None
    """The switch to the axis of the next leg; None where the axis stays, or behind the last leg."""

    @property
    def sent_bytes(self) -> Fraction:
        """Bytes of the sublayer alone, without the switch behind it."""
        return sum((sent.sent_bytes for sent in self.transfers), Fraction(0))

    @property
    def total_bytes(self) -> Fraction:
        return self.sent_bytes + (self.switch.sent_bytes if self.switch else 0)


@final
@dataclass(frozen=True, kw_only=True)
class Lane:
    """One strategy on the whole stack; without legs, and with ``why_not``, where it cannot run."""

    strategy: str
    why_not: str | None = None
    note: str = ""
    legs: tuple[Leg, ...] = ()
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The axes as the strategy cuts them, in tensor order, and which of the model's each is."""
    periods: tuple[int, ...] = ()
    """Blocks of each stack after which the layout repeats."""
    saves_last_switch: bool = False
    """Whether the end of the stack does without a switch that every other period has."""
    block_bytes: Fraction = Fraction(0)
    """Bytes sent in forward by a block, the mean of its stack's period and then of all stacks; the
    switch behind it is included."""
    step_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes sent in a step, by phase: as ``run --dry-run`` predicts it."""


def step_bytes(
    workload: Workload, ranks: int, *, parts: int, copies: int, scored_axis: str
) -> float:
    """About the peak of a rank in a step: weights, gradients, the optimizer's moments, and what
    backward needs of its part.

    ``parts``: ranks that cut weights; ``copies``: ranks that hold each position between two
    sublayers; ``scored_axis``: of attention along it scores are kept, too.
    """
    count, part = parameters(workload), 1 / ranks
    weights = count.replicated + count.cuttable / parts
    sets = 1 if workload.mode == "forward" else 2 if workload.optimizer == "none" else 4
    whole = copies * workload.samples * workload.all_tokens * workload.hidden
    kept = _kept_in_all(workload, scored_axis, copies)
    if workload.recomputes:
        kept += workload.blocks * whole
    if workload.modulation == "per_token":
        kept += 3 * modulated(workload) * whole
    return DTYPE_BYTES[workload.dtype] * (sets * weights + part * (kept + 2 * whole))


def _kept_in_all(workload: Workload, scored_axis: str, copies: int) -> float:
    """About the elements kept at once: of all blocks, of the largest, or of a sublayer alone."""
    parts = workload.parts
    blocks = [
        sum(_kept(each, workload, scored_axis, copies) for each in part.block) for part in parts
    ]
    if workload.mode == "forward":
        return max(kept / len(part.block) for kept, part in zip(blocks, parts, strict=True))
    if workload.recomputes:
        return max(blocks)
    return sum(kept * part.depth for kept, part in zip(blocks, parts, strict=True))


def _kept(sublayer: Sublayer, workload: Workload, scored_axis: str, copies: int) -> float:
    """About the elements that backward needs of a sublayer; of scores where a bias needs them."""
    tokens, hidden = workload.samples * workload.all_tokens, copies * workload.hidden
    match sublayer:
        case Attention(projection=None):
            times = 2.0 if sublayer.pair_bias else 1.25 * (scored_axis in sublayer.attended)
            widths = 4 * (hidden + workload.attention_width)
            widths += _kept_columns(sublayer.beside, workload) if sublayer.beside else 0
            return tokens * (widths + times * workload.length(sublayer) * workload.heads)
        case Mlp():
            return tokens * (4 * hidden + _kept_columns(sublayer, workload))
    return 4 * tokens * (hidden + workload.hidden)


def _kept_columns(mlp: Mlp, workload: Workload) -> int:
    return (mlp.ways_in + 1) * workload.columns(mlp)
