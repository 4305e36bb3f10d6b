"""Predictions of what a strategy shards, sends and holds, as plain data that needs no torch.

``strategies.describe`` makes them before any rank is started; dry run and diagram print them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import final

from spbench.workload.traffic import Op


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
    of_edges: bool = False
    """Whether these messages are what others see of its positions, and do not go round a ring."""


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
    holds: tuple[str, ...] = ()
    """Who holds what, a line for each axis of a mesh around the strategy."""
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
