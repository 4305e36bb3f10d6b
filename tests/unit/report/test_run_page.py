"""A run as one page: whole and well-formed, says what compare says, lets no text break out."""

from __future__ import annotations

import re
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from helpers.example_rows import lines_of, row, with_samples
from helpers.golden import Golden
from helpers.varied_run import HOSTILE, blank, projected, timed, varied_run

import spbench
from spbench.report.page.run_page import html_of_run
from spbench.report.strategy_table import failures
from spbench.results.capacities import read_capacities
from spbench.results.record import Record
from spbench.results.runs_csv import frame_of

NONE = read_capacities(Path("nowhere"))
VOID = ("meta", "link", "input", "br", "img", "hr")


class Page(HTMLParser):
    """The tags of a page, each of which must be closed, and the text of those shown."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: Counter[str] = Counter()
        self.tags: Counter[str] = Counter()
        self.outside: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.ids.update(value or "" for name, value in attrs if name == "id")
        links = [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        self.outside += [link for link in links if not link.startswith(("#", "data:"))]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data


def page_of(records: Sequence[Record], folder: Path = Path("nowhere")) -> tuple[str, Page]:
    frame = frame_of(records)
    html = html_of_run(folder, frame, frame, NONE, 1)
    return html, Page(html)


@pytest.fixture(scope="module")
def varied(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Page]:
    folder = tmp_path_factory.mktemp("varied")
    records = varied_run(ranks=(1, 2))
    return page_of(records, with_samples(folder, records[:4]))


def test_a_page_is_well_formed_and_needs_nothing_else(varied: tuple[str, Page]) -> None:
    """Every tag is closed, no id occurs twice, and no file or address is named."""
    html, page = varied
    assert html.startswith("<!DOCTYPE html>")
    assert max(page.ids.values()) == 1
    assert page.outside == []
    assert not re.search(r"@import|url\((?!#)", html)
    assert set(re.findall(r"https?://[\w.]+", html)) <= {"http://www.w3.org"}
    assert page.tags["script"] == page.tags["style"] == page.tags["h1"] == 1


def test_figures_are_told_apart(varied: tuple[str, Page]) -> None:
    """Each figure of the run is there, in words, too; what it refers to is its own."""
    html, page = varied
    figures = re.findall(r'<figure id="figure-(\w+)">(.*?)</figure>', html, re.DOTALL)
    assert [name for name, _ in figures][:2] == ["scaling", "memory"]
    assert "launches" in dict(figures)
    for name, figure in figures:
        used = re.findall(r'(?:href="#|url\(#)([^")]+)', figure)
        assert used
        assert all(one.startswith(f"{name}-") and page.ids[one] == 1 for one in used)
        assert re.search(r'role="img" aria-label="[^"]{20,}"', figure)
        assert "<figcaption>run varied" in figure


def test_every_case_is_on_the_page(varied: tuple[str, Page]) -> None:
    """With a reason and a log where it failed; hostile reasons are text."""
    html, page = varied
    cases = lines_of(varied_run(ranks=(1, 2)))
    assert html.count('<th scope="row"') == len(cases) + 3  # three are in the table of cases, too
    assert HOSTILE in page.text
    assert "<script>alert" not in html
    assert "logs/usp-launch0.log" in page.text
    for sentence in failures([line for line in cases if line.status != "ok"]):
        assert sentence in page.text


def answer_of(page: Page) -> str:
    """The part of a page that answers which strategy is fastest, a sentence a line."""
    text = " ".join(page.text.split())
    return text[text.index(" Answer ", text.index("Again")) : text.index("Side by side")].replace(
        ". ", ".\n"
    )


def how_measured(page: Page) -> str:
    """The part of a page that says how its run was measured, a fact a line."""
    text = page.text[page.text.rindex("How it was measured") : page.text.rindex("Where")]
    return "\n".join(line for line in text.splitlines() if line.strip())


def test_the_answer_is_what_compare_says(varied: tuple[str, Page], golden: Golden) -> None:
    """Numbers of ranks of which the same is true stand together; the figures are compare's."""
    _, page = varied
    golden(answer_of(page))
    quiet = [timed(name, n, i, ms) for name, ms in (("dsp", 5.0), ("rsa", 9.0)) for n in (2, 4)
             for i in range(3)]  # fmt: skip
    golden(answer_of(page_of(quiet)[1]), "of two numbers of ranks")


