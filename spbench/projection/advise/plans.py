"""All ways to run a step that are weighed for some ranks.

A way is a strategy with its options, the mesh around it, and in training what ranks share out
(``zero``) and what backward computes again (``checkpointing``). What does the same is weighed once:
samples of the batch and branches of guidance are the same thing to a strategy, so of ``dp=4`` and
``dp=2,cfg=2`` one is. On one rank all strategies do the same: where the mesh has all ranks, one of
them is weighed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import final

from spbench.errors import Failure
from spbench.projection.advise.candidates import candidates
from spbench.strategies.base import Plan, Strategy
from spbench.strategies.refusals import divisors
from spbench.strategies.registry import in_mesh
from spbench.workload.catalogue import with_settings
from spbench.workload.mesh import CFG, DP, CaseMesh
from spbench.workload.workload import Workload

ZERO, CHECKPOINTING = "zero", "checkpointing"
STAGES = (0, 2, 3)
"""Stages of ``zero`` that are weighed: stage 1 sends as much as stage 2, and holds more."""
RECOMPUTED = ("none", "selective", "full")
"""Values of ``checkpointing``, of which the first computes the least."""
Fixed = Mapping[str, int | str]
"""Axes of the mesh, ``zero`` and ``checkpointing`` that have one value alone."""


@final
@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to run a step."""

    workload: Workload
    """The one asked for, with this ``zero`` and ``checkpointing``."""
    strategy: str
    """Without its mesh."""
    mesh: CaseMesh
    plan: Plan
    """The workload's but for its ``zero``, by which no sublayer differs."""

    @property
    def name(self) -> str:
        """As in the column ``strategy``: ulysses cfg=2."""
        return self.mesh.beside(self.strategy)


@final
@dataclass(frozen=True, kw_only=True)
class Plans:
    """All that are weighed, and why strategies have none."""

    candidates: Sequence[Candidate]
    why_not: Mapping[str, str]


def plans(names: Sequence[str], workload: Workload, ranks: int, fixed: Fixed) -> Plans:
    """Each of the named strategies with its variants, in each mesh, with each ``zero`` and
    ``checkpointing``, but for what is ``fixed``. Raises Failure where no mesh has that."""
    found: list[Candidate] = []
    why_not: dict[str, str] = {}
    ways = settings(workload, fixed)
    if not (around := [*meshes(workload, ranks, fixed)]):
        given = ", ".join(
            f"{axis}={fixed[axis]}" for axis in CaseMesh.model_fields if axis in fixed
        )
        raise Failure(
            f"{ranks} ranks have no mesh with {given} for batch {workload.batch} x "
            f"{workload.guidance}: sizes divide the ranks, {DP} the batch, {CFG} the guidance"
        )
    for mesh in around:
        in_this: dict[str, Strategy] = {}
        for name in candidates(names, workload, ranks, mesh):
            strategy = in_mesh(name, mesh)
            if why := strategy.declines(workload, ranks) or strategy.only_measured:
                why_not.setdefault(name.partition(":")[0], why)
            else:
                in_this[name] = strategy
        if prod(size for _, size in mesh.axes) == ranks:
            in_this = _one_of(in_this, workload, ranks, cuts=mesh.tp > 1)
        for name, strategy in in_this.items():
            by_checkpointing: dict[str, Plan] = {}
            for way in ways:
                if why := strategy.misfit(strategy.flattened(way)):
                    why_not.setdefault(name.partition(":")[0], why)
                    continue
                again = way.checkpointing
                if again not in by_checkpointing:  # ranks share out the same weights in any of them
                    by_checkpointing[again] = strategy.on(strategy.flattened(way), ranks)
                plan = by_checkpointing[again]
                found.append(Candidate(workload=way, strategy=name, mesh=mesh, plan=plan))
    can = {each.strategy.partition(":")[0] for each in found}
    return Plans(
        candidates=found, why_not={name: why for name, why in why_not.items() if name not in can}
    )


def _one_of(
    strategies: Mapping[str, Strategy], workload: Workload, ranks: int, *, cuts: bool
) -> dict[str, Strategy]:
    """The first of strategies that have one rank each, where all do the same: of those that would
    cut weights there, only where no other is named."""
    plain = [
        name
        for name, strategy in strategies.items()
        if strategy.on(strategy.flattened(workload), ranks).cuts_weights == cuts
    ]
    return {name: strategies[name] for name in (plain or [*strategies])[:1]}


def meshes(workload: Workload, ranks: int, fixed: Fixed) -> Iterator[CaseMesh]:
    """The meshes of so many ranks, outermost axis first; of those that are the same to a strategy
    the one with the most branches apart."""
    axes = [*CaseMesh.model_fields]
    sizes = [[int(fixed[axis])] if axis in fixed else divisors(ranks) for axis in axes]
    seen = set()
    every = (dict(zip(axes, each, strict=True)) for each in product(*sizes))
    for mesh in sorted(every, key=lambda mesh: (prod(mesh.values()), -mesh[CFG])):
        fits = workload.batch % mesh[DP] == 0 and workload.guidance % mesh[CFG] == 0
        others = tuple(size for axis, size in mesh.items() if axis not in (DP, CFG))
        alike = mesh[DP] * mesh[CFG], others
        if fits and ranks % prod(mesh.values()) == 0 and alike not in seen:
            seen.add(alike)
            yield CaseMesh.model_validate(mesh)


def settings(workload: Workload, fixed: Fixed) -> list[Workload]:
    """The workload with each ``zero`` and ``checkpointing``; in forward mode it alone. Raises
    Failure where none fits it."""
    if workload.mode != "train":
        return [workload]
    stages = [fixed[ZERO]] if ZERO in fixed else sorted({*STAGES, workload.zero})
    ways = [fixed[CHECKPOINTING]] if CHECKPOINTING in fixed else RECOMPUTED
    found, why = [], Failure("")
    for stage, way in product(stages, ways):
        try:
            found.append(with_settings(workload, [f"{ZERO}={stage}", f"{CHECKPOINTING}={way}"]))
        except Failure as unfit:
            why = unfit
    if not found:
        raise why
    return found
