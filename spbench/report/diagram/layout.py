"""The layout of a picture of one block: the workload, a lane for each strategy, their places.

Every sublayer has a column and every axis a row in each lane; ``draw`` makes lines of text of them.
Lanes are plain data: no strategy is loaded.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from operator import mul
from typing import Any

from spbench.report import units
from spbench.workload.block import Sublayer
from spbench.workload.flops import parameters
from spbench.workload.predicted import Lane
from spbench.workload.workload import Workload

MOST_BLOCKS = 2
NARROWEST, WIDEST = 11, 25
"""Columns of a sublayer; 'all-to-all' and a space fit."""
LABEL = 21
"""Columns of an axis's name, as of 'time x height x width'; longer names are cut."""
COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Sublayers that stand side by side, each ``cell`` wide, from column ``margin`` on."""

    sublayers: range
    margin: int
    cell: int
    width: int
    """Columns of the page, which sentences may fill."""

    def at(self, sublayer: int) -> int:
        """The column where a sublayer's words begin; the line may hop two columns before it."""
        return self.margin + (sublayer - self.sublayers.start) * self.cell


@dataclass(frozen=True, kw_only=True)
class Picture:
    """The first blocks of each stack of ``workload``: a period, or its beginning if it is long."""

    workload: Workload
    ranks: int
    lanes: Sequence[Lane]

    @property
    def periods(self) -> list[int]:
        """Blocks of each stack after which every lane repeats."""
        each = [lane.periods for lane in self.lanes if lane.legs]
        return [max(lanes) for lanes in zip(*each, strict=True)] or [1] * len(self.workload.parts)

    @cached_property
    def drawn(self) -> list[range]:
        """The sublayers that are drawn of each stack, as their places among all."""
        lengths = [len(part.block) for part in self.workload.parts]
        depths = [part.depth for part in self.workload.parts]
        starts = accumulate(map(mul, lengths, depths), initial=0)
        return [
            range(start, start + min(MOST_BLOCKS, period) * length)
            for start, length, period in zip(starts, lengths, self.periods, strict=False)
        ]

    @cached_property
    def stack(self) -> tuple[Sublayer, ...]:
        """All sublayers of the model."""
        return self.workload.stack

    @cached_property
    def unit(self) -> str:
        """The unit of bytes throughout the picture, so that figures can be compared."""
        legs = [leg for lane in self.lanes for leg in lane.legs]
        sent = [leg.sent_bytes for leg in legs]
        sent += [leg.switch.sent_bytes for leg in legs if leg.switch]
        return units.size_unit(float(min(filter(None, sent), default=2**20)))

    def figure(self, sent_bytes: Fraction | float) -> str:
        return units.size_in(self.unit, float(sent_bytes))

    def totals(self, lane: Lane) -> str:
        """The bytes of a block and of a step, as wide as those of other lanes."""
        lanes = [lane, *(other for other in self.lanes if other.legs)]
        blocks = [self.figure(each.block_bytes) for each in lanes]
        steps = [self.figure(sum(each.step_bytes.values())) for each in lanes]
        block, step = (column[0].rjust(max(map(len, column))) for column in (blocks, steps))
        return f"{block} {self.unit}/block   {step} {self.unit}/step"

    def colour(self, axis: str) -> str:
        return COLOURS[list(self.workload.axes).index(axis) % len(COLOURS)]

    def frames(self, width: int) -> list[Frame]:
        """For each stack the fewest frames of at most ``width`` columns, as equal as can be."""
        return [frame for every in self.drawn for frame in self._frames(every, width)]

    def _frames(self, every: range, width: int) -> list[Frame]:
        drawn = [axis for lane in self.lanes for axis in lane.axes] or [*self.workload.axes]
        margin = 5 + min(LABEL, max(map(len, drawn)))
        fit = max(1, (width - margin) // NARROWEST)
        size = -(-len(every) // -(-len(every) // fit))
        cell = min(WIDEST, (width - margin) // size)
        parts = [every[first : first + size] for first in range(0, len(every), size)]
        return [Frame(sublayers=part, margin=margin, cell=cell, width=width) for part in parts]

    def as_data(self) -> dict[str, Any]:
        """The picture for ``--json``; bytes are Fractions still, to be rounded.

        The bytes of a strategy that declines are not known: None.
        """
        facts = self.workload.model_dump(mode="json", by_alias=True)
        parts = [part.model_dump(mode="json", by_alias=True) for part in self.workload.parts]
        sublayers = [each for part in parts for each in part["block"]]
        facts |= {"stacks": parts, "depth": self.workload.blocks}
        del facts["block"]
        facts["tokens"] = self.workload.tokens
        facts["parameters"] = parameters(self.workload).total
        facts["activation_bytes"] = self.workload.activation_bytes
        blank = {"block_bytes": None, "step_bytes": None}
        lanes = [
            asdict(lane)
            | {"legs": [asdict(lane.legs[i]) for every in self.drawn for i in every if lane.legs]}
            | ({} if lane.why_not is None else blank)
            for lane in self.lanes
        ]
        return {"workload": facts, "ranks": self.ranks, "sublayers": sublayers, "lanes": lanes}
