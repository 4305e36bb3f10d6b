"""The keys of a sweep file, as frozen data."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from spbench.workload.block import Frozen, Name, Size

LAUNCHES = 3
"""The fewest launches that show a spread."""
MAX_LAUNCHES = 1000

T = TypeVar("T")


def _listed(value: Any) -> tuple[Any, ...]:
    """A single value stands for a list of one."""
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _each_once(values: tuple[T, ...], info: ValidationInfo) -> tuple[T, ...]:
    for i, value in enumerate(values):
        if value in values[:i]:
            raise ValueError(f"{info.field_name}: {value!r} is given twice")
    return values


Several = Annotated[
    tuple[T, ...], BeforeValidator(_listed), AfterValidator(_each_once), Field(min_length=1)
]
Settings = dict[str, Any]
"""Overrides of a workload's fields, keys as after ``--set``: depth, axes.time."""


class Include(Frozen):
    """Cells beside the matrix: a workload on each of ``gpus``, with its own settings."""

    workload: str
    gpus: Several[Size]
    strategies: Several[str] = ()
    """Strategies of these cells; empty: those of the file."""
    set: Settings = Field(default_factory=dict)
    """Settings of these cells, applied after those of the file."""


class SweepFile(Frozen):
    """A sweep as written in its file. A single value may stand for a list of one."""

    version: Literal[1] = 1
    name: Name
    source: str = ""
    workloads: Several[str] = ()
    """Names of the catalogue, or files relative to the sweep's folder."""
    strategies: Several[str] = ("all",)
    """Strategies in the form that ``--strategies`` takes."""
    gpus: Several[Size] = ()
    launches: int = Field(default=LAUNCHES, ge=1, le=MAX_LAUNCHES)
    reference: str | None = None
    """Strategy that the others are compared with; None: the first."""
    skip_invalid: bool = False
    """Whether cells that cannot run become rows with the reason; if not, nothing is started."""
    set: Settings = Field(default_factory=dict)
    """Settings of every cell."""
    matrix: dict[str, Several[Any]] = Field(default_factory=dict)
    """Settings of which every combination is a cell, applied after ``set``."""
    include: tuple[Include, ...] = Field(default=(), strict=False)
    exclude: tuple[Annotated[dict[str, Any], Field(min_length=1)], ...] = Field(
        default=(), strict=False
    )
    """Cells to leave out of the matrix: those that match all keys of an item. Keys are workload
    (as written under ``workloads``), strategy, gpus, and any field of the resolved workload."""
