"""The base of strategies with one fixed sharded axis: its choice, and whether it is long enough.

Ulysses, Megatron-SP and the rings keep one axis sharded from the first sublayer to the last
and do their work inside attention or the projections.
"""

from abc import ABC
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, final

from spbench.layers.heads import all_heads
from spbench.strategies.base import Layout, Strategy, transfers_of
from spbench.workload.block import Sublayer
from spbench.workload.flattened import flattened
from spbench.workload.sharding import Shard
from spbench.workload.traffic import Move, waited_bytes
from spbench.workload.workload import Workload

AUTO = "auto"


@final
@dataclass(frozen=True)
class Known:
    """A workload as a key of results that are cached: equal where its fields and axes are."""

    workload: Workload

    @classmethod
    def of(cls, workload: Workload) -> "Known":
        return cls(workload)


@dataclass(frozen=True, kw_only=True)
class FixedAxis(Strategy, ABC):
    """One axis stays sharded: the cheapest, or the option ``shard_axis``."""

    switches: ClassVar[bool] = False
    zigzag: ClassVar[bool] = False
    """Whether ranks hold zigzag shards of a causal axis, so that all compute as much."""
    queries_stay: ClassVar[bool] = False
    """Whether a rank attends along the sharded axis with its own queries alone: the more there are
    in a row, the fuller are a kernel's tiles, which have 64 rows and more."""
    shard_axis: str = AUTO

    def flattened(self, workload: Workload) -> Workload:
        """An axis that ``shard_axis`` names is cut by itself."""
        return flattened(workload, apart=() if self.shard_axis == AUTO else (self.shard_axis,))

    def misfit(self, workload: Workload) -> str | None:
        if self.shard_axis in (AUTO, *workload.axes):
            return None
        known = ", ".join(dict.fromkeys((AUTO, *workload.axes, *workload.coordinates)))
        return f"there is no axis {self.shard_axis!r} to shard; shard-axis may be {known}"

    def why_not(self, workload: Workload, ranks: int) -> str | None:
        axes = list(workload.axes) if self.shard_axis == AUTO else [self.shard_axis]
        reasons = {axis: self.why_not_along(axis, workload, ranks) for axis in axes}
        longest = max(axes, key=workload.axes.__getitem__)
        return None if None in reasons.values() else reasons[longest]

    def why_not_along(self, axis: str, workload: Workload, ranks: int) -> str | None:
        """Why ``axis`` cannot be the sharded one."""
        length = workload.axes[axis]
        if length >= ranks:
            return None
        limit = f"use 1 to {length} ranks"
        return f"{length} positions of {axis} cannot be split over {ranks} ranks; {limit}"

    def settled_rows(self, workload: Workload, ranks: int) -> str:
        """The rows of ranks that it has on a workload, as an option; ``auto``: it has none."""
        return AUTO

    def has_own_queries(self, workload: Workload, ranks: int) -> bool:
        """``queries_stay`` on so many ranks."""
        return self.queries_stay

    def shard(self, workload: Workload, axis: str, ranks: int) -> Shard:
        cut = Shard.causal if self.zigzag and workload.is_causal(axis) else Shard.even
        return cut(workload.dim(axis), workload.axes[axis], ranks)

    def notes(self, workload: Workload, ranks: int) -> str:
        (axis,) = set(self.layout(workload, ranks))
        masked = self.zigzag and ranks > 1 and workload.is_causal(axis)
        return self.shard(workload, axis, ranks).in_words(axis) if masked else ""

    @final
    def layout(self, workload: Workload, ranks: int) -> Layout:
        """The axis of fewest bytes; among equals the most evenly shared, where queries stay the
        longest, then the outermost."""
        fits = self.choices(workload.kinds[0], workload, ranks)
        axis = fits[0]
        if len(fits) > 1:
            axis = _cheapest_axis(self, Known.of(workload), ranks)
        return (axis,) * len(workload.stack)

    @final
    def choices(self, sublayer: Sublayer, workload: Workload, ranks: int) -> Sequence[str]:
        if self.shard_axis != AUTO:
            return (self.shard_axis,)
        return [a for a in workload.axes if self.why_not_along(a, workload, ranks) is None]


def padding_in_words(workload: Workload, ranks: int, pads: bool) -> str:
    """What padding costs; blank where heads divide."""
    had, heads = workload.heads, all_heads(workload, ranks, pads).heads
    if had == heads:
        return ""
    return f"{had} heads are padded to {heads}, {heads / had:.2f} times the work of attention"


@lru_cache(maxsize=100)
def _cheapest_axis(strategy: FixedAxis, known: Known, ranks: int) -> str:
    """The axis of fewest bytes, cached: to find it takes as long as all other planning."""
    workload = known.workload

    def cost(axis: str) -> tuple[float, float, int]:
        sent = waited_along(strategy, workload, axis, ranks)
        long = workload.axes[axis] if strategy.has_own_queries(workload, ranks) else 0
        return sent, strategy.shard(workload, axis, ranks).imbalance, -long

    return min(strategy.choices(workload.kinds[0], workload, ranks), key=cost)


def waited_along(strategy: FixedAxis, workload: Workload, axis: str, ranks: int) -> float:
    """Bytes that a step waits for with ``axis`` sharded, without the gradients' sum."""
    return sum(
        times * waited_bytes(transfers_of(strategy, workload, ranks, Move(place, axis, axis)))
        for place, times in Counter(workload.places).items()
    )
