"""Which strategies of a panel can be ranked on a number of ranks, and who of them is fastest.

Whatever names or shows a winner asks here, so that no figure ranks what a sentence refuses to:
sentences, Markdown, the page's answer, the winners' map. Not ranked are shares of one GPU, which
compute and send nothing; times of too few undisturbed launches; and what is projected not to fit
into memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from spbench.analysis.strategy_line import Line


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The strategies of one panel on one number of ranks, by whether they can be ranked."""

    lowest: Line | None
    """The lowest time of those that can be ranked; None where none can be."""
    others: Sequence[Line]
    """The others that can be ranked, by their times."""
    noisy: Sequence[Line]
    """Those with a time of noisy launches, since too few were quiet: one may be the fastest."""
    too_large: Sequence[Line]
    """Those with a time that no device has the memory for."""
    shares: Sequence[Line]
    """Those of which one GPU computed a rank's share, without messages: that is no step."""

    @property
    def fastest(self) -> Line | None:
        """The strategy that is shown to be faster than each other with a time; None: none is."""
        is_shown = not self.noisy and all(line.is_slower for line in self.others)
        return self.lowest if is_shown else None

    @property
    def timed(self) -> Sequence[Line]:
        """All that have the time of a step that fits into memory, disturbed or not."""
        return [*([self.lowest] if self.lowest else []), *self.others, *self.noisy]


def ranking_of(lines: Sequence[Line]) -> Ranking:
    """``lines``: of one panel and number of ranks, whether or not they have a time."""
    timed = [line for line in lines if line.time_ms is not None]
    fitting = [line for line in timed if line.fits]
    quiet = sorted((x for x in fitting if not x.is_noisy), key=lambda line: line.time_ms or 0.0)
    return Ranking(
        lowest=quiet[0] if quiet else None,
        others=quiet[1:],
        noisy=[line for line in fitting if line.is_noisy],
        too_large=[line for line in timed if not line.fits],
        shares=[line for line in lines if line.is_share and line.compute_ms is not None],
    )
