"""Cells of a sweep file: what they are told apart by, which are excluded, none twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spbench.text import counted
from spbench.workload.case import Combination
from spbench.workload.load import Override, overridden, with_settings_in_name
from spbench.workload.validation_errors import nearest
from spbench.workload.workload import Workload
from spbench.workload.yaml_lines import KeyPath, WorkloadError, YamlData, short

NO_FACTS = ("version", "name", "source", "block", "axes")


@dataclass(frozen=True, kw_only=True)
class SweepEntry:
    """A workload with its overrides, who shares it, and where the file says so."""

    text: str
    """The workload as it is written."""
    workload: Workload
    overrides: Sequence[Override]
    ranks: Sequence[int]
    strategies: Sequence[str]
    path: KeyPath
    place: str
    """``file:line`` of the path."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A combination, and what tells whether it is excluded or comes twice."""

    combination: Combination
    facts: Mapping[str, Any]
    resolved: str
    """The workload under its own name, whichever settings led to it."""
    path: KeyPath

    @property
    def identity(self) -> tuple[str, str, int]:
        return self.resolved, self.combination.strategy, self.combination.ranks

    def __str__(self) -> str:
        one = self.combination
        return f"{one.strategy} on {counted(one.ranks, 'rank')} of {one.workload.name}"


def candidates_of(entry: SweepEntry) -> Iterator[Candidate]:
    """Every number of ranks with every strategy. Raises WorkloadError."""
    try:
        work = overridden(entry.workload, entry.overrides)
    except WorkloadError as error:
        raise WorkloadError(f"{error} (in {entry.text})") from None
    fields = work.model_dump(mode="json", by_alias=True)
    known = {key: value for key, value in fields.items() if key not in NO_FACTS}
    known |= {f"axes.{axis}": length for axis, length in work.axes.items()}
    shown, resolved = with_settings_in_name(work, entry.overrides), work.model_dump_json()
    for ranks in entry.ranks:
        for strategy in entry.strategies:
            yield Candidate(
                combination=Combination(
                    workload=shown, strategy=strategy, ranks=ranks, place=entry.place
                ),
                facts={"workload": entry.text, "strategy": strategy, "gpus": ranks, **known},
                resolved=resolved,
                path=entry.path,
            )


def without_excluded(
    cells: Sequence[Candidate], excludes: Sequence[Mapping[str, Any]], data: YamlData
) -> list[Candidate]:
    """The cells that no exclude matches. Raises WorkloadError if one matches none."""
    gone: set[int] = set()
    for i, wanted in enumerate(excludes):
        hits = {n for n, cell in enumerate(cells) if _matches(cell.facts, wanted)}
        if not hits:
            raise _why_no_match(cells, wanted, data, ("exclude", i))
        gone |= hits
    return [cell for n, cell in enumerate(cells) if n not in gone]


def _matches(facts: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(key in facts and _equal(facts[key], value) for key, value in wanted.items())


def _equal(one: Any, other: Any) -> bool:
    """True is not 1."""
    return type(one) is type(other) and bool(one == other)


def _why_no_match(
    cells: Sequence[Candidate], wanted: Mapping[str, Any], data: YamlData, path: KeyPath
) -> WorkloadError:
    """Blames a key that no cell has, then a value that no cell has, then all together."""
    for key, value in wanted.items():
        place = data.at((*path, key))
        offered = [cell.facts[key] for cell in cells if key in cell.facts]
        if not offered:
            known = list(dict.fromkeys(name for cell in cells for name in cell.facts))
            return WorkloadError(f"{place}: unknown key {short(key)}. {nearest(key, known)}")
        if not any(_equal(value, one) for one in offered):
            hint = nearest(str(value), list(dict.fromkeys(map(str, offered))))
            said = f"excludes nothing: no cell of the matrix has {key} {short(value)}. {hint}"
            return WorkloadError(f"{place}: {said}")
    every = ", ".join(f"{key} {short(value)}" for key, value in wanted.items())
    said = f"excludes nothing: no cell of the matrix has all of {every}"
    return WorkloadError(f"{data.at(path)}: {said}")


def check_unique(cells: Sequence[Candidate], data: YamlData) -> None:
    """Raises WorkloadError if two cells ask for the same thing."""
    first: dict[tuple[str, str, int], Candidate] = {}
    for cell in cells:
        earlier = first.setdefault(cell.identity, cell)
        if earlier is not cell:
            said = f"{cell} comes twice; first from line {data.line(earlier.path)}"
            raise WorkloadError(f"{data.at(cell.path)}: {said}")


def check_reference(reference: str | None, cells: Sequence[Candidate], data: YamlData) -> None:
    """Raises WorkloadError if no cell has the strategy that others are to be compared with."""
    strategies = list(dict.fromkeys(cell.combination.strategy for cell in cells))
    if reference is not None and reference not in strategies:
        said = f"reference {short(reference)} is no strategy of this sweep. "
        said += nearest(reference, strategies)
        raise WorkloadError(f"{data.at(('reference',))}: {said}")
