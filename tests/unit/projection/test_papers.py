"""docs/papers.md is what scripts/papers gives; its volumes are counted anew by day."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from helpers.example_rows import lines_of

from spbench.projection.advise.project import project
from spbench.projection.advise.projected_rows import row_of
from spbench.projection.costmodel.cluster_file import find as find_cluster
from spbench.projection.costmodel.step_time import Mode
from spbench.projection.dryrun.rank_work import works
from spbench.workload.catalogue import find, with_settings

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "scripts" / "papers"
PAGE = ROOT / "docs" / "papers.md"


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a file of the script."""
    monkeypatch.syspath_prepend(str(SCRIPTS))

    def imported(name: str) -> ModuleType:
        return import_module(name)

    return imported


def test_volumes_on_the_page_are_those_that_are_counted(part: Any) -> None:
    text, volumes = PAGE.read_text(encoding="utf-8"), part("volumes")
    assert volumes.dsp_table() in text
    assert volumes.rsa_table() in text


def test_the_formulas_of_the_paper_give_the_ratios_on_the_page(part: Any) -> None:
    capacity, text = part("rsa_capacity"), PAGE.read_text(encoding="utf-8")
    for row in part("paper_facts").facts("rsa")["ratios"]:
        own, other = (capacity.by_formula(row, of_baseline=each) for each in (False, True))
        what = "batch" if row["grows"] == "batch" else "length"
        name = f"{row['workload']}, {what}, {row['ranks']} GPUs over {row['over']}"
        (line,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
        assert line.endswith(f"| {own / other:.1f} |")
        assert f"| {row['ratio']} |" in line


@pytest.mark.parametrize("of_baseline", [False, True])
def test_a_formula_fills_the_memory(part: Any, of_baseline: bool) -> None:
    """At the size that is found, the layers hold as many elements as the device."""
    capacity = part("rsa_capacity")
    row = {"workload": "bert-base", "grows": "batch", "ranks": 64, "over": 12}
    held = capacity.held_by_tensor_parallelism if of_baseline else capacity.held_by_rsa
    batch = capacity.by_formula(row, of_baseline=of_baseline)
    elements = 12 * held(768, 12, batch, 512, 12 if of_baseline else 64)
    assert elements == pytest.approx(4e9)


def test_a_line_through_published_steps(part: Any) -> None:
    """Steps of 300 and 600 ms at 1 and 2 frames would be nothing at none; of 400 and 600, 200."""
    figure = part("dsp_figure")
    common = {"ranks": 2, "ulysses": 1.0, "projected": None, "by_engines": None, "gains": ()}
    common |= {"beyond_bytes": (), "switch_bytes": 0}

    def points(*steps_ms: float) -> list[Any]:
        return [
            figure.FigurePoint(frames=frames, dsp=1e3 / ms, **common)
            for frames, ms in enumerate(steps_ms, 1)
        ]

    assert figure.constant_ms(points(300, 600), 2) == pytest.approx(0)
    assert figure.constant_ms(points(400, 600), 2) == pytest.approx(200)


def test_the_page_judges_by_the_whiskers_that_its_figure_has(part: Any) -> None:
    """As many points lie inside as inside of the intervals of projected rows."""
    figure = part("paper_facts").facts("dsp")["figure"]
    cluster, inside = find_cluster(figure["cluster"]), 0
    settings = f"axes.space={figure['space']}"
    for frames in sorted({point["frames"] for point in figure["points"]}):
        work = with_settings(find(figure["workload"]), [settings, f"axes.time={frames}"])
        for row in project(work, cluster, ["dsp"], [2, 4], Mode(), works(cluster.device.runs_on)):
            record = row_of(row, Mode(), run_id="a run", started_utc="now")
            (line,) = lines_of([record])
            assert line.step_ms is not None
            (samples_per_s,) = (
                point["dsp"]
                for point in figure["points"]
                if (point["frames"], point["ranks"]) == (frames, line.ranks)
            )
            published_ms = 1e3 * work.batch / samples_per_s
            inside += line.step_ms.low <= published_ms <= line.step_ms.high
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"{inside} of {len(figure['points'])} published points lie inside the interval" in text


def test_the_command_says_at_once_what_it_takes(tmp_path: Path) -> None:
    """Help, and what cannot be written, before anything is worked out; no file is named -h."""
    for words, code, said in (
        (["-h"], 0, "usage: python scripts/papers [-h] [FILE]"),
        (["--fast"], 2, "unrecognized arguments: --fast"),
        ([str(tmp_path)], 2, "is a folder; name a file in it"),
        ([str(tmp_path / "no" / "page.md")], 2, "there is no folder"),
    ):
        done = subprocess.run(
            [sys.executable, str(SCRIPTS), *words],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT), "PATH": ""},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code
        assert said in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_the_whole_page_is_what_the_command_writes(tmp_path: Path) -> None:
    path = tmp_path / "papers.md"
    command = [sys.executable, str(SCRIPTS), str(path)]
    subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT), "PATH": ""}, check=True)
    assert path.read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8")
