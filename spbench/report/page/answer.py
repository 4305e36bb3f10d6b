"""What a run says, in words: who is fastest, what is not told apart, what failed and why.

The sentences are those of ``compare``, in the order in which a reader wants them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spbench.analysis.strategy_line import Line
from spbench.report.page.method import Facts
from spbench.report.strategy_table import failures, gate_sentences, ranking_sentences
from spbench.text import counted, listed

FIRST = 6
"""Cases that failed, and that are doubtful, of which the answer has a sentence; the others are in
the tables."""


def answer_of(
    lines: Sequence[Line], waits: Sequence[str], remarks: Iterable[str]
) -> Mapping[str, Any]:
    """All that is said before the first table: who is fastest in each panel, what strategies
    wait for, failures, and what a reader of the figures must know."""
    failed = failures([line for line in lines if line.status != "ok"])
    doubts = failures([line for line in lines if line.status == "ok"])
    panels = dict.fromkeys(line.panel for line in lines)
    return {
        "rankings": {p: _verdicts([line for line in lines if line.panel == p]) for p in panels},
        "waits": waits,
        "failed": failed[:FIRST],
        "more_failed": len(failed[FIRST:]),
        "cautions": [*remarks, *gate_sentences(lines), *doubts[:FIRST]],
        "more_cautions": len(doubts[FIRST:]),
    }


def _verdicts(lines: Sequence[Line]) -> Mapping[str, Facts]:
    """The sentences of a panel's ranking, those together that begin alike: by how much, for each
    of their numbers of ranks."""
    alike: dict[str, dict[int, str]] = {}
    for ranks in dict.fromkeys(line.ranks for line in lines):
        timed = [x for x in lines if x.ranks == ranks and x.time_ms is not None]
        if len(timed) == 1:
            alike.setdefault(f"{timed[0].strategy} alone has a time", {})[ranks] = ""
        for sentence in ranking_sentences(timed):
            said = sentence.removeprefix(f"On {counted(ranks, 'rank')} ")
            lead, _, figures = said.partition(": " if ": " in said.partition("; ")[0] else "; ")
            alike.setdefault(lead, {})[ranks] = figures
    verdicts: dict[str, Facts] = {}
    for lead, by_ranks in alike.items():
        *fewer, most = by_ranks
        ranks_in_words = listed([*(f"{ranks:,}" for ranks in fewer), counted(most, "rank")])
        facts = [(counted(ranks, "rank"), text) for ranks, text in by_ranks.items() if text]
        verdicts[f"On {ranks_in_words} {lead}"] = facts
    return verdicts or {"Nothing was timed": []}
