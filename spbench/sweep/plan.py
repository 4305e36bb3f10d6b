"""From what was asked for to the cases to run: every combination, checked before any start.

Only what a strategy itself must say loads torch, here in ``plan``.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from spbench.launch.launcher import Deadlines
from spbench.strategies.registry import load
from spbench.text import counted
from spbench.workload.case import Case, Cell, Combination, Device, Job, Kind, MeasurementBudget
from spbench.workload.workload import Workload

T = TypeVar("T")
SIZES = {"axes", "batch", "depth"}
TEXTS = {"name", "source"}


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a sweep is made of; each combination is a cell, each launch of it a case."""

    combinations: Sequence[Combination]
    device: Device
    kind: Kind = "measured"
    launches: int = 1
    effort: MeasurementBudget
    seed: int = 0


def every(workload: Workload, strategies: Sequence[str], ranks: Sequence[int]) -> list[Combination]:
    """All strategies on each number of ranks."""
    return [
        Combination(workload=workload, strategy=strategy, ranks=count)
        for count in ranks
        for strategy in strategies
    ]


def plan(request: Request) -> list[Cell]:
    """The cells in the order of their running; see ``cells_of``.

    Raises UnknownStrategyError for options that a strategy does not have.
    """
    cases = [
        Case(
            workload=one.workload,
            strategy=one.strategy,
            ranks=one.ranks,
            device=request.device,
            kind=request.kind,
            seed=request.seed,
            budget=request.effort,
        )
        for one in request.combinations
    ]
    return cells_of(cases, range(request.launches), request.seed)


def cells_of(cases: Sequence[Case], launches: Iterable[int], seed: int) -> list[Cell]:
    """Launch by launch, strategies interleaved: each launch of all cases is a round.

    Within a round all strategies of one workload and number of ranks follow each other. The
    first round has them in the order given, the others begin elsewhere (see ``turned``).
    """
    strategies = {case.strategy: load(case.strategy) for case in cases}
    # Neighbours in the plan need not be so in the request: an include may add a strategy.
    groups: dict[tuple[str, int], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.workload.model_dump_json(), case.ranks), []).append(case)
    cells = []
    for launch in launches:
        for group in groups.values():
            for case in turned(group, launch, seed):
                strategy = strategies[case.strategy]
                misfit = strategy.misfit(case.workload)
                why_not = misfit or strategy.why_not(case.workload, case.ranks)
                one = case.model_copy(update={"launch": launch})
                cells.append(Cell(case=one, why_not=why_not))
    return cells


def turned(cases: Sequence[T], launch: int, seed: int) -> list[T]:
    """The order of a round: A B C, B C A, C A B, then the same turned round: A C B ...

    In as many rounds as there are cases each is once in each place, so that neither drift nor
    a cold start favours one of them. After fewer rounds that does not hold: in three launches of
    four strategies each leaves one place out. The seed says in which order the beginnings come.
    """
    cycle, within = divmod(launch, len(cases))
    kept = [0] if cycle == 0 else []
    others = list(range(len(kept), len(cases)))
    random.Random(f"{seed} {cycle}").shuffle(others)
    start = [*kept, *others][within]
    order = [*cases[start:], *cases[:start]]
    return order[::-1] if cycle % 2 else order


def check_options(strategies: Sequence[str]) -> None:
    """Raises UnknownStrategyError if a strategy does not have the options that it is given."""
    for text in strategies:
        load(text)


def job_of(case: Case, deadlines: Deadlines) -> Job:
    """The start of ranks that measures ``case``."""
    wanted = dict(load(case.strategy).environment) if case.device == "cuda" else {}
    return Job(
        ranks=case.ranks,
        device=case.device,
        case=case,
        timeout_s=deadlines.launch_s,
        hang_s=deadlines.hang_s,
        environment=wanted,
    )


def too_large(case: Case, starved: Sequence[Case]) -> str | None:
    """Why there is no memory for it either; None: that is not known."""
    for other in starved:
        if other.key == case.key:
            return f"out of memory in launch {other.launch + 1} already"
        if _is_larger(case, other):
            axes = " x ".join(f"{name} {size}" for name, size in other.workload.axes.items())
            return (
                f"larger than an oom case ({axes}, batch {other.workload.batch}, depth "
                f"{other.workload.depth} on {counted(other.ranks, 'rank')})"
            )
    return None


def _is_larger(case: Case, other: Case) -> bool:
    """Nowhere smaller, on no more ranks, and alike in all that is no size."""
    if (case.strategy, case.device, case.kind) != (other.strategy, other.device, other.kind):
        return False
    mine, theirs = case.workload, other.workload
    alike = [
        work.model_dump(exclude=SIZES | TEXTS) | {"axes": list(work.axes)}
        for work in (mine, theirs)
    ]
    return (
        alike[0] == alike[1]
        and case.ranks <= other.ranks
        and mine.batch >= theirs.batch
        and mine.depth >= theirs.depth
        and all(mine.axes[name] >= size for name, size in theirs.axes.items())
    )
