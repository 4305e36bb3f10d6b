"""The tables of a page: strategies side by side, and the cases that are not as they should be."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pandas

from spbench.analysis.compare_strategies import Line
from spbench.analysis.launches import CaseRows, Cases
from spbench.report import units
from spbench.report.strategy_table import grids_of, has_shares_alone, mark_notes
from spbench.text import grouped

MEANINGS = {
    "step ms": "milliseconds of a step on its slowest rank, mean of the launches",
    "95 %": "confidence interval of the step over launches",
    "speed-up": "step time of the reference over this one's; above 1 is faster",
    "tokens/s": "positions a second, of all ranks together",
    "mfu": "achieved operations over the device's peak, where that is known; attention under a "
    "causal mask of S positions counts (S + 1) / 2 keys of a position in place of S",
    "compute ms": "the same step with silent collectives",
    "exposed ms": "what communication adds to it",
    "GB/s": "rate at which a rank sends while it waits",
    "peak MiB": "largest allocated memory of a rank",
    "fwd MiB": "sent by the busiest rank in forward, counted",
    "bwd MiB": "sent in backward",
    "grad MiB": "sent in the sum of gradients",
    "grows": "the batch, or the axis that grows until the next size does not fit",
    "largest": "size that fits, as 'spbench capacity' found it",
    "gate error": "largest relative difference from one device's output or gradients",
}
"""Heads of the strategies' table in words."""


class Row(NamedTuple):
    """Cells, a word on what they are, and how they are set."""

    cells: Sequence[str]
    look: str = ""
    """``failed`` or ``doubtful``; blank as other rows."""
    tag: str = ""
    """What the figures are where they were not measured, as projected."""


class PageTable(NamedTuple):
    """A table that can be sorted and filtered; ``name`` is its place in the page, for links.

    Columns of ``words`` are set as words, others as figures; that with the head ``status`` says
    what failed or is noisy. ``notes``: what the marks beside figures mean.
    """

    name: str
    title: str
    heads: Sequence[str]
    words: Sequence[int]
    rows: Sequence[Row]
    status: str
    notes: Sequence[str] = ()


def strategy_tables(lines: Sequence[Line]) -> list[PageTable]:
    """A table for each panel, without the columns in which it has nothing."""
    return [
        _strategy_table(f"table-{i}", title, of_panel)
        for i, (title, of_panel) in enumerate(grouped(lines, lambda line: line.panel).items(), 1)
    ]


def _strategy_table(name: str, title: str, lines: Sequence[Line]) -> PageTable:
    whole = grids_of(lines)[0]
    blank = [
        head
        for head, *cells in zip(whole.columns, *whole.rows, strict=True)
        if set(cells) == {units.BLANK}
    ]
    grid = whole.without(*blank)
    tags = [line.kind.replace("_", " ") if line.kind != "measured" else "" for line in lines]
    rows = [
        Row(cells, _look(line.status, is_noisy=line.is_noisy), tag)
        for line, cells, tag in zip(lines, grid.rows, tags, strict=True)
    ]
    time = "compute ms" if has_shares_alone(lines) else "step ms"
    return PageTable(name, title, grid.columns, [*grid.words], rows, time, mark_notes(lines))


def capacity_tables(capacities: pandas.DataFrame) -> list[PageTable]:
    """The largest batches and the longest axes that fit; no table where none were asked for."""
    if capacities.empty:
        return []
    heads = ["strategy", "workload", "ranks", "grows", "largest", "GiB", "within GiB", "how"]
    rows = []
    for _, line in capacities.iterrows():
        cells = [line["strategy"], line["workload"], str(line["ranks"]), line["grows"]]
        cells += [units.BLANK if pandas.isna(line["largest"]) else f"{line['largest']:,}"]
        for name in ("peak_bytes", "budget_bytes"):
            known = not pandas.isna(line[name])
            cells.append(units.size_in("GiB", line[name]) if known else units.BLANK)
        how = "dry run" if line["kind"] == "dry_run" else f"tried on {line['gpu']}"
        rows.append(Row([*cells, how]))
    title = "The largest batch and the longest axis that fit"
    return [PageTable("table-capacity", title, heads, [0, 1, 3, 7], rows, "largest")]


def _look(status: str, *, is_noisy: bool) -> str:
    """What was skipped has not failed, but has no figures either."""
    if status in ("ok", "skipped"):
        return "doubtful" if is_noisy or status == "skipped" else ""
    return "failed"


def trouble_table(cases: Cases) -> PageTable:
    """Each case of which a launch failed, was skipped or noisy: why, and where its log is."""
    heads = ["workload", "strategy", "ranks", "what", "launches", "why", "log"]
    rows = [row for case in sorted(cases) for row in _troubles(cases[case])]
    if len({row.cells[0] for row in rows}) == 1:
        heads, rows = heads[1:], [Row(row.cells[1:], row.look) for row in rows]
    words = [i for i, head in enumerate(heads) if head not in ("ranks", "launches")]
    return PageTable("table-trouble", "Failed, skipped and noisy cases", heads, words, rows, "what")


def _troubles(case: CaseRows) -> Iterable[Row]:
    """A row for the launches of a case with which the same is wrong."""
    wrong = [record for record in case.every if record.status != "ok" or record.noisy]
    alike = grouped(wrong, lambda record: (record.status, record.reason or record.noisy))
    for (status, why), records in alike.items():
        last, what = records[-1], status if status != "ok" else "noisy"
        known = [case.panel, last.strategy, str(last.world_size), what]
        launches = f"{len(records)} of {len(case.every)}"
        logs = ", ".join(dict.fromkeys(record.log for record in records if record.log))
        cells = [*known, launches, why or units.BLANK, logs or units.BLANK]
        yield Row(cells, _look(last.status, is_noisy=True))
