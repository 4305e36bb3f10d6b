"""What strategies wait for: those that are link-bound, slower than their links, than one rank.

Exposed communication is the time that a step waits, also for a rank that is late. The bytes of a
step over it are at least the rate of its transfers, since some are hidden: a strategy that is
below a share of what ``doctor --links`` achieved by this figure is so in truth. Where exposed
communication was not measured, nothing is said.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from spbench.analysis.case_figures import split_of, step_figure
from spbench.analysis.comparable import HARDWARE
from spbench.analysis.compare import MARGIN, Comparison, compare_side_by_side
from spbench.analysis.launches import CaseRows, Cases, Launches
from spbench.results.link_report import LinkReport
from spbench.results.record import MUCH, Record
from spbench.text import grouped
from spbench.workload.traffic import OPS

BOUND = 0.5
"""Share of a step that a link-bound strategy waits at least."""
LOW = 0.25
"""Share of the links' rate below which there is a warning."""


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """One strategy at one number of ranks. None: not known."""

    panel: str
    strategy: str
    ranks: int
    device: str
    step_ms: float | None
    exposed_ms: float | None
    sent_bytes: float
    """Bytes that the busiest rank sends in a step."""
    links_ms: float | None
    """The time that the same transfers took in ``doctor --links``, one after another."""
    measured_utc: str
    """When the links were timed."""
    is_noisy: bool
    """Whether noisy launches are among those that the times are of."""
    to_one_rank: Comparison | None
    """This step time over one rank's."""

    @property
    def is_link_bound(self) -> bool:
        """Whether half of a step waits for links; not where they gave four times as much."""
        return self._waits(BOUND) and not self.is_below_links

    @property
    def is_below_links(self) -> bool:
        """Whether it sends at less than a quarter of the links' rate, and that costs time."""
        if self.links_ms is None or self.exposed_ms is None:
            return False
        return self._waits(MUCH) and self.links_ms < LOW * self.exposed_ms

    @property
    def is_slower_than_one(self) -> bool:
        """Whether the step takes longer, by the interval; where there is none, by the ratio."""
        one = self.to_one_rank
        if one is None or one.ratio is None or one.is_noisy:
            return False
        return one.verdict == "slower" or (one.low is None and one.ratio > 1 + MARGIN)

    def _waits(self, share: float) -> bool:
        return bool(self.step_ms and self.exposed_ms and self.exposed_ms >= share * self.step_ms)


def waiting(cases: Cases, reports: Sequence[LinkReport]) -> list[Waiting]:
    """What each measured case on two ranks or more waits for; the first report that fits counts."""
    used = [case for case in cases.values() if case.used]
    ones = [case for case in used if case.used[0].world_size == 1]
    return [
        _waiting(case, [one for one in ones if one.panel == case.panel], reports)
        for case in used
        if case.used[0].world_size > 1 and case.used[0].kind == "measured"
    ]


def _waiting(case: CaseRows, ones: Sequence[CaseRows], reports: Sequence[LinkReport]) -> Waiting:
    row = case.used[-1]
    step = step_figure(case.used)
    fitting = [report for report in reports if all(map(report.fits, case.used))]
    timed = [(ms, report) for report in fitting if (ms := links_ms(row, report)) is not None]
    found = timed[0] if timed else (None, None)
    return Waiting(
        panel=case.panel,
        strategy=row.strategy,
        ranks=row.world_size,
        device=row.device,
        step_ms=step.mean if step else None,
        exposed_ms=split_of(step.mean if step else None, case.used)[1],
        sent_bytes=sum(getattr(row, f"{op}_bytes") or 0 for op in OPS),
        links_ms=found[0],
        measured_utc=found[1].measured_utc if found[1] else "",
        is_noisy=any(record.noisy for record in case.used),
        to_one_rank=_to_one_rank(case, ones),
    )


def links_ms(row: Record, report: LinkReport) -> float | None:
    """The time of a step's transfers at the report's rates; None where a size was not measured.

    Times grow with sizes on straight lines, so that the mean size of an operation's calls stands
    for all of them. A report is of all ranks together: of groups of them it knows nothing.
    """
    if row.mesh:
        return None
    calls = Counter[str]()
    for op, count in re.findall(r"\w+\.(\w+)=(\d+)", row.collectives):
        calls[op] += int(count)
    total = 0.0
    for op in OPS:
        if sent := getattr(row, f"{op}_bytes"):
            each = report.typical_ms(op, sent / calls[op]) if calls[op] else None
            if each is None:
                return None
            total += calls[op] * each
    return total or None


def _to_one_rank(case: CaseRows, ones: Sequence[CaseRows]) -> Comparison | None:
    """The step time over that of the same strategy on one rank, else of the fastest there."""
    same = [one for one in ones if one.used[0].strategy == case.used[0].strategy]
    timed = [one for one in same or ones if one.launches.that_count.mean_ms is not None]
    if not timed:
        return None
    one = min(timed, key=lambda one: one.launches.that_count.mean_ms or 0.0)
    return compare_side_by_side(_anywhere(one.launches), _anywhere(case.launches))


def _anywhere(launches: Launches) -> Launches:
    """The launches without their placement, in which one rank and several always differ."""
    at = HARDWARE.index("ranks_by_node")
    setups = {name: (*of[:at], "", *of[at + 1 :]) for name, of in launches.setups.items()}
    return replace(launches, setups=setups)


def link_bound(cases: Sequence[Waiting]) -> dict[tuple[str, int], list[Waiting]]:
    """The link-bound strategies of each panel and number of ranks, where there are any."""
    bound = [case for case in cases if case.is_link_bound]
    return grouped(bound, lambda case: (case.panel, case.ranks))
