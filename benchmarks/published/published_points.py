"""Published measurements as data: points, their cells, and cases that compete in each.

``points.yaml`` beside this file, and others of that schema; its head describes the fields.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self, final

from pydantic import Field, StrictFloat, StrictInt, model_validator

from spbench.projection.costmodel.constants import Positive
from spbench.workload.block import Frozen, Size
from spbench.workload.yaml_file import WorkloadError, read_mapping, validated

MOST_BYTES = 2_000_000
Text = Annotated[str, Field(min_length=1)]
Metric = Literal[
    "s", "ms", "us", "iterations_per_s", "tflops_per_gpu", "tokens_per_s", "samples_per_s", "ratio"
]
Facts = dict[str, Any]


@final
class PublishedCase(Frozen):
    """One alternative of a cell, and what was measured of it."""

    strategy: Text
    value: Positive
    mesh: dict[str, Size] = Field(default_factory=dict)
    """GPUs in groups beside the strategy: cfg, dp, tp, pp."""
    options: dict[str, bool | StrictInt | StrictFloat | str] = Field(default_factory=dict)
    low: Positive | None = None
    high: Positive | None = None
    """The least and the most of the source's own variants of the case, around ``value``; None: the
    source has one number."""
    note: str = ""

    @model_validator(mode="after")
    def _holds_its_value(self) -> Self:
        low, high = self.span
        if not low <= self.value <= high:
            raise ValueError(
                f"value {self.value:g} is not within low {low:g} and high {high:g}, the least and "
                "the most that the source has of this case"
            )
        return self

    @property
    def span(self) -> tuple[float, float]:
        """The least and the most that the source has of the case, in the unit of ``value``."""
        low = self.value if self.low is None else self.low
        return low, self.value if self.high is None else self.high

    @property
    def label(self) -> str:
        """As in 'usp:ulysses=2, cfg 2, compiled'."""
        mesh = [f"{name} {size}" for name, size in self.mesh.items()]
        options = [name if on is True else f"{name} {on}" for name, on in self.options.items()]
        return ", ".join([self.strategy, *mesh, *options])


@final
class PublishedCell(Frozen):
    """One size on one number of GPUs."""

    set: Facts
    """What differs from the workload of the point."""
    ranks: Size
    cases: Annotated[tuple[PublishedCase, ...], Field(min_length=1, strict=False)]


@final
class Hardware(Frozen):
    """What it was measured on."""

    gpu: Text
    link: Text
    gpus_per_node: Size | None = None
    between_nodes: str | None = None
    note: str = ""


@final
class Measured(Frozen):
    """The quantity, and what one value of it covers."""

    name: Metric
    better: Literal["lower", "higher"]
    per: Literal["call", "step", "generation"]
    time: str = ""
    flops: str = ""
    """The operations that a rate counts."""
    over: str = ""
    """The quantity that a ratio is relative to."""


@final
class Point(Frozen):
    """One table or figure of a source."""

    id: Text
    source: Text
    hardware: Hardware
    op: Literal["attention", "model"]
    workload: Facts
    mode: Literal["forward", "backward", "train"]
    metric: Measured
    kernel: str | None = None
    complete: bool
    caution: str = ""
    cells: Annotated[tuple[PublishedCell, ...], Field(min_length=1, strict=False)]


@final
class PublishedFile(Frozen):
    """All points of a file."""

    version: int = Field(default=2, alias="schema", ge=2, le=2)
    points: Annotated[tuple[Point, ...], Field(min_length=1, strict=False)]


PARTS: dict[str, type[Frozen]] = {
    "points": Point,
    "cells": PublishedCell,
    "cases": PublishedCase,
    "hardware": Hardware,
    "metric": Measured,
}


def default_file() -> Path:
    """The measurements that come along."""
    return Path(__file__).with_name("points.yaml")


@final
@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """A point that does not follow the schema: its id, or where it stands, and why."""

    id: str
    why: str


def read_each(place: Path) -> tuple[list[Point], list[Unreadable]]:
    """The points of a file, or of all files of a folder, and those that cannot be read: one wrong
    point never ends the others. Raises WorkloadError for a file that holds no points."""
    points: list[Point] = []
    wrong: list[Unreadable] = []
    for path in _files(place):
        data = read_mapping(path, "a file of points", MOST_BYTES)
        listed = data.value.get("points")
        if not isinstance(listed, list):
            validated(PublishedFile, data, PARTS)  # which says what is wrong
        for place_of, point in enumerate(listed):
            own = ("points", place_of)
            lines = {("points", 0, *k[2:]): n for k, n in data.lines.items() if k[:2] == own}
            one = replace(data, value={**data.value, "points": [point]}, lines=lines)
            try:
                points += validated(PublishedFile, one, PARTS).points
            except WorkloadError as error:
                named = point.get("id") if isinstance(point, dict) else None
                wrong.append(Unreadable(id=str(named or f"point {place_of + 1}"), why=str(error)))
    return points, wrong


def read(place: Path) -> list[Point]:
    """The points of a file, or of all files of a folder. Raises WorkloadError."""
    files = [
        validated(PublishedFile, read_mapping(path, "a file of points", MOST_BYTES), PARTS)
        for path in _files(place)
    ]
    return [point for file in files for point in file.points]


def _files(place: Path) -> Sequence[Path]:
    paths: Sequence[Path] = [place]
    if place.is_dir():
        paths = sorted([*place.glob("*.yaml"), *place.glob("*.yml")])
        if not paths:
            raise WorkloadError(f"{place}: no .yaml file in this folder; name a file of points")
    return paths
