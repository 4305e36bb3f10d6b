"""From a request to the cells to run: every launch of every combination, checked beforehand; that
imports torch. Then the rounds to measure again, since too few launches of a strategy were quiet.

Such a round is measured whole, so that ratios are still those of launches next to each other, and
as a launch of its own: what was disturbed stays in ``runs.csv``. As many rounds as were planned may
follow, and only while they can still bring enough quiet launches; none where every launch so far
was noisy, as on a machine that is never quiet (docs/decisions/0016).

A case is not tried that needs at least the memory that was missing before (``MemorySeen``).
"""

import operator
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, final

import click

from spbench.analysis.intervals import LEAST_LAUNCHES
from spbench.errors import Failure
from spbench.launch.launcher import Deadlines
from spbench.results.hand_over import RowStatus
from spbench.results.record import Record
from spbench.strategies.registry import in_mesh, load
from spbench.sweep.devices import why_not_here
from spbench.sweep.request import Request, refusal
from spbench.text import counted, grouped
from spbench.workload.case import Case, Cell, Combination, Job
from spbench.workload.mesh import CaseMesh
from spbench.workload.workload import Workload

T = TypeVar("T")
MAX_LAUNCHES_OF_A_RUN = 10_000
"""Launches of all cells: at ten seconds each they take a day."""


def cells(request: Request) -> list[Cell]:
    """The cells of a request in the order of their running (see ``in_rounds``).

    Raises Failure for options that a strategy does not have, and for a cell that cannot run unless
    such cells are to be skipped, or every strategy was asked for and some can run.
    """
    launches = len(request.combinations) * request.launches
    if launches > MAX_LAUNCHES_OF_A_RUN:
        raise Failure(
            f"{counted(len(request.combinations), 'cell')} x "
            f"{counted(request.launches, 'launch')} are {launches:,} launches, and a run has at "
            f"most {MAX_LAUNCHES_OF_A_RUN:,}; use fewer --launches, or several runs of fewer cells"
        )
    cases = [
        Case(
            workload=combination.workload,
            strategy=combination.strategy,
            ranks=combination.ranks,
            mesh=combination.mesh,
            device=request.device,
            kind=request.kind,
            execution=request.execution,
            seed=request.seed,
            budget=request.budget,
        )
        for combination in request.combinations
    ]
    planned = in_rounds(cases, range(request.launches), request.seed)
    share = request.kind == "one_gpu_share" or not request.starts
    why_nots = {
        ranks: why_not_here(ranks, request.device, share=share, nodes=request.nodes)
        for ranks in {case.ranks for case in cases}
    }
    planned = [replace(cell, why_not=cell.why_not or why_nots[cell.case.ranks]) for cell in planned]
    refused = [cell for cell in planned if cell.why_not is not None]
    tolerated = request.skip_invalid or (request.every_strategy and len(refused) < len(planned))
    if refused and not tolerated:
        raise refusal(request, refused[0], planned)
    return planned


def without_unfit(request: Request) -> Request:
    """The request without ranks that a strategy cannot use, of which stderr says why; as it is
    where nothing would be left, or where such cells become rows."""
    why: dict[tuple[Workload, int, CaseMesh], str] = {}
    for asked in [] if request.skip_invalid else request.combinations:
        if reason := declined(asked):
            name = asked.mesh.beside(asked.strategy)
            where = f"{asked.workload.name} on {counted(asked.ranks, 'rank')}"
            sentence = f"left out: {where}, since {name} cannot: {reason}"
            why.setdefault((asked.workload, asked.ranks, asked.mesh), sentence)
    fit = [
        asked
        for asked in request.combinations
        if (asked.workload, asked.ranks, asked.mesh) not in why
    ]
    for sentence in dict.fromkeys(why.values()) if fit else ():
        click.echo(sentence, err=True)
    return replace(request, combinations=fit or request.combinations)


