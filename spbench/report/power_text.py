"""Which slowdown can be found against a baseline, in words."""

from __future__ import annotations

from collections.abc import Iterator

from spbench.analysis.power import MOST_OF_CHECK, DetectableSlowdown
from spbench.analysis.verdict import MAX_SLOWDOWN
from spbench.report.units import percent
from spbench.text import counted

WORTH_MORE = 0.8
"""More launches are advised where they find a slowdown that is so much smaller."""


def findable_in_words(found: DetectableSlowdown | None) -> Iterator[str]:
    """What a check finds in the hardest case, and whether more launches would find less."""
    if found is None:
        return
    hard = found.record
    share = "" if hard.kind == "measured" else ", one GPU's share"
    yield (
        f"Time is hardest to judge of {hard.strategy} on {counted(hard.world_size, 'rank')} "
        f"({hard.workload}{share}): its {found.launches} launches have a standard deviation of "
        f"{percent(found.spread)}."
    )
    yield (
        f"Where the machine stays as it was, a check finds a slowdown of about "
        f"{percent(found.slowdown)} there (--max-slowdown {MAX_SLOWDOWN:.0%}, up to "
        f"{MOST_OF_CHECK} launches)."
    )
    if found.with_more < WORTH_MORE * found.slowdown:
        yield (
            f"With {MOST_OF_CHECK} such launches in the baseline, too, it would find about "
            f"{percent(found.with_more)}: the same run with --launches {MOST_OF_CHECK}."
        )
