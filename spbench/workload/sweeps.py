"""A sweep file, and the cells that it asks for.

    matrix    every workload x every combination of settings x gpus x strategies
    exclude   takes cells out of the matrix
    include   adds cells behind it

Nothing is ignored in silence: a cell that comes twice, an exclude that matches nothing and a
key that is of no use to any cell are errors, with file and line.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from spbench.text import counted
from spbench.workload.block import Frozen, Name
from spbench.workload.case import Combination, Ranks
from spbench.workload.catalogue import (
    Override,
    find,
    overridden,
    path_of,
    small_form,
    with_settings_in_name,
)
from spbench.workload.mesh import NO_MESH, CaseMesh
from spbench.workload.workload import Workload
from spbench.workload.yaml_file import (
    KeyPath,
    MisfitError,
    WorkloadError,
    YamlData,
    read_mapping,
    short,
    suggestion,
    validated,
)

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
Identity = tuple[Workload, str, int, CaseMesh]
"""What tells cells apart: resolved workload under its own name, strategy, ranks and mesh."""
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
    """Axes around those of the strategies, as {dp: 2}; several are cells beside each other."""
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
    written under ``workloads``), strategy, gpus, an axis of the mesh, and any field of the resolved
    workload."""

    @property
    def asks_for_all(self) -> bool:
        """Whether it names all strategies, of which those that cannot run a cell are left out."""
        texts = [*self.strategies, *(text for each in self.include for text in each.strategies)]
        return any("all" in map(str.strip, text.split(",")) for text in texts)

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
    identity: Identity
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
    seen: dict[Identity, Candidate] = {}
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


MAX_CELLS = 3_000
NOT_FACTS = {"version", "name", "source", "block", "stacks", "axes"}

ExpandNames = Callable[[Sequence[str]], list[str]]
"""Texts such as 'all' -> names of strategies; raises ValueError for an unknown one. The caller
passes it, since strategies live on a floor above."""


@dataclass(frozen=True, kw_only=True)
class ExpandedSweep:
    """A sweep file, and its cells in the order of the file, each once."""

    file: SweepFile
    combinations: tuple[Combination, ...]


def load_sweep(
    name_or_file: str, expand_names: ExpandNames, *, small: bool = False
) -> ExpandedSweep:
    """A sweep of the catalogue, or of the user's file; ``small``: with the small forms of its
    workloads. Raises WorkloadError."""
    path = path_of(name_or_file, "sweeps")
    data = read_mapping(path, "a sweep")
    if data.value.keys() & {"block", "axes"} and not data.value.keys() & {"workloads", "include"}:
        raise data.error((), "this is a workload; use --workload")
    file = validated(SweepFile, data, {"include": Include, "mesh": CaseMesh})
    expansion = _Expansion(file=file, data=data, folder=path.parent, expand_names=expand_names)
    cells = expansion.candidates()
    combinations = _small_forms(cells) if small else [cell.combination for cell in cells]
    return ExpandedSweep(file=file, combinations=tuple(combinations))


def _small_forms(cells: Sequence[Candidate]) -> list[Combination]:
    """Each cell with the small form of its workload; sizes that become equal are one cell."""
    found: dict[Identity, Combination] = {}
    for cell in cells:
        full = cell.combination
        work = small_form(cell.facts["workload"], full.workload)
        identity = (work, full.strategy, full.ranks, full.mesh)
        found.setdefault(identity, replace(full, workload=work))
    return list(found.values())


