"""What launches have shown of memory: which cases ran out of it, and so which need not be tried.

A case is not tried that needs at least what was missing before. On GPUs a rank has its memory for
itself: of two cases that differ in ranks alone the one on fewer needs more, since each rank holds a
larger part. Ranks of one CPU share its memory: there the one on more ranks needs more, since parts
add up to the same, and what every rank holds whole comes once more. On several CPUs neither is
known, and only cases on as many ranks are compared. Nothing is skipped that needs no more than a
case that ran.
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from spbench.results.hand_over import RowStatus
from spbench.results.record import Record
from spbench.text import counted
from spbench.workload.case import Case, Cell

STARVED = ("oom", "host_oom")


@final
@dataclass(frozen=True, kw_only=True)
class MemorySeen:
    """The cases whose memory is known, of this run and of what it resumes."""

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
        ran = any(self._is_as_large(known, case) for known in self.fitted)
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
    ranks = case.ranks if _share_memory(case) else -case.ranks
    return ranks, work.samples, work.blocks, *work.axes.values()


def _in_words(case: Case) -> str:
    work = case.workload
    axes = " x ".join(f"{name} {size}" for name, size in work.axes.items())
    depth = f"depth {work.depth_in_words}"
    return f"{axes}, batch {work.batch}, {depth} on {counted(case.ranks, 'rank')}"


def _all_but_sizes(case: Case) -> tuple[str, str, str, list[str], Mapping[str, Any]]:
    work = case.workload
    fields = work.model_dump(exclude={"axes", "batch", "guidance", "depth", "name", "source"})
    return case.name, case.device, case.kind, list(work.axes), fields