def in_rounds(cases: Sequence[Case], launches: Iterable[int], seed: int) -> list[Cell]:
    """Launch by launch, strategies interleaved: each launch of all cases is a round.

    Within a round all strategies of one workload and number of ranks follow each other. The
    first round has them in the order given, the others begin elsewhere (see ``turned``).
    """
    # Neighbours in the plan need not be so in the request: an include may add a strategy.
    cells = [Cell(case=case, why_not=declined(case)) for case in cases]
    groups = grouped(cells, lambda cell: (cell.case.workload, cell.case.ranks))
    return [
        replace(cell, case=cell.case.model_copy(update={"launch": launch}))
        for launch in launches
        for group in groups.values()
        for cell in turned(group, launch, seed)
    ]


def declined(case: Case | Combination) -> str | None:
    """Why the strategy cannot run the case; None if it can."""
    strategy = in_mesh(case.strategy, case.mesh)
    is_share = isinstance(case, Case) and case.kind == "one_gpu_share"
    alone = strategy.only_measured if is_share else None
    return strategy.declines(case.workload, case.ranks) or alone or _why_not_captured(case)


def _why_not_captured(case: Case | Combination) -> str | None:
    """Why its steps cannot be one graph, where they are to be; None if they can."""
    if isinstance(case, Combination) or case.execution != "graph":
        return None
    strategy = in_mesh(case.strategy, case.mesh)
    plan = strategy.on(strategy.flattened(case.workload), case.ranks)
    if not plan.group.sends_itself:
        return None
    return "its package sends by itself, and nobody counts what a captured step of it sends"


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


def job_of(case: Case, deadlines: Deadlines, capability: tuple[int, int] = (0, 0)) -> Job:
    """The start of ranks that measures ``case``, on GPUs of this compute capability.

    The variables that a strategy asks for are read by CUDA alone: on a CPU none is set.
    """
    return Job(
        ranks=case.ranks,
        device=case.device,
        case=case,
        timeout_s=deadlines.launch_s,
        hang_s=deadlines.hang_s,
        environment=load(case.strategy).environment(capability) if case.device == "cuda" else {},
    )


