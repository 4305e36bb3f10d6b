"""Who was fastest, by how much, and how sure that is: in words."""

from __future__ import annotations

from collections.abc import Sequence

from spbench.analysis.compare import Comparison
from spbench.analysis.compare_strategies import Line
from spbench.text import counted


def in_words(lines: Sequence[Line]) -> list[str]:
    """A sentence for each panel and number of ranks on which two strategies or more were timed."""
    said = []
    several = len({line.panel for line in lines}) > 1
    groups: dict[tuple[str, int], list[Line]] = {}
    for line in lines:
        if line.time_ms is not None:
            groups.setdefault((line.panel, line.ranks), []).append(line)
    for (panel, ranks), timed in groups.items():
        if len(timed) > 1:
            where = f"{panel}: on" if several else "On"
            said.append(f"{where} {counted(ranks, 'rank')} {_ranking(timed)}")
    return said


def _ranking(timed: Sequence[Line]) -> str:
    first, *others = sorted(timed, key=lambda line: (line.to_fastest is not None, line.time_ms))
    what = "took least time" if first.kind == "measured" else "computed least"
    least = f"{first.strategy} {what}"
    said = [f"{line.strategy} {_longer(line.to_fastest)}" for line in others if line.to_fastest]
    launches = min(line.to_fastest.launches for line in others if line.to_fastest)
    alone = " (one launch: no spread between launches is known)" if launches == 1 else ""
    return f"{least}; {', '.join(said)}{alone}"


def _longer(found: Comparison) -> str:
    """How many times as long as the fastest."""
    if found.ratio is None:
        return f"is not comparable ({found.reason})"
    span = f" ({found.low:.2f} to {found.high:.2f})" if found.low is not None else ""
    took = f"{found.ratio:.2f} times as long{span}"
    if found.verdict in ("slower", "faster") or found.launches == 1:
        return took
    if found.verdict == "same":
        return f"the same, {took}"
    return f"{took}, not told apart" + (
        f" (about {counted(found.needs, 'launch')} would)" if found.needs else ""
    )
