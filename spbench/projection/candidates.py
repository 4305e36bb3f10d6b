"""Which strategies, with which options, are weighed for some ranks.

Each strategy as it is, and where it has groups of ranks of a size that one may choose, with each
size that divides the ranks, and with each strategy that may attend across them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import Field, fields
from typing import Any

from spbench.errors import Failure
from spbench.strategies.registry import ACROSS, load
from spbench.workload.workload import Workload


def candidates(names: Sequence[str], workload: Workload, ranks: int) -> list[str]:
    """The named strategies and their variants; of several with the same groups and layout the
    first. A name that has options already stands for itself alone."""
    found: dict[tuple[object, ...], str] = {}
    for name in names:
        for variant in [name] if ":" in name else [name, *variants(name, workload, ranks)]:
            strategy = load(variant)
            groups: object = None  # declined, in one sentence
            if not (strategy.misfit(workload) or strategy.why_not(workload, ranks)):
                mesh = tuple(strategy.mesh(workload, ranks).items())
                groups = mesh, tuple(strategy.layout(workload, ranks))
            found.setdefault((name, groups), variant)
    return list(found.values())


def variants(name: str, workload: Workload, ranks: int) -> Iterator[str]:
    """``name`` with each size of its groups but one and all, and each strategy across them."""
    options = fields(load(name))
    attends = [_written(option) for option in options if option.default in ACROSS]
    others = [f":{option}={other}" for option in attends for other in ACROSS] or [""]
    divisors = [size for size in range(2, ranks) if ranks % size == 0]
    sized = [o for o in options if divisors and _takes_sizes(name, o, workload, divisors[0])]
    for option in sized[:1]:
        for size in divisors:
            yield from (f"{name}:{_written(option)}={size}{other}" for other in others)


def _written(option: Field[Any]) -> str:
    return option.name.replace("_", "-")


def _takes_sizes(name: str, option: Field[Any], workload: Workload, size: int) -> bool:
    if isinstance(option.default, bool):
        return False
    try:
        return load(f"{name}:{_written(option)}={size}").misfit(workload) is None
    except Failure:
        return False
