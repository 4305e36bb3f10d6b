"""Dry runs of the most promising candidates, until no other can be the fastest.

Candidates go in the order of their likely time, a few at once on all cores. One is left out that
holds more than a device has, that takes at least ``MARGIN`` of the fastest's time by what it
computes and sends, or that computes more again where the same plan fits without. Each round tells
more of the others (``estimate``), and the search ends when none is left, or ``MOST`` have run: by
what was found, never by a clock, so that the answer repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

from spbench.errors import Failure
from spbench.projection.advise.estimate import Estimate, Estimator
from spbench.projection.advise.plans import RECOMPUTED, Candidate
from spbench.projection.advise.project import Projection
from spbench.projection.costmodel.hardware import Cluster
from spbench.projection.costmodel.message_cost import why_not_on
from spbench.projection.costmodel.step_time import Mode
from spbench.results.record import USABLE
from spbench.workload.workload import Workload

MARGIN = 1.03
"""Times of the fastest beyond which a candidate does not run."""
MOST = 64
"""Candidates that run before the search ends anyway, once one fits: about half a minute."""
ROUND = 8
"""Candidates that run at once: enough for all cores, few enough to learn from."""
Runs = Callable[[Sequence[Candidate]], Sequence[Projection]]
"""Projects candidates by dry runs."""


@final
@dataclass(frozen=True, kw_only=True)
class Searched:
    """What ran, and what did not need to."""

    workload: Workload
    """As it was asked for."""
    ranks: int
    projected: Sequence[Projection]
    too_large: int
    """Plans that hold more than a device has in every form, by weights or by dry run."""
    least_bytes: float
    """What the smallest form of all holds, as far as is known."""
    slower: int
    """Plans of which no form ran, since all take longer."""
    at_least: float
    """How many times the fastest's time they take at least."""
    axes_apart: Sequence[str]
    """Axes of meshes that no plan which ran has, and others have."""


@final
class Search:
    """The state of a search."""

    def __init__(
        self,
        workload: Workload,
        candidates: Sequence[Candidate],
        cluster: Cluster,
        mode: Mode,
        ranks: int,
        compared: Sequence[str] = (),
    ) -> None:
        """``compared``: strategies of which a plan runs in any case."""
        if unfit := why_not_on(cluster, ranks):
            raise Failure(unfit)
        self.workload, self.ranks, self.compared = workload, ranks, compared
        self.estimator = Estimator(cluster=cluster, mode=mode, ranks=ranks)
        self.room = USABLE * cluster.used_by(ranks).device.memory_gb.value * 1e9
        self._open = [self.estimator.estimate(each) for each in candidates]
        self._ran: list[tuple[Estimate, Projection]] = []

    def run(self, runs: Runs) -> Searched:
        """Dry runs, by ``runs``, of all that may be the fastest."""
        while batch := self._round():
            done = runs([each.candidate for each in batch])
            self._open = [each for each in self._open if each not in batch]
            for estimate, projection in zip(batch, done, strict=True):
                self._ran.append((estimate, projection))
                self.estimator.learn(estimate, projection)
        return self._searched()

    def _round(self) -> list[Estimate]:
        """The most promising, each plan once: what ranks share out in it is told by its first."""
        by_name: dict[str, Estimate] = {}
        for each in sorted(self._promising(), key=self.estimator.likely_s):
            by_name.setdefault(each.candidate.name, each)
        is_over = len(self._ran) >= MOST and any(self._fits(run) for _, run in self._ran)
        return [*by_name.values()][: 0 if is_over else ROUND] or self._compared()

    def _compared(self) -> list[Estimate]:
        """The most promising of each strategy that is compared in any case, until one fits."""
        ran = {each.candidate.strategy for each, run in self._ran if self._fits(run)}
        first: dict[str, Estimate] = {}
        for each in sorted(self._open, key=self.estimator.likely_s):
            name = each.candidate.strategy
            if name in {*self.compared} - ran and self.estimator.held_bytes(each) <= self.room:
                first.setdefault(name, each)
        return [*first.values()]

    def _promising(self) -> Iterator[Estimate]:
        limit = MARGIN * self._best_s()
        fitting = {
            (each.candidate.name, each.candidate.workload.zero): _again(each.candidate)
            for each, run in self._ran
            if self._fits(run)
        }
        for each in self._open:
            candidate = each.candidate
            least = fitting.get((candidate.name, candidate.workload.zero), len(RECOMPUTED))
            if (
                _again(candidate) < least
                and self.estimator.held_bytes(each) <= self.room
                and self.estimator.least_s(each) <= limit
            ):
                yield each

    def _best_s(self) -> float:
        return min(
            (run.took.step_s for _, run in self._ran if self._fits(run)), default=float("inf")
        )

    def _fits(self, run: Projection) -> bool:
        return run.cost is not None and (run.peak_bytes or 0) <= self.room

    def _searched(self) -> Searched:
        held = {  # by plan the least that a form of it holds, as far as is known
            id(each): self.estimator.held_bytes(each) for each in self._open
        } | {id(each): float(run.peak_bytes or 0) for each, run in self._ran}
        least: dict[str, float] = {}
        for each in [*self._open, *(each for each, _ in self._ran)]:
            name = each.candidate.name
            least[name] = min(held[id(each)], least.get(name, held[id(each)]))
        ran = {each.candidate.name for each, _ in self._ran}
        meshes_that_ran = [each.candidate.mesh for each, _ in self._ran]
        axes_that_ran = {axis for mesh in meshes_that_ran for axis, _ in mesh.axes}
        axes_of_others = {axis for each in self._open for axis, _ in each.candidate.mesh.axes}
        slower = [
            self.estimator.least_s(each)
            for each in self._open
            if each.candidate.name not in ran and held[id(each)] <= self.room
        ]
        return Searched(
            workload=self.workload,
            ranks=self.ranks,
            projected=[run for _, run in self._ran],
            too_large=sum(size > self.room for size in least.values()),
            least_bytes=min(least.values(), default=0.0),
            slower=sum(name not in ran and size <= self.room for name, size in least.items()),
            at_least=min(slower, default=0.0) / self._best_s(),
            axes_apart=sorted(axes_of_others - axes_that_ran),
        )


def _again(candidate: Candidate) -> int:
    """How much a candidate computes again, as a place in the order of that."""
    return RECOMPUTED.index(candidate.workload.checkpointing)
