"""A check that measures: in stages, and no longer than a verdict takes.

Each look at launches that grow in number is another chance to fail by luck alone. So a case may
spend ``ALPHA`` only once: each look that can fail it spends as much as it has new launches, of
all that a case may get (Bonferroni over group-sequential looks; Jennison and Turnbull 2000, ch. 7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from spbench.judge.between import Finding, Margins
from spbench.judge.regression import Graded, Judgement, is_timed, judged

MOST = 4
"""Times the launches that were asked for, of a case that stays open."""


class Bench(Protocol):
    """Where a check measures."""

    def measure(self, launches: Iterable[int], only: Iterable[str] | None = None) -> None:
        """More launches of all cases, or of those with these keys."""

    def findings(self) -> list[Finding]:
        """As things stand."""


def in_stages(
    bench: Bench, launches: int, margins: Margins, in_doubt: Callable[[int], None]
) -> Judgement:
    """A first launch of each case shows what can be judged at all; then come the others of what
    can be timed; then once more as many, or double, of the cases that would fail or stay open; and
    then of those that are still open, up to four times ``launches``.

    ``in_doubt`` is told how many cases are about to be measured once more.
    """
    bench.measure(range(1))
    judgement = judged(bench.findings(), margins)
    timed = [finding.case for finding in judgement.timed]
    if not timed:
        return judgement
    if launches > 1:
        bench.measure(range(1, launches), timed)
        judgement = judged(bench.findings(), margins)
    so_far, looked, earlier = launches, 0, None
    doubtful, more = again(judgement, launches)
    while doubtful:
        in_doubt(len(doubtful))
        bench.measure(range(so_far, so_far + more), doubtful)
        so_far += more
        share = (so_far - looked) / (MOST * launches)
        judgement = earlier = judged(bench.findings(), margins, share=share, earlier=earlier)
        looked = so_far
        doubtful, more = again(judgement, launches, so_far)
    return judgement


def again(judgement: Judgement, launches: int, so_far: int | None = None) -> tuple[list[str], int]:
    """Cases whose time is worth measuring once more, and how many launches that takes.

    After the first ``launches`` those that would fail or stay open; later, when ``so_far`` are
    there, those that are still open for want of launches. As many again, or up to double where so
    many would tell, and no more than four times ``launches`` in all.
    """
    there = launches if so_far is None else so_far
    doubtful = [
        one.finding
        for one in judgement.graded
        if one.outcome != "pass" and is_timed(one.finding) and (there == launches or _lacks(one))
    ]
    needs = [one.comparison.needs or 0 for one in doubtful if one.comparison is not None]
    more = min(max([launches, *(need - there for need in needs)]), 2 * launches)
    more = min(more, MOST * launches - there)
    return ([one.case for one in doubtful] if more else []), more


def _lacks(one: Graded) -> bool:
    """Open, and not for noise, which more launches need not end."""
    found = one.finding.comparison
    return one.outcome == "undecided" and found is not None and not found.is_noisy