@dataclass(frozen=True, kw_only=True)
class _Expansion:
    """The cells of one file, worked out."""

    file: SweepFile
    data: YamlData
    folder: Path
    expand_names: ExpandNames

    def candidates(self) -> list[Candidate]:
        self._check_settings()
        matrix, included = list(self._matrix()), list(self._included())
        cells = [*without_excluded(matrix, self.file.exclude, self.data), *included]
        if not cells:
            raise self.data.error((), "every cell is excluded")
        check_unique(cells, self.data)
        check_reference(self.file.reference, cells, self.data)
        return cells

    def _matrix(self) -> Iterator[Candidate]:
        file = self.file
        strategies = self._strategies(file.strategies, ("strategies",))
        sizes = [len(values) for values in file.matrix.values()]
        sizes += [len(file.workloads), len(file.gpus), len(file.mesh), len(strategies)]
        count = math.prod(sizes)
        if count > MAX_CELLS:
            raise self.data.error((), f"{count} cells; a sweep has at most {MAX_CELLS}")
        common = self._overrides(file.set, ("set",))
        varied = [
            [self._override(key, value, ("matrix", key, i)) for i, value in enumerate(values)]
            for key, values in file.matrix.items()
        ]
        for i, text in enumerate(file.workloads):
            path: KeyPath = ("workloads", i)
            work, cells = self._workload(text, path), Include(workload=text, gpus=file.gpus)
            for chosen in itertools.product(*varied):
                yield from self._cells(cells, work, [*common, *chosen], strategies, path)

    def _included(self) -> Iterator[Candidate]:
        common = self._overrides(self.file.set, ("set",))
        for i, include in enumerate(self.file.include):
            path: KeyPath = ("include", i)
            own = self._strategies(include.strategies, (*path, "strategies"))
            strategies = own or self._strategies(self.file.strategies, ("strategies",))
            work = self._workload(include.workload, (*path, "workload"))
            overrides = [*common, *self._overrides(include.set, (*path, "set"))]
            yield from self._cells(include, work, overrides, strategies, path)

    def _cells(
        self,
        wanted: Include,
        work: Workload,
        overrides: Sequence[Override],
        strategies: Sequence[str],
        path: KeyPath,
    ) -> Iterator[Candidate]:
        """Every number of ranks with every strategy. Raises WorkloadError."""
        try:
            work = overridden(work, overrides)
        except WorkloadError as error:
            raise WorkloadError(f"{error} (in {wanted.workload})") from None
        fields = work.model_dump(mode="json", by_alias=True, exclude=NOT_FACTS)
        fields |= {f"axes.{axis}": length for axis, length in work.axes.items()}
        shown = with_settings_in_name(work, overrides)
        place = self.data.at(path)
        meshes = wanted.mesh or self.file.mesh
        for ranks, mesh, name in itertools.product(wanted.gpus, meshes, strategies):
            cell = Combination(workload=shown, strategy=name, ranks=ranks, mesh=mesh, place=place)
            own = {"workload": wanted.workload, "strategy": name, "gpus": ranks}
            own |= {axis: getattr(mesh, axis) for axis in CaseMesh.model_fields}
            yield Candidate(
                combination=cell, facts=own | fields, identity=(work, name, ranks, mesh), path=path
            )

    def _workload(self, text: str, path: KeyPath) -> Workload:
        try:
            return find(text, folder=self.folder)
        except WorkloadError as error:
            raise self.data.error(path, str(error)) from None

    def _strategies(self, texts: Sequence[str], path: KeyPath) -> list[str]:
        names: dict[str, None] = {}
        for i, text in enumerate(texts):
            try:
                names |= dict.fromkeys(self.expand_names([text]))
            except ValueError as error:
                raise self.data.error((*path, i), str(error)) from None
        return list(names)

    def _overrides(self, settings: Mapping[str, Any], path: KeyPath) -> list[Override]:
        return [self._override(key, value, (*path, key)) for key, value in settings.items()]

    def _override(self, key: str, value: Any, path: KeyPath) -> Override:
        return Override(key=key, value=value, where=self.data.where, line=self.data.line(path))

    def _check_settings(self) -> None:
        """No setting undoes another one that applies to the same cells."""
        general: list[KeyPath] = [
            (part, key) for part in ("set", "matrix") for key in getattr(self.file, part)
        ]
        own: list[list[KeyPath]] = [
            [("include", i, "set", key) for key in include.set]
            for i, include in enumerate(self.file.include)
        ]
        for paths in (general, *own):
            for earlier, later in itertools.combinations(paths, 2):
                if f"{earlier[-1]}.".startswith(f"{later[-1]}."):
                    line = self.data.line(earlier)
                    raise self.data.error(
                        later, f"{later[-1]!r} undoes {earlier[-1]!r} of line {line}"
                    )
