"""From the rows of a run to one page: answer, tables, figures, how it was measured, and where.

The page needs nothing but itself: style, script and figures stand in it. All text is escaped where
it is set, so that a reason may hold any characters. Figures are SVG: their text stays text, no
one's ids are another's, and the page has their headings and captions, which wrap there.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from spbench import __version__
from spbench.analysis.compare import MARGIN
from spbench.analysis.compare_strategies import Line, compare_strategies, ranking_of
from spbench.analysis.launches import CaseRows, Cases, cases_of
from spbench.report import units
from spbench.report.plots.figure import Sheet, draw
from spbench.report.plots.frame import Run
from spbench.report.plots.pages import page_of
from spbench.report.plots.style import STYLE
from spbench.report.strategy_table import (
    failures,
    gate_sentences,
    grids_of,
    has_shares_alone,
    mark_notes,
    ranking_in_words,
)
from spbench.results.find_run import not_there_yet, reference_of, way_on
from spbench.results.provenance import UNKNOWN, Provenance, provenance
from spbench.results.run_json import folder_of_run, read_run
from spbench.text import counted, grouped, listed, quoted
from spbench.workload.traffic import PHASES

Facts = list[tuple[str, str]]
"""Terms, and what is known of them."""
CLOCKWORK = (
    "A step takes as long as its slowest rank. The time of a launch is the trimmed mean of its "
    "steps, that of a case the geometric mean of its launches, with their 95 % interval. Times "
    f"that differ by less than {MARGIN:.0%} count as the same, and a difference counts only where "
    "its whole interval says so."
)
EXPOSED = (
    "Exposed communication is the step less the same step with silent collectives, timed in turn "
    "with it; what is hidden behind computation costs nothing and is not shown."
)
SHARES = (
    "One GPU computed what one rank of many does, with collectives that send nothing. Their times "
    "are computation without messages, not steps, and no strategy is ranked by them; bytes are "
    "those of the formula."
)
PROJECTED = (
    "These times come from a cost model of the cluster, with its own 90 % interval; nothing was "
    "run. They are never judged against measured ones."
)


def method_of(frame: pandas.DataFrame, origin: Provenance) -> Facts:
    """Proof, counts, launches, times and noise."""
    ran = frame[~frame["status"].isin(["skipped", "interrupted"]) & (frame["kind"] != "projected")]
    facts = dict(_measured(ran, origin)) if len(ran) else {}
    if (ran["kind"] == "one_gpu_share").any():
        facts["Shares of one GPU"] = SHARES
    projected = frame[frame["kind"] == "projected"]
    clusters = " and ".join(filter(None, projected["cluster"].unique()))
    if len(projected):
        facts["Projected"] = f"{f'On {clusters}. ' if clusters else ''}{PROJECTED}"
    return [*facts.items()]


def _measured(ran: pandas.DataFrame, origin: Provenance) -> Iterator[tuple[str, str]]:
    gated = ran[ran["tolerance"].notna()]
    errors = gated[["output_error", "gradient_error"]].max(axis=1)
    passed = errors[errors <= gated["tolerance"]]
    worst = units.error(passed.max()), units.error(gated["tolerance"].max())
    largest = "; the largest relative error is {}, the tolerance {}".format(*worst)
    yield (
        "Proved",
        "Before they were timed, the output and the gradients of "
        f"{_share(len(passed), ran)} were found equal to one device's"
        f"{largest if len(passed) else ''}.",
    )
    sent, predicted = (
        ran[[f"{what}_bytes_{phase}" for phase in PHASES]].to_numpy("float64", na_value=np.nan)
        for what in ("sent", "predicted")
    )
    is_counted = ~np.isnan(sent).any(axis=1)
    equal = int((sent == predicted)[is_counted].all(axis=1).sum())
    yield (
        "Counted",
        "Bytes are counted where they are sent, of the rank that sends most; they equal the "
        f"formula exactly in {_share(equal, ran[is_counted])} in which they were counted.",
    )
    rounds = ran["round"][ran["round"] != ""].nunique()
    take_turns = " in which strategies take turns" if ran["strategy"].nunique() > 1 else ""
    in_turn = f", in {counted(rounds, 'round')}{take_turns}" if rounds else ""
    yield "Launches", f"{origin.launches}{in_turn}. A launch is what counts as one measurement."
    steps = [
        f"{_range(ran[column])} {what}"
        for column, what in (("iterations", "timed steps"), ("warmup", "steps of warm-up before"))
        if ran[column].notna().any()
    ]
    efforts = ran["effort"].replace("", "full").unique()
    quick = " Quick: with a small budget of time." if "quick" in efforts else ""
    yield "Steps", f"A launch has {' and '.join(steps) or 'no timed step'}.{quick}"
    yield "Times", CLOCKWORK
    yield "Exposed time", EXPOSED
    noise = [f"{_share(int((ran['noisy'] != '').sum()), ran)} were noisy"]
    if ran["others_cores"].notna().any():
        noise.append(f"others used {_range(ran['others_cores'])} cores beside the ranks")
    if ran["load_average"].notna().any():
        noise.append(f"the load average was {_range(ran['load_average'])}")
    yield "Noise", f"{'; '.join(noise)}."


def _share(count: int, ran: pandas.DataFrame) -> str:
    return f"{count:,} of {counted(len(ran), 'launch')}"


def _range(values: pandas.Series[Any]) -> str:
    low, high = f"{values.min():.3g}", f"{values.max():.3g}"
    return low if low == high else f"{low} to {high}"


def environment_of(frame: pandas.DataFrame, origin: Provenance, about: Mapping[str, Any]) -> Facts:
    """Commit, machine, libraries and variables; what is not known is left out."""
    named = {"memory_bytes": "memory", "gpus": "GPUs", "cpu": "processor", "cpus": "cores"}
    facts = {
        "commit": origin.commit,
        "started": origin.started,
        "machine": origin.machine,
        "device": origin.facts["device"],
        "libraries": origin.libraries,
    }
    for name in ("cpu", "cpus", "memory_bytes", "gpus", "platform", "python", "versions"):
        facts[named.get(name, name)] = _in_words(name, about.get(name))
    for name in ("placement", "numa", "variables", "environment"):
        facts[name] = " and ".join(value for value in frame[name].unique() if value)
    return [(name, text) for name, text in facts.items() if text and text != UNKNOWN]


def _in_words(name: str, value: Any) -> str:
    """A value of run.json, whatever it is."""
    if name.endswith("_bytes") and isinstance(value, int | float):
        return units.size("GiB", value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_in_words(str(key), of)}" for key, of in value.items() if of)
    if isinstance(value, list):
        return "; ".join(_in_words("", each) for each in value)
    return "" if value is None else str(value)


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
    wrong = [row for row in case.every if row["status"] != "ok" or row["noisy"]]
    alike = grouped(wrong, lambda row: (row["status"], row["reason"] or row["noisy"]))
    for (status, why), launches in alike.items():
        last, what = launches[-1], status if status != "ok" else "noisy"
        known = [case.panel, last["strategy"], str(last["world_size"]), what]
        count = f"{len(launches)} of {len(case.every)}"
        logs = ", ".join(dict.fromkeys(row["log"] for row in launches if row["log"]))
        cells = [*known, count, why or units.BLANK, logs or units.BLANK]
        yield Row(cells, _look(status, is_noisy=True))


TEMPLATES = Path(__file__).parent
MOST_NAMES = 3
"""Workloads that a title names."""
FIRST = 6
"""Cases that failed, and that are doubtful, of which the answer has a sentence; the others are in
the tables."""
IN_PAGE = {"svg.fonttype": "none"}
"""Text is not drawn as outlines: it can be found, copied and read aloud."""
NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
OF_A_FILE = re.compile(r"\A.*?(?=<svg)|<defs>\s*<style.*?</style>\s*</defs>", re.DOTALL)
"""Declarations, and a style that would be the whole page's: page.css has it for figures alone."""
NAMES = re.compile(r'(\sid="|href="#|url\(#)')


