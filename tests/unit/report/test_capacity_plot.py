"""The figure of capacities: of anything that capacity.csv may hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.capacity_lines import capacities_of, capacity_line
from helpers.golden import Golden
from helpers.plotted_runs import RANKS, TEN, TWENTY

from spbench.report.plots import style
from spbench.report.plots.figure import save
from spbench.report.plots.frame import Run
from spbench.report.plots.kinds import capacity_curves, capacity_panels
from spbench.report.plots.pages import page_of


def grown(strategies: tuple[str, ...], **more: Any) -> list[dict[str, Any]]:
    """Sizes that grow with the ranks, less for each further strategy."""
    return [
        capacity_line(name, count, max(1, count * (24 - place)), **more)
        for place, name in enumerate(strategies)
        for count in RANKS
    ]


def mixed() -> list[dict[str, Any]]:
    """A batch and an axis, by dry runs and by ranks, with what does not fit or cannot run."""
    lines = grown(TEN) + grown(TEN, grows="space", axes="time=64", batch=1)
    lines += grown(TEN[:2], kind="measured", gpu="H100")
    lines[3]["largest"] = lines[17]["largest"] = lines[17]["peak_bytes"] = None
    lines[17]["why_not"] = "more ranks than heads"
    return lines


FILES: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "mixed": mixed,
    "one": lambda: [capacity_line("dsp", 2, 10)],
    "twenty": lambda: grown(TWENTY),
    "failed": lambda: [capacity_line(name, 2, None) for name in TEN],
    "blank": lambda: [capacity_line(x, 2, None, peak_bytes=None, torch="", git_commit="")
                      for x in ("dsp", "own")],
}  # fmt: skip


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", FILES)
def test_any_capacities_are_drawn(name: str, tmp_path: Path, golden: Golden) -> None:
    """A panel for each question; dry runs are said to be projected."""
    run = Run(folder=tmp_path, capacities=capacities_of(FILES[name](), tmp_path))
    page = page_of(run, kinds=["capacity"])
    (sheet,) = page.sheets.values()
    (path,) = save(sheet, tmp_path / "capacity", ("svg",))
    assert style.PROJECTED in path.read_text()
    assert len(sheet.panels) == (3 if name == "mixed" else 1)
    golden(sheet.caption)


def test_a_panel_names_what_grows_and_the_memory(tmp_path: Path, golden: Golden) -> None:
    rows = capacity_panels(Run(folder=tmp_path, capacities=capacities_of(mixed(), tmp_path)))
    panels = {title: capacity_curves(of_panel) for title, of_panel in rows.items()}
    golden("\n".join(panels))
    ulysses = next(iter(panels.values()))[1]
    assert ulysses.x == [1, 2, 4, 8, 16] and ulysses.y[0] == 23
    crosses = [each.failed for drawn in panels.values() for each in drawn if each.failed]
    assert crosses == [[(8.0, "too large")], [(4.0, "cannot run")]]
