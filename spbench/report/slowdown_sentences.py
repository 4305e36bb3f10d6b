"""The slowdown that a check against a baseline detects, in words."""

from __future__ import annotations

from collections.abc import Iterator

from spbench.analysis.power import MOST_OF_CHECK, DetectableSlowdown
from spbench.analysis.verdict import MAX_SLOWDOWN
from spbench.report import units
from spbench.text import counted

WORTH_MORE = 0.8
"""More launches are advised where they lower the detectable slowdown to this share of it."""


def slowdown_in_words(slowdown: DetectableSlowdown | None) -> Iterator[str]:
    """The slowdown that a check detects in the noisiest case, and with more launches."""
    if slowdown is None:
        return
    hard = slowdown.record
    share = "" if hard.kind == "measured" else ", one GPU's share"
    yield (
        f"Time is hardest to judge of {hard.strategy} on {counted(hard.world_size, 'rank')} "
        f"({hard.workload}{share}): its {slowdown.launches} launches have a standard deviation of "
        f"{units.percent(slowdown.spread)}."
    )
    yield (
        f"Where the machine stays as it was, a check finds a slowdown of about "
        f"{units.percent(slowdown.slowdown)} there (--max-slowdown {MAX_SLOWDOWN:.0%}, up to "
        f"{MOST_OF_CHECK} launches)."
    )
    if slowdown.with_more < WORTH_MORE * slowdown.slowdown:
        yield (
            f"With {MOST_OF_CHECK} such launches in the baseline, too, it would find about "
            f"{units.percent(slowdown.with_more)}: the same run with --launches {MOST_OF_CHECK}."
        )
