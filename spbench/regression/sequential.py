"""A check that measures: in stages, and no longer than a verdict takes.

Each look at launches that grow in number is another chance to fail by luck alone. So all looks of
a check share ``ALPHA``: those that can fail a case come at fixed numbers of launches, and each may
spend a fixed part of it (error spending, Jennison and Turnbull 2000, ch. 7; by Bonferroni, whatever
the looks have to do with each other).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from spbench.analysis.findings import Finding, Margins
from spbench.analysis.intervals import LEAST_LAUNCHES
from spbench.analysis.verdict import SHARES, Graded, Judgement, is_timed, judged


class Measurement(Protocol):
    """Where a check measures."""

    def measure(self, launches: Iterable[int], only: Iterable[str] | None = None) -> None:
        """More launches of all cases, or of those with these keys."""

    def findings(self) -> list[Finding]:
        """As things stand."""

    def stored(self) -> Mapping[str, int] | None:
        """Quiet launches of each case on a side that is not measured here; None: both are."""


def in_stages(
    bench: Measurement, launches: int, margins: Margins, in_doubt: Callable[[int], None]
) -> Judgement:
    """A first launch of each case shows what can be judged at all; then come the others of what can
    be timed; then as many again of the cases that would fail or stay open; and then of those that
    are still open, up to four times ``launches``.

    ``in_doubt`` is told how many cases are about to be measured again.
    """
    bench.measure(range(1))
    judgement = judged(bench.findings(), margins)
    stored = bench.stored()
    # Against fewer launches than an interval takes, no number of others can tell.
    enough = {case for case, quiet in (stored or {}).items() if quiet >= LEAST_LAUNCHES}
    timed = [one.case for one in judgement.timed if stored is None or one.case in enough]
    if not timed:
        return judgement
    if launches > 1:
        bench.measure(range(1, launches), timed)
        judgement = judged(bench.findings(), margins)
    doubtful = _among(timed, judgement, lambda one: _would_fail(one) or _is_open(one))
    for times, share in enumerate(SHARES, start=1):
        if not doubtful:
            break
        in_doubt(len(doubtful))
        bench.measure(range(times * launches, (times + 1) * launches), doubtful)
        judgement = judged(bench.findings(), margins, share=share)
        doubtful = _among(timed, judgement, _lacks_launches)
    return judgement


def _among(
    timed: Sequence[str], judgement: Judgement, wanted: Callable[[Graded], bool]
) -> list[str]:
    cases = [one.finding.case for one in judgement.graded if wanted(one)]
    return [case for case in cases if case in timed]


def _would_fail(one: Graded) -> bool:
    return one.grade == "fail" and is_timed(one.finding)


def _is_open(one: Graded) -> bool:
    return one.grade == "undecided" and is_timed(one.finding)


def _lacks_launches(one: Graded) -> bool:
    """Open, and not for noise, which more launches need not end."""
    found = one.finding.comparison
    return _is_open(one) and found is not None and not found.is_noisy
