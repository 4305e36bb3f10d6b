"""Dry runs of many cases: on all cores, and as plain data for a table of what would run.

On all cores each forked process takes the next case. One that dies leaves its case to this one.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from multiprocessing.connection import Connection, wait
from multiprocessing.sharedctypes import Synchronized
from typing import TypeAlias, final

from spbench.errors import Failure
from spbench.projection.dryrun.meta_ops import (
    Known,
    Signature,
    TooManyOperationsError,
    load_compiler,
)
from spbench.projection.dryrun.trace import work
from spbench.projection.dryrun.work import Work
from spbench.results.machine import usable_cores
from spbench.strategies.registry import in_mesh, meshed
from spbench.text import counted
from spbench.worker.parent_death import die_with_parent
from spbench.workload.case import Cell, Device
from spbench.workload.predicted import RankWork
from spbench.workload.workload import Workload

WorkOf = Callable[[Workload, str, int], Work]
"""The work of a strategy, by its name with its mesh, on so many ranks."""
MOST_KNOWN = 50_000
"""Calls of torch's operations that dry runs keep, of about 2 KB each."""
MOST_CASES = 24
"""Cases whose work a dry run counts: each takes about a second."""


def works(device: Device = "cuda", *, with_memory: bool = False) -> WorkOf:
    """A function that dry-runs each strategy once for each workload and number of ranks, as on such
    a device."""
    known: dict[Signature, Known] = {}

    @cache
    def work_of(workload: Workload, strategy: str, ranks: int) -> Work:
        if len(known) > MOST_KNOWN:
            known.clear()
        own = meshed(strategy)
        return work(workload, own, ranks, with_memory=with_memory, device=device, known=known)

    return work_of


def rank_works(cells: Sequence[Cell]) -> tuple[dict[str, RankWork], list[str]]:
    """The work of each case that can run, by its key, and sentences on those left out."""
    cases = {
        cell.case.key: cell.case
        for cell in cells
        if cell.why_not is None
        and in_mesh(cell.case.strategy, cell.case.mesh).only_measured is None
    }
    if len(cases) > MOST_CASES:
        return {}, [
            f"operations and peak memory by part are counted for up to {MOST_CASES} cases, not for "
            f"{len(cases):,}: ask for fewer strategies, ranks or workloads"
        ]
    questions = [(case.workload, key, case.ranks) for key, case in cases.items()]

    def work_of(workload: Workload, key: str, ranks: int) -> Work:
        strategy, device = in_mesh(cases[key].strategy, cases[key].mesh), cases[key].device
        return work(workload, strategy, ranks, with_memory=True, device=device)

    known, sentences = {}, []
    with forked(work_of, questions) as answers:
        for question in questions:
            case = cases[question[1]]
            try:
                known[case.key] = _rank_work(answers(*question))
            except TooManyOperationsError as error:
                ranks = counted(case.ranks, "rank")
                sentences.append(f"{case.strategy} on {ranks} is not counted: {error}")
    return known, sentences


def _rank_work(done: Work) -> RankWork:
    assert done.memory is not None
    return RankWork(
        flops={"gemm": done.flops("gemm"), "attention": done.flops("attention")},
        kernels=done.launches,
        peak_bytes=asdict(done.memory),
    )


MOST_PROCESSES = 8
"""Each has about 200 MB of its own."""
Question = tuple[Workload, str, int]
Next: TypeAlias = "Synchronized[int]"  # place of the next question


@contextmanager
def forked(work_of: WorkOf, questions: Sequence[Question]) -> Iterator[WorkOf]:
    """``work_of``, with the answers to these questions worked out on all cores from now on."""
    count = min(max(1, int(usable_cores())), MOST_PROCESSES, len(questions))
    if count < 2 or sys.platform != "linux":
        yield work_of
        return
    load_compiler()
    context, own = multiprocessing.get_context("fork"), os.getpid()
    next_ = context.Value("i", 0)
    pipes, processes = [], []
    try:
        for _ in range(count):
            begin, end = context.Pipe(duplex=False)  # no other process has the end of this one
            given = end, work_of, questions, next_, own
            processes.append(context.Process(target=_answer, args=given, daemon=True))
            processes[-1].start()
            end.close()
            pipes.append(begin)
        yield _Answers(work_of, pipes)
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()


@final
class _Answers:
    """What the processes have answered so far."""

    def __init__(self, work_of: WorkOf, pipes: list[Connection]) -> None:
        self._work_of, self._open = work_of, pipes
        self._answers: dict[Question, Work | Failure] = {}

    def __call__(self, workload: Workload, strategy: str, ranks: int) -> Work:
        asked = workload, strategy, ranks
        while asked not in self._answers and self._open:
            for pipe in wait(self._open):
                assert isinstance(pipe, Connection)
                self._hear(pipe)
        answer = self._answers.get(asked)
        if isinstance(answer, Failure):
            raise answer
        return answer or self._work_of(workload, strategy, ranks)

    def _hear(self, pipe: Connection) -> None:
        try:
            question, answer = pipe.recv()
        except (EOFError, OSError):
            self._open.remove(pipe)
        else:
            self._answers[question] = answer


def _answer(
    pipe: Connection, work_of: WorkOf, questions: Sequence[Question], next_: Next, parent: int
) -> None:
    """One process: answers one question after another, and ends at what it does not foresee."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it, too, and ends this one
        die_with_parent(parent)
        while (place := _taken(next_)) < len(questions):
            try:
                answer: Work | Failure = work_of(*questions[place])
            except Failure as failure:
                answer = failure
            pipe.send((questions[place], answer))
    finally:
        os._exit(0)


def _taken(next_: Next) -> int:
    with next_.get_lock():
        next_.value += 1
        return next_.value - 1