def html_of_run(
    run: Path,
    whole: pandas.DataFrame,
    frame: pandas.DataFrame,
    capacities: pandas.DataFrame,
    page: int,
) -> str:
    """The page of ``frame``, the chosen rows of the ``whole`` run, and of the chosen
    ``capacities`` beside it, with this page of its figures.

    Raises ValueError if its figures have fewer pages.
    """
    home = folder_of_run(run)
    cases, origin = cases_of(frame), provenance(run, frame)
    lines = compare_strategies(frame, reference_of(run, frame), cases=cases)
    drawn = Run(lines=lines, launches=frame, folder=home, capacities=capacities)
    figures = page_of(drawn, page)
    remarks = list(whole.attrs.get("remarks", []))
    if missing := not_there_yet(run, whole):
        remarks.append(f"{counted(missing, 'launch')} not measured yet{way_on(run)}")
    if chosen := len(whole) - len(frame):
        remarks.append(f"{counted(chosen, 'launch')} of the run left out, as was chosen")
    names = frame["workload"].unique().tolist()
    about = (origin.machine, origin.libraries, f"launches: {origin.launches}", origin.started)
    tables = [*strategy_tables(lines), *capacity_tables(capacities)]
    heads = {head for table in tables for head in table.heads}
    return _rendered(
        run=origin.run,
        title=", ".join(names) if len(names) <= MOST_NAMES else f"{len(names)} workloads",
        about=" · ".join(text for text in about if text != UNKNOWN),
        answer=_answer(lines, remarks),
        tables=tables,
        meanings=[(head, meaning) for head, meaning in MEANINGS.items() if head in heads],
        pictures=[_picture(name, sheet) for name, sheet in figures.sheets.items()],
        not_drawn=figures.remarks,
        trouble=trouble_table(cases),
        method=method_of(frame, origin),
        environment=environment_of(frame, origin, read_run(home)),
        again=origin.command,
        commit=origin.commit if origin.commit != UNKNOWN else "",
        others=[quoted("spbench", name, run) for name in ("compare", "plot", "report")],
        version=__version__,
    )


