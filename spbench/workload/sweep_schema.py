"""The keys of a sweep file as frozen data, and what they ask of cells: none excluded or twice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from spbench.text import counted
from spbench.workload.block import Frozen, Name
from spbench.workload.case import Combination, Ranks
from spbench.workload.mesh import NO_MESH, CaseMesh
from spbench.workload.validation_errors import MisfitError, suggestion
from spbench.workload.yaml_lines import KeyPath, WorkloadError, YamlData, short

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
    tuple[T, ...],
    BeforeValidator(_listed),
    Field(min_length=1, max_length=1000),
    AfterValidator(_each_once),
]
Settings = dict[str, Any]
"""Overrides of a workload's fields, keys as after ``--set``: depth, axes.time."""


class Include(Frozen):
    """Cells beside the matrix: a workload on each of ``gpus``, with its own settings."""

    workload: str
    gpus: Several[Ranks]
    strategies: Several[str] = ()
    """Strategies of these cells; empty: those of the file."""
    mesh: Several[CaseMesh] = ()
    """Meshes of these cells; empty: those of the file."""
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
    gpus: Several[Ranks] = ()
    mesh: Several[CaseMesh] = (NO_MESH,)
    """Axes around those of the strategies, as {cfg: 2}; several are cells beside each other."""
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
    """Cells to leave out of the matrix: those that match all keys of an item. Keys are workload (as
    written under ``workloads``), strategy, gpus, cfg, and any field of the resolved workload."""

    @model_validator(mode="after")
    def _every_key_is_of_use(self) -> Self:
        if not (self.workloads or self.gpus or self.include):
            raise MisfitError("no cells: give workloads and gpus, or include", ())
        for key in ("workloads", "gpus", "matrix", "exclude"):
            for other in ("workloads", "gpus"):
                if getattr(self, key) and not getattr(self, other):
                    raise MisfitError(f"{key} is of no use without {other}", (key,))
        own = not self.workloads and all(include.strategies for include in self.include)
        if own and "strategies" in self.model_fields_set:
            raise MisfitError("every include has strategies of its own", ("strategies",))
        return self


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A cell of the file, before excluded cells are taken out and cells are compared."""

    combination: Combination
    facts: Mapping[str, Any]
    """Values that an exclude may name."""
    identity: tuple[str, str, int, CaseMesh]
    """Resolved workload under its own name, strategy, ranks and mesh."""
    path: KeyPath

    def __str__(self) -> str:
        cell = self.combination
        name = cell.mesh.beside(cell.strategy)
        return f"{name} on {counted(cell.ranks, 'rank')} of {cell.workload.name}"


def without_excluded(
    cells: Sequence[Candidate], excludes: Sequence[Mapping[str, Any]], data: YamlData
) -> list[Candidate]:
    """The cells that no exclude matches. Raises WorkloadError for an exclude without a match."""
    for i, exclude in enumerate(excludes):
        if not any(_matches(cell, exclude) for cell in cells):
            raise _no_match(cells, exclude, data, ("exclude", i))
    return [cell for cell in cells if not any(_matches(cell, exclude) for exclude in excludes)]


def _matches(cell: Candidate, exclude: Mapping[str, Any]) -> bool:
    facts = cell.facts
    return all(key in facts and _equal(facts[key], value) for key, value in exclude.items())


def _equal(left: Any, right: Any) -> bool:
    """Equality of values and types: true is not 1."""
    return type(left) is type(right) and bool(left == right)


def _no_match(
    cells: Sequence[Candidate], exclude: Mapping[str, Any], data: YamlData, path: KeyPath
) -> WorkloadError:
    """Blames a key that no cell has, else a value that no cell has, else all keys together."""
    for key, value in exclude.items():
        values = [cell.facts[key] for cell in cells if key in cell.facts]
        if not values:
            known = list(dict.fromkeys(name for cell in cells for name in cell.facts))
            return data.error((*path, key), f"unknown key {short(key)}. {suggestion(key, known)}")
        if not any(_equal(value, other) for other in values):
            hint = suggestion(str(value), list(dict.fromkeys(map(str, values))))
            message = f"excludes nothing: no cell of the matrix has {key} {short(value)}. {hint}"
            return data.error((*path, key), message)
    settings = ", ".join(f"{key} {short(value)}" for key, value in exclude.items())
    message = f"excludes nothing: no cell of the matrix has all of {settings}"
    return data.error(path, message)


def check_unique(cells: Sequence[Candidate], data: YamlData) -> None:
    """Raises WorkloadError if two cells are the same."""
    seen: dict[tuple[str, str, int, CaseMesh], Candidate] = {}
    for cell in cells:
        earlier = seen.setdefault(cell.identity, cell)
        if earlier is not cell:
            message = f"{cell} comes twice; first from line {data.line(earlier.path)}"
            raise data.error(cell.path, message)


def check_reference(reference: str | None, cells: Sequence[Candidate], data: YamlData) -> None:
    """Raises WorkloadError if no cell has the strategy that others are to be compared with."""
    strategies = list(dict.fromkeys(cell.combination.strategy for cell in cells))
    if reference is not None and reference not in strategies:
        hint = suggestion(reference, strategies)
        message = f"reference {short(reference)} is not a strategy of this sweep. {hint}"
        raise data.error(("reference",), message)
