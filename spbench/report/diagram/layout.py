"""The layout of a picture of one block: the workload, a lane for each strategy, their places.

Every sublayer has a column and every axis a row in each lane; ``draw`` makes lines of text of them.
Lanes are plain data: no strategy is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from spbench.report import units
from spbench.workload.flops import parameters
from spbench.workload.predicted import Lane
from spbench.workload.workload import Workload

MOST_BLOCKS = 2
NARROWEST, WIDEST = 11, 25
"""Columns of a sublayer; 'all-to-all' and a space fit."""
LABEL = 14
"""Columns of an axis's name; longer names are cut."""
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

    @property
    def end(self) -> int:
        return self.at(self.sublayers.stop)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """The first blocks of ``workload``: a period, or its beginning where it is long."""

    workload: Workload
    ranks: int
    lanes: Sequence[Lane]

    @property
    def period(self) -> int:
        """Blocks after which every lane repeats."""
        return max(lane.period for lane in self.lanes)

    @property
    def sublayers(self) -> int:
        """Number of sublayers drawn, from the first of the stack."""
        return min(MOST_BLOCKS, self.period) * len(self.workload.block)

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

    def attended(self, sublayer: int) -> tuple[str, ...]:
        return self.workload.block[sublayer % len(self.workload.block)].attended

    def colour(self, axis: str) -> str:
        return COLOURS[list(self.workload.axes).index(axis) % len(COLOURS)]

    def frames(self, width: int) -> list[Frame]:
        """The fewest frames of at most ``width`` columns, as equal as can be."""
        margin = 5 + min(LABEL, max(map(len, self.workload.axes)))
        fit = max(1, (width - margin) // NARROWEST)
        size = -(-self.sublayers // -(-self.sublayers // fit))
        cell = min(WIDEST, (width - margin) // size)
        every = range(self.sublayers)
        return [
            Frame(sublayers=every[start : start + size], margin=margin, cell=cell, width=width)
            for start in every[::size]
        ]

    def as_data(self) -> dict[str, Any]:
        """The picture for ``--json``; bytes are Fractions still, to be rounded.

        The bytes of a strategy that declines are not known: None.
        """
        facts = self.workload.model_dump(mode="json", by_alias=True)
        sublayers = facts.pop("block")
        facts["tokens"] = self.workload.tokens
        facts["parameters"] = parameters(self.workload).total
        facts["activation_bytes"] = self.workload.activation_bytes
        blank = {"block_bytes": None, "step_bytes": None}
        lanes = [
            asdict(lane)
            | {"legs": list(map(asdict, lane.legs[: self.sublayers]))}
            | ({} if lane.why_not is None else blank)
            for lane in self.lanes
        ]
        return {"workload": facts, "ranks": self.ranks, "sublayers": sublayers, "lanes": lanes}
