"""Measures a check in stages, and no longer than a verdict takes.

Each look at a growing number of launches is another chance to fail by luck alone. So all looks of a
check share ``ALPHA``: those that can fail a case come at fixed numbers of launches, and each may
spend a fixed share of it (error spending, Jennison and Turnbull 2000, ch. 7; by Bonferroni, however
the looks depend on each other).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from spbench.analysis.findings import Finding, Margins
from spbench.analysis.intervals import LEAST_LAUNCHES
from spbench.analysis.verdict import SHARES, Graded, Judgement, is_timed, judged


class Measurement(Protocol):
    """What measures launches for a check, and compares those there are so far."""

    def measure(self, launches: Iterable[int], only: Collection[str] | None = None) -> None:
        """Makes these launches of all cases, or only of the cases with these keys."""

    def findings(self) -> list[Finding]:
        """Compares base and head over all launches so far."""

    def baseline_launches(self) -> Mapping[str, int] | None:
        """Quiet launches of each case in the baseline; None where base is measured here too."""


def in_stages(
    measurement: Measurement, launches: int, margins: Margins, announce_doubt: Callable[[int], None]
) -> Judgement:
    """Measures in up to five stages: one launch of each case, which shows what can be judged at
    all; the other ``launches`` of the cases whose time can be judged; as many again of the cases
    that would fail or are undecided; and then, twice, of those that are still undecided.

    ``announce_doubt`` is called with the number of cases that are about to be measured again.
    """
    measurement.measure(range(1))
    judgement = judged(measurement.findings(), margins)
    known = measurement.baseline_launches()
    # A baseline with fewer launches than an interval takes never allows a verdict.
    enough = {case for case, quiet in (known or {}).items() if quiet >= LEAST_LAUNCHES}
    timed = [time.case for time in judgement.timed if known is None or time.case in enough]
    if not timed:
        return judgement
    if launches > 1:
        measurement.measure(range(1, launches), timed)
        judgement = judged(measurement.findings(), margins)
    doubtful = _cases(timed, judgement, lambda graded: _would_fail(graded) or _is_undecided(graded))
    for times, share in enumerate(SHARES, start=1):
        if not doubtful:
            break
        announce_doubt(len(doubtful))
        measurement.measure(range(times * launches, (times + 1) * launches), doubtful)
        judgement = judged(measurement.findings(), margins, share=share)
        doubtful = _cases(timed, judgement, _lacks_launches)
    return judgement


def _cases(
    timed: Sequence[str], judgement: Judgement, holds: Callable[[Graded], bool]
) -> list[str]:
    cases = [graded.finding.case for graded in judgement.graded if holds(graded)]
    return [case for case in cases if case in timed]


def _would_fail(graded: Graded) -> bool:
    return graded.grade == "fail" and is_timed(graded.finding)


def _is_undecided(graded: Graded) -> bool:
    return graded.grade == "undecided" and is_timed(graded.finding)


def _lacks_launches(graded: Graded) -> bool:
    """Undecided, but not because of noise, which more launches need not end."""
    comparison = graded.finding.comparison
    return _is_undecided(graded) and comparison is not None and not comparison.is_noisy
