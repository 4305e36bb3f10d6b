"""The plot of iterations: every iteration in order of time, outliers ringed and none left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas
import pytest
from helpers.example_rows import samples_of, with_samples
from helpers.golden import Golden
from helpers.plotted_runs import page, plotted
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex

from spbench.report.plots.figure import save_all
from spbench.report.plots.iterations import (
    HALF_ROW,
    CaseTimes,
    Iterations,
    case_times,
    launch_panels,
    outliers,
)
from spbench.report.plots.style import colour
from spbench.results.record import Record
from spbench.workload.case import Case
from spbench.workload.catalogue import find

CASE = Case(workload=find("axes-2d", "verify"), strategy="dsp", ranks=2, device="cpu")


def record(strategy: str = "dsp", launch: int = 0, **more: Any) -> Record:
    known = {"run_id": "a run", "started_utc": "now", "status": "ok", "step_ms": 10.0}
    made = replace(Record.of_case(CASE, **known), strategy=strategy, case=strategy)
    return replace(made, launch=launch, **more)


def samples(*launches: tuple[Record, list[float]]) -> pandas.DataFrame:
    """Samples of two ranks, of which the first is always slower."""
    return samples_of(*((one, [ms, [0.9 * x for x in ms]]) for one, ms in launches))


@pytest.fixture
def ax() -> Iterator[Axes]:
    figure, made = plt.subplots()
    yield made
    plt.close(figure)


def dots(ax: Axes, shown: str) -> list[tuple[float, float]]:
    """Places of the dots of a colour, from left to right."""
    drawn = [one for one in ax.collections if isinstance(one, PathCollection)]
    return [
        (float(x), float(y))
        for one in drawn
        if len(one.get_facecolor()) and to_hex(one.get_facecolor()[0]) == shown.lower()  # type: ignore[index,arg-type]
        for x, y in one.get_offsets()  # type: ignore[union-attr]
    ]


def rings(ax: Axes) -> int:
    drawn = [one for one in ax.collections if isinstance(one, PathCollection)]
    return sum(len(one.get_offsets()) for one in drawn if not len(one.get_facecolor()))  # type: ignore[arg-type]


def times_by_panel(records: list[Record], times: pandas.DataFrame) -> dict[str, list[CaseTimes]]:
    with TemporaryDirectory() as folder:
        (Path(folder) / "samples").mkdir()
        panels = launch_panels(plotted(records, Path(folder)))
    return {title: case_times(rows, times) for title, rows in panels.items()}


def draw(ax: Axes, records: list[Record], times: pandas.DataFrame) -> None:
    (cases,) = times_by_panel(records, times).values()
    Iterations(cases=cases).draw(ax)


def test_iterations_stand_in_order_of_time(ax: Axes) -> None:
    """Launches follow each other, whatever the order of their rows; slower is higher."""
    records = [record(launch=1), record(launch=0)]
    draw(ax, records, samples((records[0], [10.0, 10.1]), (records[1], [9.9, 10.0, 10.1])))
    drawn = dots(ax, colour("dsp"))
    assert [int(x) for x, _ in drawn] == [0, 0, 0, 1, 1]
    assert [x for x, _ in drawn] == sorted(x for x, _ in drawn)
    assert drawn[0][1] < drawn[1][1] < drawn[2][1]
    assert all(abs(y) <= HALF_ROW for _, y in drawn)


def test_outliers_are_ringed_and_none_is_removed(ax: Axes) -> None:
    """An outlier beyond the scale stands at the edge of its row, with its figure."""
    one, other = record(), record("rsa")
    usual = [10.0, 10.1, 9.9, 10.05, 9.95, 10.0]
    draw(ax, [one, other], samples((one, [*usual, 25.0]), (other, usual)))
    assert len(dots(ax, colour("dsp"))) == 7
    assert len(dots(ax, colour("rsa"))) == 6
    assert rings(ax) == 1
    assert dots(ax, colour("dsp"))[-1][1] == HALF_ROW
    assert [text.get_text() for text in ax.texts if "+" in text.get_text()] == ["+150%"]
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == ["dsp\n10 ms", "rsa\n10 ms"]


def test_an_outlier_is_so_by_the_median_absolute_deviation() -> None:
    """An outlier is over five scaled MADs off; times equal but for rounding have none."""
    usual = np.array([9.0, 10.0, 11.0] * 5)
    edge = 10 + 5 * 1.4826
    assert outliers(np.append(usual, [edge - 0.01, edge + 0.01])).tolist()[-2:] == [False, True]
    assert not outliers(np.array([1.00001, 1.0, 1.0, 1.0])).any()
    assert outliers(np.array([1.01, 1.0, 1.0, 1.0])).tolist() == [True, False, False, False]


def test_rows_of_a_panel_have_one_scale(ax: Axes) -> None:
    """A quiet case is flat beside a noisy one; each is about its own step time."""
    one, other = record(), record("rsa")
    times = samples((one, [10.0, 10.01, 9.99, 10.0]), (other, [50.0, 60.0, 40.0, 50.0]))
    draw(ax, [one, other], times)
    flat = [y for _, y in dots(ax, colour("dsp"))]
    wide = [y + 1 for _, y in dots(ax, colour("rsa"))]
    assert max(map(abs, flat)) < 0.05 * max(map(abs, wide))


def test_a_launch_without_samples_says_why(ax: Axes) -> None:
    """The row has the status, or "no samples"; the slowest needs samples of all ranks."""
    records = [record(), record(launch=1, status="timeout"), record(launch=2), record(launch=3)]
    times = samples((records[0], [10.0, 10.1]), (records[2], [10.0]))
    times = times[(times["launch"] != 2) | (times["rank"] == 0)]
    draw(ax, records, times)
    remarks = [text.get_text() for text in ax.texts]
    assert remarks[:3] == ["timeout", "no samples", "no samples"]
    assert len(dots(ax, colour("dsp"))) == 2


def test_nothing_but_lost_samples_is_drawn(ax: Axes) -> None:
    """The row has a remark, and the step time that is known."""
    draw(ax, [record()], samples())
    assert [label.get_text() for label in ax.get_yticklabels()] == ["dsp\n10 ms"]
    assert [text.get_text() for text in ax.texts][:1] == ["no samples"]


def test_a_row_without_a_time_has_no_dots(ax: Axes) -> None:
    """Samples of a launch without a step time are not drawn."""
    draw(ax, [record(step_ms=None)], samples((record(), [10.0, 10.1])))
    assert [label.get_text() for label in ax.get_yticklabels()] == ["dsp\n- ms"]
    assert not dots(ax, colour("dsp"))


def test_a_line_is_at_the_step_time_of_the_row(ax: Axes) -> None:
    """The line is not at a statistic of the samples, which another version may choose."""
    times = samples((record(), [10.0, 10.0, 10.2, 11.0]))
    draw(ax, [record(step_ms=10.2)], times)
    drawn = [
        float(y)
        for one in ax.collections
        if isinstance(one, LineCollection) and len(one.get_segments()) == 1
        for _, y in one.get_segments()[0]
    ]
    assert drawn == [dots(ax, colour("dsp"))[2][1]] * 2


def test_a_share_shows_what_it_computed(ax: Axes) -> None:
    """A share has one rank and no step: its compute times are drawn."""
    share = record(kind="one_gpu_share", world_size=8, step_ms=None, compute_ms=1.5)
    draw(ax, [share], samples_of((share, [[1.0, 2.0]])))
    assert len(dots(ax, colour("dsp"))) == 2


def test_panels_are_by_workload_then_ranks() -> None:
    """Different workloads of one name have their own panels; a case that never ran has no row."""
    records = [
        record(world_size=4),
        record(world_size=2),
        record(world_size=2, workload_key="else"),
        record("rsa", status="oom", world_size=2),
        record("rsa", status="oom", world_size=16),
    ]
    panels = times_by_panel(records, samples())
    rows = [[case.strategy for case in cases] for cases in panels.values()]
    assert rows == [["dsp"], ["dsp"], ["dsp"]]
    assert [title.splitlines()[1] for title in panels] == ["2 ranks", "4 ranks", "2 ranks"]


def test_no_panel_is_lost_to_another_of_its_name(golden: Golden) -> None:
    """Workloads of one name, on CPU and CUDA, in full and quick, have a panel and a title each."""
    records = [
        record(workload_key=key, device=device, effort=effort)
        for key in ("one", "other")
        for device in ("cpu", "cuda")
        for effort in ("full", "quick")
    ]
    panels = times_by_panel(records, samples())
    facts = ("workload_key", "device", "effort")
    drawn = [
        [tuple(row[fact] for fact in facts) for row in case.launches] for (case,) in panels.values()
    ]
    assert drawn == [[tuple(getattr(one, fact) for fact in facts)] for one in records]
    golden("\n".join(panels))


def test_it_is_drawn_where_there_are_samples(tmp_path: Path, golden: Golden) -> None:
    """The figure is drawn beside the others; a remark counts lost samples."""
    records = [record(strategy, launch) for strategy in ("dsp", "rsa") for launch in range(2)]
    before = page(records, tmp_path)
    assert "launches" not in before.sheets
    with_samples(tmp_path, records)
    whole = page(records, tmp_path)
    assert whole.remarks == []
    paths = save_all(whole.sheets, tmp_path / "plots")
    assert [path.name for path in paths[-2:]] == ["launches.png", "launches.svg"]
    file = next((tmp_path / "samples").iterdir())
    file.write_bytes(file.read_bytes()[:-20])
    torn = page(records, tmp_path)
    (remark,) = torn.remarks
    golden(remark)
