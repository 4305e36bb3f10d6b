"""From what was asked for to the cases to run: every combination, checked before any start.

Only what a strategy itself must say loads torch, here in ``plan``.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from spbench.strategies.registry import load
from spbench.workload.case import Case, Combination, Device, Effort, Kind
from spbench.workload.job import Job
from spbench.workload.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A case of the sweep, and why it cannot run, if it cannot."""

    case: Case
    why_not: str | None


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a sweep is made of; each combination is a cell, each launch of it a case."""

    combinations: Sequence[Combination]
    device: Device
    kind: Kind = "measured"
    launches: int = 1
    effort: Effort
    seed: int = 0


def every(workload: Workload, strategies: Sequence[str], ranks: Sequence[int]) -> list[Combination]:
    """All strategies on each number of ranks."""
    return [
        Combination(workload=workload, strategy=strategy, ranks=count)
        for count in ranks
        for strategy in strategies
    ]


def plan(request: Request) -> list[Cell]:
    """The cells in the order of their running: launch by launch, strategies interleaved.

    Within a launch all strategies of one workload and number of ranks follow each other, in
    an order that the seed shuffles anew for each launch, so that drift does not favour one of
    them. Raises UnknownStrategyError for options that a strategy does not have.
    """
    strategies = {one.strategy: load(one.strategy) for one in request.combinations}
    # Neighbours in the plan need not be so in the request: an include may add a strategy.
    groups: dict[tuple[str, int], list[Combination]] = {}
    for one in request.combinations:
        groups.setdefault((one.workload.model_dump_json(), one.ranks), []).append(one)
    shuffle = random.Random(request.seed)
    cells = []
    for launch in range(request.launches):
        for group in groups.values():
            order = list(group)
            if launch:
                shuffle.shuffle(order)
            for one in order:
                strategy = strategies[one.strategy]
                misfit = strategy.misfit(one.workload)
                why_not = misfit or strategy.why_not(one.workload, one.ranks)
                cells.append(Cell(case=_case(one, launch, request), why_not=why_not))
    return cells


def _case(one: Combination, launch: int, request: Request) -> Case:
    return Case(
        workload=one.workload,
        strategy=one.strategy,
        ranks=one.ranks,
        device=request.device,
        kind=request.kind,
        seed=request.seed,
        launch=launch,
        effort=request.effort,
    )


def check_options(strategies: Sequence[str]) -> None:
    """Raises UnknownStrategyError if a strategy does not have the options that it is given."""
    for text in strategies:
        load(text)


def job_of(case: Case, timeout_s: float) -> Job:
    """The start of ranks that measures ``case``."""
    wanted = dict(load(case.strategy).environment) if case.device == "cuda" else {}
    return Job(
        ranks=case.ranks,
        device=case.device,
        case=case,
        timeout_s=timeout_s,
        environment=wanted,
    )
