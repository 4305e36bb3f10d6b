"""The page of a run in headless Chromium: sorts, filters, fits a phone, and is accessible."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers.browser import answer_of, axe, started
from helpers.varied_run import varied_run

from spbench.report.page.run_page import html_of_run
from spbench.results.capacities import read_capacities
from spbench.results.runs_csv import frame_of

pytestmark = pytest.mark.long
NONE = read_capacities(Path("nowhere"))
SCHEMES = {"dark": "--blink-settings=preferredColorScheme=0",
           "light": "--blink-settings=preferredColorScheme=1"}  # fmt: skip
SORTS = """
const table = page.getElementById("table-1"), heads = [...table.tHead.rows[0].cells];
const column = (name) => heads.findIndex((head) => head.textContent === name);
const cells = (at) => [...table.tBodies[0].rows].filter((row) => !row.hidden)
  .map((row) => row.cells[at].textContent);
const at = column("step ms"), head = heads[at], button = head.querySelector("button");
const found = { before: cells(at), states: [head.getAttribute("aria-sort")], orders: [] };
button.focus();
found.hasFocus = page.activeElement === button;
for (let i = 0; i < 3; i++) {
  button.click();
  found.states.push(head.getAttribute("aria-sort"));
  found.orders.push(cells(at));
}
heads[0].querySelector("button").click();
found.names = cells(0);
found.said = page.getElementById("said").textContent;
const field = page.getElementById("table-1-filter");
field.value = "Ulysses 16";
field.dispatchEvent(new window_.Event("input"));
found.filtered = cells(0);
found.count = field.closest(".filter").querySelector(".count").textContent;
return found;
"""
FITS = """
const wide = [...page.querySelectorAll("body *")].filter((one) =>
  one.getBoundingClientRect().right > window_.innerWidth + 1 && !one.closest(".scroll, pre"));
const size = (of) => parseFloat(window_.getComputedStyle(of).fontSize);
return { inner: window_.innerWidth, scroll: page.documentElement.scrollWidth,
  wide: wide.map((one) => one.outerHTML.slice(0, 80)),
  dark: window_.matchMedia("(prefers-color-scheme: dark)").matches,
  paper: window_.getComputedStyle(page.body).backgroundColor,
  smallest: Math.min(...[...page.querySelectorAll("p, li, dd, td, figcaption")].map(size)) };
"""
AXE = """
const script = page.createElement("script");
script.textContent = %s;
page.head.append(script);
const found = await window_.axe.run(page);
return { passes: found.passes.length, faults: found.violations.filter((one) =>
  ["serious", "critical"].includes(one.impact)).map((one) => [one.id, one.nodes[0].html]) };
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    frame = frame_of(varied_run())
    file = tmp_path_factory.mktemp("browser") / "report.html"
    file.write_text(html_of_run(Path("nowhere"), frame, frame, NONE, 1), encoding="utf-8")
    return file


def test_tables_sort_and_filter(page: Path, tmp_path: Path) -> None:
    """By a button that the keyboard reaches; cells without a figure come last in both orders."""
    found = answer_of(tmp_path, page, SORTS)
    assert found["states"] == ["none", "ascending", "descending", "none"]
    assert found["hasFocus"]
    up, down, again = found["orders"]
    assert again == found["before"] and len(up) == 50
    for order in (up, down):
        assert set(order[-2:]) == {"crash", "skipped"}
    figures = [float(cell.lstrip("~")) for cell in up[:-2]]
    assert figures == sorted(figures)
    assert sorted(figures, reverse=True) == [float(cell.lstrip("~")) for cell in down[:-2]]
    assert found["names"] == sorted(found["names"])
    assert found["said"] == "By strategy, ascending"
    assert found["filtered"] and all("ulysses" in name for name in found["filtered"])
    assert found["count"] == f"{len(found['filtered'])} of 50 rows"


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_the_window(page: Path, tmp_path: Path, width: int, scheme: str) -> None:
    """Only tables and figures are wider than a phone, and scroll by themselves."""
    found = answer_of(tmp_path, page, FITS, SCHEMES[scheme], width=width)
    assert (found["inner"], found["scroll"], found["wide"]) == (width, width, [])
    assert found["smallest"] >= 12
    assert found["dark"] == (scheme == "dark")
    assert (found["paper"] == "rgb(253, 253, 251)") == (scheme == "light")


def test_heads_are_repeated_in_print(page: Path, tmp_path: Path) -> None:
    """A table of 50 rows has its heads on each of its pages."""
    if shutil.which("pdftotext") is None:
        pytest.skip("pdftotext is not installed")
    printed = tmp_path / "page.pdf"
    started(tmp_path, page, f"--print-to-pdf={printed}", "--no-pdf-header-footer")
    words = ["pdftotext", "-layout", printed, "-"]
    text = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout
    sheets = [sheet for sheet in text.split("\f") if "exposed ms" in sheet]
    assert len(sheets) > 1


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", [390, 1280])
def test_it_is_accessible(page: Path, tmp_path: Path, width: int, scheme: str) -> None:
    """axe-core finds no serious fault."""
    script = AXE % json.dumps(axe()).replace("</", "<\\/")
    found = answer_of(tmp_path, page, script, SCHEMES[scheme], width=width)
    assert found["passes"] > 20
    assert found["faults"] == []