def shared_environment(jobs: Sequence[Job], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables to set in processes that live through all of these jobs.

    A variable of CUDA is read once. Raises Failure where a strategy asks for one that another
    would then have, too, without having asked; not if ``environ`` has it for all of them.
    """
    shared = {name: value for job in jobs for name, value in job.environment.items()}
    for name, value in shared.items():
        effect = {
            job.case.strategy: job.environment.get(name, environ.get(name))
            for job in jobs
            if job.case is not None
        }
        asking = [strategy for strategy, given in effect.items() if given == value]
        others = [strategy for strategy in effect if strategy not in asking]
        if others:
            raise Failure(
                f"{' and '.join(asking)} asked for {name}={value}, {' and '.join(others)} did not, "
                f"and ranks that torchrun or srun started keep one environment for all cases; run "
                f"them one after the other into the same --out, -s {','.join(others)} and then "
                f"-s {','.join(asking)}, or let spbench start the ranks, one spbench a node"
            )
    return shared


def noisy_rounds(cells: Sequence[Cell], latest: Sequence[Record], seed: int) -> list[Cell]:
    """One more round of each workload and number of ranks that lacks quiet launches.

    ``cells`` are those that were planned, ``latest`` has a row of each launch so far. Quick
    launches, and fewer than an interval takes, are not measured again.
    """
    full = [cell.case for cell in cells if cell.case.budget.label == "full"]
    groups = grouped(full, lambda case: (case.workload_key, case.ranks))
    return [cell for cases in groups.values() for cell in _one_more(cases, latest, seed)]


def _one_more(cases: Sequence[Case], latest: Sequence[Record], seed: int) -> list[Cell]:
    planned = 1 + max(case.launch for case in cases)
    by_key = {case.key: case for case in cases}
    rows = [row for row in latest if row.case in by_key and row.effort_label == "full"]
    good = {key: [row for row in rows if (row.case, row.status) == (key, "ok")] for key in by_key}
    again = [key for key in by_key if len(good[key]) >= LEAST_LAUNCHES]
    quiet = {key: len([row for row in good[key] if not row.noisy]) for key in again}
    if not any(quiet.values()):
        return []  # nothing says that the next round would be quiet
    lacking = LEAST_LAUNCHES - min(quiet.values())
    launch = 1 + max((row.launch for row in rows), default=0)
    rounds_left = 2 * planned - launch  # as many as were planned may follow
    if not 0 < lacking <= rounds_left:
        return []
    return in_rounds([by_key[key] for key in again], [launch], seed)


STARVED = ("oom", "host_oom")


@final
@dataclass(frozen=True, kw_only=True)
class MemorySeen:
    """What launches have shown of memory, in this run and in what it resumes.

    A case is not tried that needs at least what was missing before. On GPUs a rank has its memory
    for itself: of two cases that differ in ranks alone the one on fewer needs more, since each rank
    holds a larger part. Ranks of one CPU share its memory: there the one on more ranks needs more,
    since parts add up to the same, and what every rank holds whole comes once more. On several CPUs
    neither is known, and only cases on as many ranks are compared. Nothing is skipped that needs no
    more than a case that ran.
    """

    nodes: int = 1
    starved: list[Case] = field(default_factory=list)
    fitted: list[Case] = field(default_factory=list)
    once_more: set[str] = field(default_factory=set)
    """Keys of cases that starved before this invocation: each is tried again, once, since somebody
    may have freed memory meanwhile."""

    @classmethod
    def of(cls, cells: Sequence[Cell], rows: Iterable[Record], nodes: int) -> "MemorySeen":
        """``rows``: what is kept of earlier invocations, in which ``cells`` have a part."""
        cases = {(cell.case.key, cell.case.launch): cell.case for cell in cells}
        latest = {(row.case, row.launch): row.status for row in rows}
        ended = [(case, latest[key]) for key, case in cases.items() if key in latest]
        starved = [case for case, status in ended if status in STARVED]
        fitted = [case for case, status in ended if status == "ok"]
        keys = {case.key for case in starved}
        return cls(nodes=nodes, starved=starved, fitted=fitted, once_more=keys)

    def add(self, case: Case, status: RowStatus) -> None:
        """How a launch of the case ended."""
        if case.key in self.once_more:
            self.once_more.discard(case.key)
            self.starved[:] = [other for other in self.starved if other.key != case.key]
        if status in STARVED:
            self.starved.append(case)
        elif status == "ok":
            self.fitted.append(case)

    def why_not(self, case: Case) -> str | None:
        """Why ``case`` needs at least the memory that was missing before; None if it may need
        less, or is to be tried once more."""
        ran = any(self._is_as_large(fitted, case) for fitted in self.fitted)
        if ran or case.key in self.once_more:
            return None
        for other in self.starved:
            if other.key == case.key:
                return f"out of memory in launch {other.launch + 1} already"
            if self._is_as_large(case, other):
                return f"larger than an oom case ({_in_words(other)})"
        return None

    def _is_as_large(self, case: Case, other: Case) -> bool:
        """Whether no size of ``case`` is smaller, and all that is no size is equal."""
        if _all_but_sizes(case) != _all_but_sizes(other):
            return False
        if _share_memory(case) and self.nodes > 1 and case.ranks != other.ranks:
            return False
        return all(map(operator.ge, _sizes(case), _sizes(other)))


def _share_memory(case: Case) -> bool:
    """Whether ranks have one memory together. A share of a group is one process by itself."""
    return case.device == "cpu" and case.kind == "measured"


def _sizes(case: Case) -> tuple[int, ...]:
    """Numbers of which each takes more memory where it is larger."""
    work = case.workload
    ranks = case.ranks if _share_memory(case) else -case.ranks  # fewer GPUs each hold more
    return ranks, work.samples, work.blocks, *work.axes.values()


def _in_words(case: Case) -> str:
    work = case.workload
    axes = " x ".join(f"{name} {size}" for name, size in work.axes.items())
    depth = f"depth {work.depth_in_words}"
    return f"{axes}, batch {work.batch}, {depth} on {counted(case.ranks, 'rank')}"


def _all_but_sizes(case: Case) -> tuple[str, str, str, str, list[str], Mapping[str, Any]]:
    work = case.workload
    fields = work.model_dump(exclude={"axes", "batch", "guidance", "depth", "name", "source"})
    return case.name, case.device, case.kind, case.execution, list(work.axes), fields
