"""Sheets of panels: no text is clipped, none overlaps, and there are 12 panels at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from helpers.example_rows import with_samples
from helpers.golden import Golden
from helpers.plotted_runs import page as page_of
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from spbench.report.plots.figure import PANELS, Sheet
from spbench.report.plots.figure import draw as draw_sheet
from spbench.report.plots.style import STYLE
from spbench.results.record import Record
from spbench.workload.case import Case
from spbench.workload.catalogue import find

CASE = Case(workload=find("axes-2d", "verify"), strategy="dsp", ranks=2, device="cpu")
STRATEGIES = ["dsp", "ulysses", "megatron-sp", "rsa", "rsa:reduce-scatter"]


def record(strategy: str, **more: Any) -> Record:
    known = {"run_id": "a run", "started_utc": "now", "status": "ok", "torch": "9.9"}
    made = replace(Record.of_case(CASE, **known), strategy=strategy, **more)
    where = f"{made.workload} {made.axes} {strategy} {made.world_size}"
    return replace(made, case=where.replace(",", ""))


def a_run(shapes: int, ranks: Sequence[int] = (2, 4), large: float = 1.0) -> list[Record]:
    """Two launches of each strategy on shapes of long names; one of them runs out of memory."""
    figures: dict[str, Any] = {"step_ms": 10.0 * large, "tokens_per_s": 1e5 * large}
    figures |= {"compute_ms": 8.0 * large, "exposed_comm_ms": 2.0 * large}
    figures |= {"peak_allocated_bytes": int(2e9 * large)}
    for phase in ("forward", "backward", "gradients"):
        figures |= {f"sent_bytes_{phase}": int(1e7 * large)}
        figures |= {f"predicted_bytes_{phase}": int(1e7 * large)}
    return [
        record(
            strategy,
            workload="a-workload-of-a-long-name-small heads=16",
            axes=f"time={shape + 1}xheight=64xwidth=64",
            world_size=n,
            launch=launch,
            **({"status": "wrong_result"} if strategy == "megatron-sp" and n == 4 else figures),
        )
        for shape in range(shapes)
        for n in ranks
        for launch in range(2)
        for strategy in STRATEGIES
    ]


def texts(figure: Figure) -> list[Text]:
    axes = [ax for ax in figure.axes if ax.get_visible()]
    shown = [*figure.texts, *(text for one in figure.legends for text in one.get_texts())]
    for ax in axes:
        shown += [*ax.texts, ax.xaxis.label, ax.yaxis.label, ax.title, ax._left_title]  # type: ignore[attr-defined]
        for axis in (ax.xaxis, ax.yaxis):
            low, high = axis.get_view_interval()
            shown += [
                tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high
            ]
    return [text for text in shown if text.get_text() and text.get_visible()]


def sheets(folder: Path, records: list[Record], page: int = 1) -> dict[str, Sheet]:
    return dict(page_of(records, folder, page).sheets)


BY_DAY = {(1, 1e-3), (1, 1.0), (2, 3e5)}


@pytest.mark.parametrize(
    ("shapes", "large"),
    [
        pytest.param(*case, marks=() if case in BY_DAY else pytest.mark.long)
        for case in product((1, 2, 4, 12), (1e-3, 1.0, 3e5))
    ],
)
def test_nothing_is_clipped_and_nothing_overlaps(tmp_path: Path, shapes: int, large: float) -> None:
    """Long names, wrong results, small and large figures, few panels and many."""
    records = a_run(shapes, large=large)
    for name, sheet in sheets(with_samples(tmp_path, records, outlier=3.0), records).items():
        with mpl.rc_context(STYLE):
            figure = draw_sheet(sheet)
            FigureCanvasAgg(figure).draw()
        page = figure.bbox
        # Of a name at the end of a curve the words count, not the line that leads to them.
        boxes = {text: Text.get_window_extent(text) for text in texts(figure)}
        for text, box in boxes.items():
            inside = page.x0 <= box.x0 and box.x1 <= page.x1
            assert inside and page.y0 <= box.y0 and box.y1 <= page.y1, (name, text)
        for (one, a), (other, b) in combinations(boxes.items(), 2):
            apart = a.x1 <= b.x0 + 1 or b.x1 <= a.x0 + 1 or a.y1 <= b.y0 + 1 or b.y1 <= a.y0 + 1
            assert apart, (name, one, other)


def test_a_large_run_has_pages(tmp_path: Path, golden: Golden) -> None:
    """A page has at most 12 panels; together the pages hold every panel once."""
    records = a_run(2 * PANELS + 1, ranks=(2,))
    with_samples(tmp_path, records)
    pages = {page: sheets(tmp_path, records, page) for page in (1, 2, 3)}
    for figure in ("memory", "sent_bytes", "step_split", "throughput", "launches"):
        seen = [
            title
            for page, drawn in pages.items()
            for name, sheet in drawn.items()
            if name == f"{figure}-page{page}".removesuffix("-page1")
            for title in sheet.panels
        ]
        assert len(seen) == len(set(seen)) == 2 * PANELS + 1
    made = page_of(records, tmp_path, 3)
    assert max(len(sheet.panels) for sheet in made.sheets.values()) == 1
    golden("\n".join(made.remarks))
    with pytest.raises(ValueError) as refused:
        sheets(tmp_path, records, 4)
    golden(refused.value, "second")


def test_twelve_panels_are_one_page(tmp_path: Path) -> None:
    """All panels are drawn, so there is no remark."""
    records = a_run(PANELS, ranks=(2,))
    made = page_of(records, tmp_path)
    assert (list(made.sheets), made.remarks) == (
        ["throughput", "memory", "sent_bytes", "step_split", "ratios"],
        [],
    )


def test_colours_in_the_legend_are_of_the_strategies_on_the_sheet(tmp_path: Path) -> None:
    """Each strategy stands in the legend once, in the order in which they ran."""
    made = sheets(tmp_path, a_run(3))
    shown = {name: tuple(sheet.legend) for name, sheet in made.items()}
    assert shown.pop("ratios") == ()  # its rows are labelled
    assert shown.pop("scaling") == ()  # its lines are labelled
    assert {*shown.values()} == {tuple(STRATEGIES)}