def test_shares_of_one_gpu_have_no_answer_that_names_a_winner(golden: Golden) -> None:
    """The page says what they are, in the answer and where it is said how they were measured."""
    share = {"kind": "one_gpu_share", "step_ms": None, "tokens_per_s": None}
    shares = [
        replace(timed(name, n, i, 9.0), compute_ms=ms, **share)
        for name, ms in (("dsp", 5.0), ("megatron-sp", 2.0))
        for n in (4, 8)
        for i in range(3)
    ]
    _, page = page_of(shares)
    golden(answer_of(page))
    golden(how_measured(page), "how it was measured")
    golden(answer_of(page_of(shares[:1])[1]), "of one share")


def test_projected_rows_are_marked(varied: tuple[str, Page], golden: Golden) -> None:
    """In each row, beside the interval, and where it is said how the run was measured."""
    html, page = varied
    assert html.count('<small class="tag">projected</small>') == 4
    golden("\n".join(re.findall(r"\^ .+", page.text)), "footnotes")
    golden(how_measured(page), "how it was measured")
    only = page_of([projected("dsp", 8)])[1]
    assert "Proved" not in only.text


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([blank(timed("dsp", 2, 0, 5.0), "oom")], "Nothing was timed"),
        ([timed("dsp", 2, 0, 5.0)], "On 2 ranks dsp alone has a time"),
        ([row("dsp"), row("rsa", step_ms=4.0)], "rsa alone has a time"),
        ([row("dsp", step_ms=4.0, workload="<b>mine</b> & $x$")], "<b>mine</b> & $x$"),
        ([row("dsp", status="interrupted", tolerance=None)], "interrupted"),
    ],
    ids=["all failed", "one point", "blank values", "hostile name", "interrupted"],
)
def test_a_run_with_little_in_it(records: list[Record], said: str) -> None:
    """Whatever a run lacks, its page is whole and says what there is."""
    assert said in page_of(records)[1].text


def test_twenty_strategies() -> None:
    """All are in the table, failures beyond the first are counted, and lead to the others."""
    names = [f"mine:{i}" for i in range(20)]
    html, page = page_of([blank(timed(name, 2, 0, 5.0), "crash") for name in names])
    assert all(name in page.text for name in names)
    assert "And 14 more" in page.text
    assert html.count('<tr class="failed">') == 40


def test_damaged_rows_are_told(tmp_path: Path, golden: Golden) -> None:
    """The sentence of the reader of runs.csv stands in the answer."""
    frame = frame_of([timed("dsp", 2, 0, 5.0)])
    frame.attrs["remarks"] = ["1 row of a run is left out: <torn>"]
    golden(answer_of(Page(html_of_run(tmp_path, frame, frame, NONE, 1))))


def test_where_a_run_was_measured(tmp_path: Path) -> None:
    """run.json may hold anything: what is known is shown, with the command that repeats it."""
    (tmp_path / "run.json").write_text(
        '{"argv": ["x/spbench", "run", "-s", "a b"], "cpu": ["<i>", {"n": 1}], "cases": [],'
        ' "memory_bytes": 2147483648, "gpus": null, "versions": {"torch": "2.13.0"}}'
    )
    html, page = page_of([replace(timed("dsp", 2, 0, 5.0), git_commit="c" * 40)], tmp_path)
    assert "spbench run -s 'a b'" in page.text
    assert "at cccccccccccc" in page.text
    assert "<i>; n 1" in page.text
    assert "2 GiB" in page.text
    assert "<i>" not in html


def test_a_wheel_holds_the_templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page, style and script are installed beside the code that reads them."""
    build = pytest.importorskip("hatchling.build")
    monkeypatch.chdir(Path(spbench.__file__).parents[1])
    wheel = build.build_wheel(str(tmp_path))
    names = zipfile.ZipFile(tmp_path / wheel).namelist()
    assert {f"spbench/report/page/page.{end}" for end in ("html", "css", "js")} <= set(names)
