"""``spbench report``: where the page goes, what it shows, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.command_line import record, spbench

from spbench.errors import UNFIT, USAGE
from spbench.results.store import Store


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run under results/."""
    folder = tmp_path_factory.mktemp("place")
    with Store(folder / "results" / "made-up") as store:
        store.append(record("dsp", step_ms=10.0, compute_ms=8.0, tokens_per_s=12800.0))
        store.append(record("rsa", step_ms=20.0, compute_ms=8.0, tokens_per_s=6400.0))
        store.append(record("ulysses", status="oom", reason="rank 1: no 3 GiB"))
    return folder


def test_a_page_beside_the_run(place: Path) -> None:
    """Its path on stdout, without torch; again it is the same page."""
    done = spbench(place, "report")
    assert (done.code, done.out, done.err) == (0, "results/made-up/report.html\n", "")
    page = place / "results" / "made-up" / "report.html"
    text = page.read_text(encoding="utf-8")
    assert "no 3 GiB" in text and "2.00x as" in text
    assert json.loads(spbench(place, "report", "--json").out) == ["results/made-up/report.html"]
    assert page.read_text(encoding="utf-8") == text


def test_rows_and_file_are_chosen(place: Path, tmp_path: Path) -> None:
    """The page says that rows are left out; a baseline and a CSV file get none into themselves."""
    file = tmp_path / "new" / "today.html"
    done = spbench(place, "report", "made-up", "-s", "dsp", "--out", str(file))
    assert (done.code, done.out) == (0, f"{file}\n")
    text = file.read_text(encoding="utf-8")
    assert "left out," in text
    assert "rsa" not in text
    words = ("baseline", "set", "mine", "--force", "--baselines", "kept")
    assert spbench(place, *words, torch=True).code == 0
    done = spbench(place, "report", "baseline:mine", "--json", SPBENCH_BASELINES="kept")
    assert json.loads(done.out) == ["results/baseline-mine/report.html"]
    alone = place / "results" / "made-up" / "other.csv"
    alone.write_bytes((place / "results" / "made-up" / "runs.csv").read_bytes())
    done = spbench(place, "report", "results/made-up/other.csv")
    assert done.out == "results/made-up/other-report.html\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nowhere"], USAGE, "no run at nowhere. The latest under results/: made-up"),
        (["--out", "runs.csv"], USAGE, "--out runs.csv: the report is HTML; name a file that ends"),
        (["--out", "results/made-up/runs.csv/a.html"], UNFIT, "cannot write to results/made-up"),
        (["-s", "usp"], USAGE, "the run has no 'usp'. Did you mean 'dsp'?"),
        (["--page", "2"], USAGE, "--page 2: the last page is 1"),
    ],
)
def test_what_is_refused(place: Path, words: list[str], code: int, said: str) -> None:
    """Each with what would work, and no file is touched."""
    before = (place / "results" / "made-up" / "runs.csv").read_bytes()
    done = spbench(place, "report", *words)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert (place / "results" / "made-up" / "runs.csv").read_bytes() == before
