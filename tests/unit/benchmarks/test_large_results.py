"""A run of 10,000 rows: figures that may be, pages that say so. Its time is a benchmark's."""

from __future__ import annotations

import importlib.util
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest
from helpers.golden import Golden
from helpers.in_process import inside
from helpers.plotted_runs import page as page_of
from helpers.stored_rows import stored

from spbench.errors import UNFIT
from spbench.report.plots.figure import save

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def large() -> ModuleType:
    spec = importlib.util.spec_from_file_location("large", ROOT / "benchmarks/large_results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_ten_thousand_rows(large: ModuleType) -> None:
    """125 shapes of 4 strategies on 4 numbers of ranks, 5 launches each; the same every time."""
    records = list(large.rows())
    assert len(records) == len({(one.case, one.launch) for one in records}) == 10_000
    assert len({(one.workload, one.axes, one.batch) for one in records}) == 125
    assert list(islice(large.rows(), 50)) == records[:50]


def test_it_is_shown_and_drawn(large: ModuleType, tmp_path: Path, golden: Golden) -> None:
    """A part of it as the commands see it: every panel in words, 12 of them in a figure."""
    records = list(islice(large.rows(), 80 * 14))
    large.write(tmp_path, records)
    assert stored(tmp_path) == records
    assert inside("compare", str(tmp_path)).err == ""
    chosen = ("-s", "dsp,rsa", "-g", "2,4", "--page", "2", "--format", "svg")
    done = inside("plot", str(tmp_path), *chosen)
    golden(done.err)
    assert {Path(path).name for path in done.out.split()} == {
        f"{name}-page2.svg"
        for name in ("scaling", "memory", "sent_bytes", "step_split", "ratios", "launches")
    }


def test_several_processes_draw_what_one_does(large: ModuleType, tmp_path: Path) -> None:
    """The command draws two figures at a time; here this process draws one after another."""
    large.write(tmp_path, islice(large.rows(), 80))
    kinds = ["memory", "ratios", "launches"]
    done = inside("plot", str(tmp_path), "--kind", ",".join(kinds))
    drawn = [Path(path) for path in done.out.split()]
    records = stored(tmp_path)
    page = page_of(records, tmp_path, 1, *kinds)
    (tmp_path / "alone").mkdir()
    alone = [
        path
        for name, sheet in page.sheets.items()
        for path in save(sheet, tmp_path / "alone" / name)
    ]
    assert [path.name for path in alone] == [path.name for path in drawn]
    assert len(alone) == 6
    for one, other in zip(drawn, alone, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_a_sheet_that_cannot_be_written_is_said(
    large: ModuleType, tmp_path: Path, golden: Golden
) -> None:
    """Whichever process drew it: one sentence, exit 6."""
    large.write(tmp_path, islice(large.rows(), 80))
    (tmp_path / "plots" / "memory.png").mkdir(parents=True)
    done = inside("plot", str(tmp_path), "--kind", "memory")
    assert done.code == UNFIT
    golden(done.err)
