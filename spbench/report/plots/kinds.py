"""The kinds of figures, and which of them a run has most to say with."""

from __future__ import annotations

from collections.abc import Sequence

from spbench.analysis.strategy_line import Line
from spbench.text import did_you_mean

KINDS = {
    "overview": "step, bytes, throughput and memory of one workload on a page",
    "scaling": "throughput over ranks with the ideal line, strong and weak",
    "throughput": "tokens a second as bars",
    "ratios": "how much longer than the reference, with intervals",
    "step_split": "compute and exposed communication",
    "sent_bytes": "bytes by phase against the formula",
    "memory": "peak memory of a rank, against the limit",
    "pareto": "throughput against memory",
    "winners": "the fastest strategy by size and ranks",
    "capacity": "the largest batch and the longest axis that fit, of 'capacity --out'",
    "launches": "every iteration of every launch",
}
USUAL = ("memory", "sent_bytes", "step_split", "ratios", "capacity", "launches")
"""Figures that are drawn unasked, besides the overview of one panel, and throughput or scaling."""


def known(kind: str) -> str:
    """The kind, if there is one of this name. Raises ValueError."""
    if kind in KINDS:
        return kind
    raise ValueError(
        " ".join(filter(None, [f"--kind {kind}: no such figure.", did_you_mean(kind, [*KINDS])]))
        + f"\n  There are {', '.join(KINDS)}."
    )


def usual(lines: Sequence[Line]) -> list[str]:
    """An overview where one panel is all; curves in place of bars where ranks grow."""
    ranks: dict[str, set[int]] = {}
    for line in lines:
        ranks.setdefault(line.panel, set()).add(line.ranks)
    first = ["overview"] * (len(ranks) == 1)
    grows = any(len(counts) > 1 for counts in ranks.values())
    return [*first, "scaling" if grows else "throughput", *USUAL]
