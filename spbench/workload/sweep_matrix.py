"""The cells of a sweep file: expanded from its entries, without excluded ones, none twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from spbench.text import counted
from spbench.workload.case import Combination
from spbench.workload.catalogue import Override, overridden, with_settings_in_name
from spbench.workload.validation_errors import suggestion
from spbench.workload.workload import Workload
from spbench.workload.yaml_lines import KeyPath, WorkloadError, YamlData, short

NOT_FACTS = {"version", "name", "source", "block", "axes"}


@dataclass(frozen=True, kw_only=True)
class SweepEntry:
    """A workload with its overrides, and the ranks and strategies that it runs with."""

    text: str
    """Workload as written in the file."""
    workload: Workload
    overrides: Sequence[Override]
    ranks: Sequence[int]
    strategies: Sequence[str]
    path: KeyPath


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A cell of the file, before excluded cells are taken out and cells are compared."""

    combination: Combination
    facts: Mapping[str, Any]
    """Values that an exclude may name."""
    identity: tuple[str, str, int]
    """Resolved workload under its own name, strategy and ranks."""
    path: KeyPath

    def __str__(self) -> str:
        cell = self.combination
        return f"{cell.strategy} on {counted(cell.ranks, 'rank')} of {cell.workload.name}"


def candidates_of(entry: SweepEntry, data: YamlData) -> Iterator[Candidate]:
    """Every number of ranks with every strategy. Raises WorkloadError."""
    try:
        work = overridden(entry.workload, entry.overrides)
    except WorkloadError as error:
        raise WorkloadError(f"{error} (in {entry.text})") from None
    fields = work.model_dump(mode="json", by_alias=True, exclude=NOT_FACTS)
    fields |= {f"axes.{axis}": length for axis, length in work.axes.items()}
    shown, resolved = with_settings_in_name(work, entry.overrides), work.model_dump_json()
    place = data.at(entry.path)
    for ranks, strategy in product(entry.ranks, entry.strategies):
        yield Candidate(
            combination=Combination(workload=shown, strategy=strategy, ranks=ranks, place=place),
            facts={"workload": entry.text, "strategy": strategy, "gpus": ranks, **fields},
            identity=(resolved, strategy, ranks),
            path=entry.path,
        )


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
            message = f"unknown key {short(key)}. {suggestion(key, known)}"
            return data.error((*path, key), message)
        if not any(_equal(value, other) for other in values):
            hint = suggestion(str(value), list(dict.fromkeys(map(str, values))))
            message = f"excludes nothing: no cell of the matrix has {key} {short(value)}. {hint}"
            return data.error((*path, key), message)
    settings = ", ".join(f"{key} {short(value)}" for key, value in exclude.items())
    message = f"excludes nothing: no cell of the matrix has all of {settings}"
    return data.error(path, message)


def check_unique(cells: Sequence[Candidate], data: YamlData) -> None:
    """Raises WorkloadError if two cells are the same."""
    seen: dict[tuple[str, str, int], Candidate] = {}
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
