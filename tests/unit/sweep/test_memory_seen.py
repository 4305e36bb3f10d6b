"""What need not be tried after a case that ran out of memory, here and in a resumed run."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.golden import Golden

from spbench.results.record import Record
from spbench.sweep.plan import MemorySeen
from spbench.workload.case import Case, Cell
from spbench.workload.catalogue import find

WORK = find("axes-2d", "verify")


def case(ranks: int = 2, launch: int = 0, **more: Any) -> Case:
    """A case of DSP on a CPU; other names are fields of its workload, but for device and kind."""
    own = {name: more.pop(name) for name in ("device", "kind") if name in more}
    work = WORK.model_copy(update=more)
    known = {"workload": work, "strategy": "dsp", "ranks": ranks, "device": "cpu"}
    return Case(**known | own).model_copy(update={"launch": launch})


def skips(seen: MemorySeen, **more: Any) -> bool:
    return seen.why_not(case(**more)) is not None


@pytest.mark.parametrize(
    ("how", "nodes", "skipped"),
    [
        ({"device": "cuda"}, 1, [1, 2]),
        ({"device": "cuda"}, 2, [1, 2]),
        ({"device": "cpu"}, 1, [2, 4]),
        ({"device": "cpu"}, 2, [2]),
        ({"device": "cpu", "kind": "one_gpu_share"}, 1, [1, 2]),
    ],
)
def test_which_numbers_of_ranks_need_more(
    how: dict[str, str], nodes: int, skipped: list[int]
) -> None:
    """Fewer where each has a device of its own, more where all share one machine's memory."""
    seen = MemorySeen(nodes=nodes)
    seen.add(case(2, batch=4, **how), "oom")
    assert [ranks for ranks in (1, 2, 4) if skips(seen, ranks=ranks, batch=5, **how)] == skipped
    assert not any(skips(seen, ranks=ranks, batch=3, **how) for ranks in (1, 4))


def test_a_case_that_ran_is_not_skipped() -> None:
    """Nor one that needs no more than it; a neighbour may have taken the memory of the other."""
    seen = MemorySeen()
    seen.add(case(4), "ok")
    seen.add(case(2), "host_oom")
    assert not skips(seen, ranks=4, launch=1)
    assert not skips(seen, ranks=2, launch=1)
    assert skips(seen, ranks=8)
    assert skips(seen, ranks=4, batch=WORK.batch + 1)


def row(of: Case, status: Any) -> Record:
    known = {"run_id": "made-up", "started_utc": "2030-01-01T00:00:00Z", "status": status}
    return Record.of_case(of, **known)


def test_a_resumed_run_knows_what_starved(golden: Golden) -> None:
    """What starved is tried once more, what is larger is not, until that has run."""
    small, large, more = case(), case(batch=WORK.batch + 1), case(launch=1)
    cells = [Cell(case=each, why_not=None) for each in (small, large, more)]
    rows = [row(small, "ok"), row(small, "oom"), row(more, "skipped")]
    seen = MemorySeen.of(cells, rows, nodes=1)
    assert seen.why_not(large)
    assert seen.why_not(small) is None
    seen.add(small, "oom")
    golden(seen.why_not(more))
    assert seen.why_not(large)
    freed = MemorySeen.of(cells, rows, nodes=1)
    freed.add(small, "ok")
    assert freed.why_not(more) is freed.why_not(large) is None


def test_a_resumed_run_knows_what_ran() -> None:
    """Rows of other cases, and of other statuses, say nothing of memory."""
    ran, other = case(), case(batch=WORK.batch + 7)
    rows = [row(ran, "ok"), row(other, "oom"), row(case(1), "crash")]
    seen = MemorySeen.of([Cell(case=ran, why_not=None)], rows, nodes=1)
    assert (seen.fitted, seen.starved, seen.once_more) == ([ran], [], set())
