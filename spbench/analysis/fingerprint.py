"""Whether figures of two sides come from the same hardware and libraries.

Times of different GPUs, or of different versions of torch, say nothing about a change of the
code. A field that is blank on one side is not known there, and stops nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter

from spbench.results.record import Record

LIBRARIES = ("device", "backend", "gpu", "torch", "cuda", "nccl")
"""What the memory of a step depends on, besides the code."""
HARDWARE = (*LIBRARIES, "hardware", "ranks_by_node", "effort", "statistic")
"""What its time depends on: links between machines, and a quick launch warms up for less."""


def mismatch(
    before: Iterable[Record], after: Iterable[Record], fields: Sequence[str] = HARDWARE
) -> str:
    """What differs, in words; blank if the two may be compared.

    Launches of one side that differ among themselves are not to be compared with anything.
    """
    both = list(before), list(after)
    kinds = {kind for side in both for kind in map(attrgetter(*fields), side)}
    if len(kinds) <= 1:
        return ""  # as nearly always, and much sooner known
    old, new = (_facts(side, fields) for side in both)
    said = []
    for name in fields:
        mixed = next((side[name] for side in (new, old) if len(side[name]) > 1), None)
        if mixed:
            said.append(f"launches with {_word(name)} {_listed(mixed)} in one case")
        elif old[name] and new[name] and old[name] != new[name]:
            said.append(f"{_word(name)} {_listed(new[name])}, was {_listed(old[name])}")
    return "; ".join(said)


def _facts(records: Iterable[Record], fields: Sequence[str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {name: set() for name in fields}
    for record in records:
        for name in fields:
            if value := getattr(record, name):
                found[name].add(value)
    return found


def _word(name: str) -> str:
    return name.replace("_", " ")


def _listed(values: set[str]) -> str:
    return " and ".join(sorted(values))
