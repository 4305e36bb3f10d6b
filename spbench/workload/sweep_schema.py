"""What a sweep file may say, as frozen data."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from spbench.workload.block import Frozen, Name, Size

LAUNCHES = 3
"""As few as show a spread: one alone says nothing of how far the next one would be off."""
MAX_LAUNCHES = 1000

T = TypeVar("T")


def _listed(value: Any) -> tuple[Any, ...]:
    """One is as good as a list of one."""
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
    """Cells beside the matrix: one workload on each of ``gpus``, with settings of its own."""

    workload: str
    gpus: Several[Size]
    strategies: Several[str] = ()
    """None: those of the file."""
    set: Settings = Field(default_factory=dict)
    """Behind those of the file, so it may change them."""


class SweepFile(Frozen):
    """A sweep as it is written. What may be several may also be one, without a list."""

    version: Literal[1] = 1
    name: Name
    source: str = ""
    workloads: Several[str] = ()
    """Names of the catalogue, or files as seen from the sweep's own folder."""
    strategies: Several[str] = ("all",)
    """As on the command line."""
    gpus: Several[Size] = ()
    launches: int = Field(default=LAUNCHES, ge=1, le=MAX_LAUNCHES)
    reference: str | None = None
    """The strategy that the others are compared with; None: the first."""
    skip_invalid: bool = False
    """Cells that cannot run become rows that say why; else nothing is started."""
    set: Settings = Field(default_factory=dict)
    """Of every cell."""
    matrix: dict[str, Several[Any]] = Field(default_factory=dict)
    """All combinations of these settings, behind ``set``."""
    include: tuple[Include, ...] = Field(default=(), strict=False)
    exclude: tuple[Annotated[dict[str, Any], Field(min_length=1)], ...] = Field(
        default=(), strict=False
    )
    """Cells of the matrix that have all that one of these says: workload (as it is written
    under ``workloads``), strategy, gpus, or any field of the resolved workload."""
