"""What a run says, in words: who is fastest, what is not told apart, what failed and why.

The sentences are those of ``compare``, in the order in which a reader wants them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spbench.analysis.compare_strategies import Line
from spbench.report.strategy_table import failures, gate_sentences, ranking_sentences
from spbench.text import counted

FIRST = 6
"""Cases that failed, and that are doubtful, of which the answer has a sentence; the others are in
the tables."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Who is fastest, on all numbers of ranks of which the same is true."""

    lead: str
    figures: Sequence[tuple[str, str]]
    """By how much, for each of these numbers of ranks."""


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Who is fastest in one panel."""

    panel: str
    verdicts: Sequence[Verdict]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """All that is said before the first table."""

    rankings: Sequence[Ranking]
    waits: Sequence[str]
    """What strategies wait for."""
    failed: Sequence[str]
    more_failed: int
    """Failures that are not named."""
    cautions: Sequence[str]
    """What a reader of the figures must know: rows left out, launches not measured, noise."""
    more_cautions: int
    """Doubtful cases that are not named."""


def answer_of(lines: Sequence[Line], waits: Sequence[str], remarks: Iterable[str]) -> Answer:
    failed = failures([line for line in lines if line.status != "ok"])
    doubts = failures([line for line in lines if line.status == "ok"])
    return Answer(
        rankings=[
            Ranking(panel=panel, verdicts=_verdicts([x for x in lines if x.panel == panel]))
            for panel in dict.fromkeys(line.panel for line in lines)
        ],
        waits=waits,
        failed=failed[:FIRST],
        more_failed=len(failed[FIRST:]),
        cautions=[*remarks, *gate_sentences(lines), *doubts[:FIRST]],
        more_cautions=len(doubts[FIRST:]),
    )


def _verdicts(lines: Sequence[Line]) -> list[Verdict]:
    """The sentences of a panel's ranking, those together that begin alike."""
    alike: dict[str, dict[int, str]] = {}
    for ranks in dict.fromkeys(line.ranks for line in lines):
        timed = [x for x in lines if x.ranks == ranks and x.time_ms is not None]
        if len(timed) == 1:
            alike.setdefault(f"{timed[0].strategy} alone has a time", {})[ranks] = ""
        for sentence in ranking_sentences(timed):
            said = sentence.removeprefix(f"On {counted(ranks, 'rank')} ")
            lead, _, figures = said.partition(": " if ": " in said.partition("; ")[0] else "; ")
            alike.setdefault(lead, {})[ranks] = figures
    verdicts = [
        Verdict(
            lead=f"On {_listed(list(by_ranks))} {lead}",
            figures=[(counted(ranks, "rank"), text) for ranks, text in by_ranks.items() if text],
        )
        for lead, by_ranks in alike.items()
    ]
    return verdicts or [Verdict(lead="Nothing was timed", figures=[])]


def _listed(ranks: Sequence[int]) -> str:
    """1, 2 and 4 ranks."""
    before = f"{', '.join(f'{count:,}' for count in ranks[:-1])} and " if len(ranks) > 1 else ""
    return before + counted(ranks[-1], "rank")
