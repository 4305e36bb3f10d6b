"""From the rows of a run to one page: answer, tables, figures, how it was measured, and where.

The page needs nothing but itself: style, script and figures stand in it. All text is escaped where
it is set, so that a reason may hold any characters. Figures are SVG: their text stays text, no
one's ids are another's, and the page has their headings and captions, which wrap there.
"""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from spbench import __version__
from spbench.analysis.compare_strategies import Line, compare_strategies, ranking_of
from spbench.analysis.launches import cases_of
from spbench.analysis.waiting import waiting
from spbench.report.page.method import Facts, environment_of, method_of
from spbench.report.page.page_tables import (
    MEANINGS,
    capacity_tables,
    strategy_tables,
    trouble_table,
)
from spbench.report.plots.figure import STYLE, Sheet, draw
from spbench.report.plots.plots import page_of
from spbench.report.strategy_table import failures, gate_sentences, ranking_in_words
from spbench.report.waiting_sentences import waiting_sentences
from spbench.results.find_run import RESULTS, not_there_yet, reference_of, way_on
from spbench.results.link_report import reports_in
from spbench.results.provenance import UNKNOWN, provenance
from spbench.results.run_json import folder_of_run, read_run
from spbench.text import counted, grouped, listed, quoted

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
    figures = page_of(lines, frame, home, page, capacities=capacities)
    waits = waiting_sentences(waiting(cases, reports_in([RESULTS, home.parent])))
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
        answer=_answer(lines, waits, remarks),
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


def _answer(
    lines: Sequence[Line], waits: Sequence[str], remarks: Iterable[str]
) -> Mapping[str, Any]:
    """All that is said before the first table, in the sentences of ``compare``: who is fastest in
    each panel, what strategies wait for, failures, and what a reader of the figures must know."""
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
    for ranks, of_ranks in grouped(lines, lambda line: line.ranks).items():
        ranked = ranking_of(of_ranks)
        timed = [*ranked.timed, *ranked.too_large]
        if len(timed) == 1:
            alike.setdefault(f"{timed[0].strategy} alone has a time", {})[ranks] = ""
        elif timed or ranked.shares:
            lead, figures = ranking_in_words(ranked)
            alike.setdefault(lead.rstrip(":; "), {})[ranks] = figures
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
    with mpl.rc_context(STYLE | IN_PAGE):  # type: ignore[arg-type]
        figure = draw(replace(sheet, heading="", caption=""))
        figure.savefig(file, format="svg", transparent=True, metadata=NO_METADATA)
    panels = "; ".join(" ".join(title.split()) for title in sheet.panels)
    strategies = f" of {', '.join(sheet.strategies)}" if sheet.strategies else ""
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