def _answer(lines: Sequence[Line], remarks: Iterable[str]) -> Mapping[str, Any]:
    """All that is said before the first table, in the sentences of ``compare``: who is fastest in
    each panel, failures, and what a reader of the figures must know."""
    failed = failures([line for line in lines if line.status != "ok"])
    doubts = failures([line for line in lines if line.status == "ok"])
    panels = dict.fromkeys(line.panel for line in lines)
    return {
        "rankings": {p: _verdicts([line for line in lines if line.panel == p]) for p in panels},
        "failed": failed[:FIRST],
        "more_failed": len(failed[FIRST:]),
        "cautions": [*remarks, *gate_sentences(lines), *doubts[:FIRST]],
        "more_cautions": len(doubts[FIRST:]),
    }


def _verdicts(lines: Sequence[Line]) -> Mapping[str, Facts]:
    """The sentences of a panel's ranking, those together that begin alike: by how much, for each
    of their numbers of ranks."""
    alike: dict[str, dict[int, str]] = {}
    for ranks, of_ranks in grouped(lines, lambda line: line.ranks).items():
        ranked = ranking_of(of_ranks)
        timed = [*ranked.timed, *ranked.too_large]
        if len(timed) == 1:
            alike.setdefault(f"{timed[0].strategy} alone has a time", {})[ranks] = ""
        elif timed or ranked.shares:
            said = ranking_in_words(ranked)
            alike.setdefault(said.lead, {})[ranks] = said.others
    verdicts: dict[str, Facts] = {}
    for lead, by_ranks in alike.items():
        *fewer, most = by_ranks
        ranks_in_words = listed([*(f"{ranks:,}" for ranks in fewer), counted(most, "rank")])
        facts = [(counted(ranks, "rank"), text) for ranks, text in by_ranks.items() if text]
        verdicts[f"On {ranks_in_words} {lead}"] = facts
    return verdicts or {"Nothing was timed": []}


def _picture(name: str, sheet: Sheet) -> Mapping[str, Any]:
    """The sheet without its heading and caption, drawn in memory, and in words what it shows, for
    who cannot see it. The width is in points, at which texts have the size that they are drawn for.
    """
    file = io.StringIO()
    with mpl.rc_context(STYLE | IN_PAGE):
        figure = draw(replace(sheet, heading="", caption=""))
        figure.savefig(file, format="svg", transparent=True, metadata=NO_METADATA)
    panels = "; ".join(" ".join(title.split()) for title in sheet.panels)
    strategies = f" of {', '.join(sheet.legend)}" if sheet.legend else ""
    return {
        "name": name,
        "heading": sheet.heading,
        "caption": sheet.caption,
        "svg": NAMES.sub(rf"\g<1>{name}-", OF_A_FILE.sub("", file.getvalue())),
        "width": 72 * figure.get_figwidth(),
        "alt": f"{sheet.heading}{strategies}: {panels}. The tables have the figures.",
    }


def _rendered(**parts: Any) -> str:
    """The template with its parts; one that is missing is an error."""
    setting = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return setting.get_template("page.html").render(parts)
