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
from typing import Any

from spbench.workload.case import Combination
from spbench.workload.catalogue import (
    Override,
    find,
    overridden,
    path_of,
    small_form,
    with_settings_in_name,
)
from spbench.workload.mesh import CaseMesh
from spbench.workload.sweep_schema import (
    Candidate,
    Include,
    SweepFile,
    check_reference,
    check_unique,
    without_excluded,
)
from spbench.workload.validation_errors import validated
from spbench.workload.workload import Workload
from spbench.workload.yaml_lines import KeyPath, WorkloadError, YamlData, read_mapping

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
    found: dict[tuple[str, str, int, CaseMesh], Combination] = {}
    for cell in cells:
        full = cell.combination
        work = small_form(cell.facts["workload"], full.workload)
        identity = (work.model_dump_json(), full.strategy, full.ranks, full.mesh)
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
        shown, resolved = with_settings_in_name(work, overrides), work.model_dump_json()
        place = self.data.at(path)
        meshes = wanted.mesh or self.file.mesh
        for ranks, mesh, name in itertools.product(wanted.gpus, meshes, strategies):
            cell = Combination(workload=shown, strategy=name, ranks=ranks, mesh=mesh, place=place)
            own = {"workload": wanted.workload, "strategy": name, "gpus": ranks, "cfg": mesh.cfg}
            yield Candidate(
                combination=cell,
                facts=own | fields,
                identity=(resolved, name, ranks, mesh),
                path=path,
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
