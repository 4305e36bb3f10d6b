"""Figures: each as PNG and SVG, failed cases labelled, one colour for a strategy everywhere."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib.pyplot as plt
import pytest
from helpers.example_rows import lines_of
from helpers.golden import Golden
from helpers.plotted_runs import page, plotted
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.patches import Rectangle

from spbench.analysis.compare_strategies import Line
from spbench.report.plots import draw as marks
from spbench.report.plots import kinds
from spbench.report.plots import style as look
from spbench.report.plots.caption import about_run
from spbench.report.plots.figure import Mark, Sheet, save_all
from spbench.report.plots.figure import draw as draw_sheet
from spbench.report.plots.style import STYLE
from spbench.results.record import Record
from spbench.strategies.registry import BUILT_IN, VENDORS, forms_of
from spbench.workload.case import Case
from spbench.workload.catalogue import find

CASE = Case(workload=find("axes-2d", "verify"), strategy="dsp", ranks=2, device="cpu")
MIB = 2**20


def record(strategy: str = "dsp", **more: Any) -> Record:
    known = {"run_id": "a run", "started_utc": "now", "status": "ok", "torch": "9.9"}
    return replace(Record.of_case(CASE, **known), strategy=strategy, **more)


def measured(strategy: str, step_ms: float, **more: Any) -> Record:
    figures: dict[str, Any] = {"step_ms": step_ms, "tokens_per_s": 1e6 / step_ms}
    figures |= {"compute_ms": step_ms * 0.75, "exposed_comm_ms": step_ms * 0.25}
    figures |= {"peak_allocated_bytes": 64 * MIB}
    for phase, count in (("forward", 3), ("backward", 6), ("gradients", 1)):
        figures |= {f"sent_bytes_{phase}": count * MIB, f"predicted_bytes_{phase}": count * MIB}
    return record(strategy, **figures | more)


RUN = [
    measured("dsp", 10.0),
    measured("dsp", 12.0, launch=1),
    measured("ulysses", 20.0),
    record("megatron-sp", status="oom", reason="rank 0: no memory"),
    measured("dsp", 6.0, world_size=4),
    record("rsa:reduce-scatter", status="skipped", world_size=4),
]


def draw(records: list[Record], folder: Path) -> list[Path]:
    return save_all(page(records, folder).sheets, folder)


def caption_of(records: list[Record]) -> str:
    return about_run(plotted(records, Path()))


def draw_bars(ax: Axes, kind: str, records: list[Record]) -> None:
    kinds.BARS[kind].bars(lines_of(records), plotted(records, Path())).draw(ax)


def draw_ratios(ax: Axes, lines: Sequence[Line]) -> None:
    compared = [line for line in lines if line.strategy != line.reference]
    marks.Forest(lines=compared, margin=0.05).draw(ax)


@pytest.fixture
def ax() -> Iterator[Axes]:
    figure, made = plt.subplots()
    yield made
    plt.close(figure)


def bars(ax: Axes, shown: str) -> list[tuple[float, float]]:
    """Top and bottom of each bar of a colour."""
    drawn = [patch for patch in ax.patches if to_hex(patch.get_facecolor()) == shown.lower()]
    return [(one.get_y() + one.get_height(), one.get_y()) for one in drawn]  # type: ignore[attr-defined]


def test_every_figure_is_written_twice(tmp_path: Path) -> None:
    """Each figure is PNG and SVG in a new folder, and names strategies, run and failures."""
    folder = tmp_path / "deep" / "plots"
    paths = draw(RUN, folder)
    names = ("overview", "scaling", "memory", "sent_bytes", "step_split", "ratios")
    assert [path.name for path in paths] == [
        f"{n}.{kind}" for n in names for kind in ("png", "svg")
    ]
    assert sorted(folder.iterdir()) == sorted(paths)
    for path in paths:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")
            continue
        ElementTree.parse(path)
        text = path.read_text()
        failed = () if path.stem == "ratios" else ("megatron-sp", "oom", "skipped")
        for word in ("dsp", "run a run", "torch 9.9", "axes-2d", *failed):
            assert word in text
    assert plt.get_fignums() == []


def test_a_run_in_which_nothing_worked_is_drawn(tmp_path: Path) -> None:
    """Failed cases alone, also of several workloads and kinds, are drawn."""
    failed = [
        record(status="crash", reason="x"),
        record("rsa", status="timeout", workload="other"),
        record("rsa", status="wrong_result", kind="one_gpu_share"),
    ]
    paths = draw(failed, tmp_path)
    assert all(path.stat().st_size > 1000 for path in paths)
    assert "one gpu share" in (tmp_path / "memory.svg").read_text()


@pytest.mark.parametrize("kind", kinds.BARS)
def test_a_failed_case_is_hatched_and_labelled(ax: Axes, kind: str) -> None:
    """The status stands in place of a bar of no height."""
    draw_bars(ax, kind, [measured("dsp", 5.0), record("rsa", status="oom")])
    assert "oom" in [text.get_text() for text in ax.texts]
    assert len([patch for patch in ax.patches if patch.get_hatch() == "xxx"]) == 1
    assert bars(ax, look.colour("rsa")) == []
    assert bars(ax, look.colour("dsp"))


def test_what_was_not_measured_is_no_zero(ax: Axes) -> None:
    """A case that is ok without a figure is labelled as not measured."""
    draw_bars(ax, "memory", [record()])
    assert [text.get_text() for text in ax.texts] == ["not measured"]


def test_throughput_is_that_of_the_step_time(ax: Axes) -> None:
    """The bar is the mean; the whisker reaches from the slowest to the fastest launch."""
    draw_bars(ax, "throughput", RUN[:2])
    ((top, _),) = bars(ax, look.colour("dsp"))
    (whisker,) = ax.collections
    low, high = whisker.get_paths()[0].vertices[:, 1]  # type: ignore[union-attr]
    assert low == pytest.approx(top * 120**0.5 / 12)
    assert high == pytest.approx(top * 120**0.5 / 10)


def test_one_launch_has_no_whisker(ax: Axes) -> None:
    """The spread between launches needs two launches."""
    draw_bars(ax, "throughput", RUN[:1])
    assert len(ax.collections) == 0


def test_equal_launches_have_a_whisker_of_no_length(ax: Axes) -> None:
    """Rounding does not make the whisker negative, which could not be drawn."""
    same = {"tokens_per_s": 15027.7}
    draw_bars(ax, "throughput", [measured("dsp", 11.4, launch=i, **same) for i in range(3)])
    assert len(ax.collections) == 1


def test_sent_bytes_stand_on_each_other_with_their_prediction(ax: Axes) -> None:
    """Phases are stacked; a line is the prediction of the phases up to it."""
    draw_bars(ax, "sent_bytes", [measured("dsp", 5.0)])
    assert bars(ax, look.colour("dsp")) == [(3.0, 0.0), (9.0, 3.0), (10.0, 9.0)]
    (lines,) = ax.collections
    ticks = [float(one[0][1]) for one in lines.get_segments()]  # type: ignore[attr-defined]
    assert ticks == [3.0, 9.0, 10.0]


def test_a_share_has_predictions_without_bars(ax: Axes) -> None:
    """A share sends nothing, so no bar is stacked; lines mark what would be sent."""
    silent = {f"sent_bytes_{phase}": None for phase in ("forward", "backward", "gradients")}
    draw_bars(ax, "sent_bytes", [measured("dsp", 5.0, kind="one_gpu_share", **silent)])
    assert bars(ax, look.colour("dsp")) == []
    (lines,) = ax.collections
    assert len(lines.get_segments()) == 3  # type: ignore[attr-defined]


def test_communication_stands_on_computation(ax: Axes) -> None:
    """Together they are the step; negative exposed communication is drawn as zero."""
    hidden = {"compute_ms": 8.5, "exposed_comm_ms": -0.5}
    draw_bars(ax, "step_split", [measured("dsp", 8.0), measured("rsa", 8.0, **hidden)])
    exposed = [
        (patch.get_y(), patch.get_height())  # type: ignore[attr-defined]
        for patch in ax.patches
        if patch.get_hatch() == "////"
    ]
    assert exposed == [(6.0, 2.0), (8.5, 0.0)]


def test_noisy_times_say_so(ax: Axes, golden: Golden) -> None:
    """Above the bar, in the label of the ratio and in the launch's place; bytes need no mark."""
    launches = [measured("dsp", 8.0), measured("rsa", 8.0, noisy="a neighbour")]
    lines = lines_of(launches)
    draw_bars(ax, "sent_bytes", launches)
    assert [text.get_text() for text in ax.texts] == []
    draw_bars(ax, "step_split", launches)
    assert [text.get_text() for text in ax.texts] == [" noisy"]
    golden("\n".join(marks.ratio_label(line) for line in lines))
    assert lines[1].to_reference is not None and lines[1].to_reference.verdict == "inconclusive"


@pytest.mark.parametrize("panels_drawn", [1, 2, 6])
def test_the_mark_of_noise_stays_below_the_title(tmp_path: Path, panels_drawn: int) -> None:
    """Above the tallest bar there is room for it, however low the panel is."""
    tall = [
        measured("dsp", 8.0, noisy="a neighbour", workload=f"shape {i}", case=f"shape {i}")
        for i in range(panels_drawn)
    ]
    sheet = page(tall, tmp_path).sheets["throughput"]
    with plt.rc_context(STYLE):
        figure = draw_sheet(sheet)
        FigureCanvasAgg(figure).draw()
    for ax in figure.axes:
        (mark,) = ax.texts
        assert mark.get_window_extent().y1 <= ax.get_window_extent().y1


def test_a_step_that_nothing_silenced_is_light(ax: Axes) -> None:
    """In its whole height, and no part of it is filled as computation or striped as exposed."""
    whole = measured("torch-cp", 8.0, compute_ms=None, exposed_comm_ms=None)
    draw_bars(ax, "step_split", [whole])
    assert not bars(ax, look.colour("torch-cp"))
    assert not bars(ax, "#ffffff")
    assert bars(ax, to_hex(look.lighter(look.colour("torch-cp"), 0.2))) == [(8.0, 0.0)]


def test_a_strategy_has_its_colour_everywhere(ax: Axes) -> None:
    """The colour does not depend on the other strategies, nor on their order."""
    records = [measured("rsa", 5.0), measured("dsp", 6.0)]
    for kind in kinds.BARS:
        draw_bars(ax, kind, records[::-1])
        draw_bars(ax, kind, records[:1])
        assert bars(ax, look.colour("rsa"))
    assert look.colour("rsa:reduce-scatter") == look.colour("rsa:reduce-scatter")


def test_colours_can_be_told_apart() -> None:
    """Every built-in strategy has its own colour, not near another or near white."""
    assert set(look.COLOURS) == set(BUILT_IN)
    shown = [*look.COLOURS.values(), *look.MORE_COLOURS, "#FFFFFF"]
    for one, other in combinations(map(to_rgb, shown), 2):
        assert sum(abs(a - b) for a, b in zip(one, other, strict=True)) > 0.3


def test_vendors_are_told_apart() -> None:
    """Each adapter has the colour of a strategy of spbench, and a hatch of its own."""
    assert look.VENDORS.keys() == VENDORS.keys()
    forms = forms_of([*VENDORS])
    looks = {(look.colour(name), look.hatch(name)) for name in (*BUILT_IN, *VENDORS, *forms)}
    assert len(looks) == len(BUILT_IN) + len(VENDORS) + len(forms)
    assert len({shown for shown, _ in looks}) == len(BUILT_IN)


def test_bars_do_not_cover_each_other(ax: Axes) -> None:
    """Strategies stand side by side in the cluster of their number of ranks."""
    draw_bars(ax, "memory", RUN)
    spans = sorted((one.get_x(), one.get_x() + one.get_width()) for one in ax.patches)  # type: ignore[attr-defined]
    assert len(spans) == 5
    assert all(left[1] < right[0] for left, right in pairwise(spans))
    assert [label.get_text() for label in ax.get_xticklabels()] == ["2", "4"]


def test_the_caption_says_where_figures_come_from(golden: Golden) -> None:
    """The caption has run, device, torch, dtype, and the meaning of the whiskers."""
    golden(caption_of(RUN), "of processors of one speed")
    speeds = [replace(one, cpu_gflop_per_s=10.0 * len(one.strategy)) for one in RUN[:3]]
    golden(caption_of(speeds))
    assert "Some GPU" in caption_of([replace(RUN[0], gpu="Some GPU")])
    doubtful = [replace(RUN[0], noisy="others", effort="quick"), RUN[0]]
    golden(caption_of(doubtful), "noisy and quick")
    mixed = lines_of([*RUN, *(measured("ulysses", 5.0, launch=n) for n in range(3))])
    golden(kinds.whiskers(mixed), "whiskers")
    golden(kinds.whiskers(lines_of(RUN[:1])), "whiskers of one launch")


def test_whiskers_are_named_where_they_are_drawn(tmp_path: Path) -> None:
    """Times with a spread have them, bars of bytes, memory and a split step do not."""
    for run, names in (
        (RUN, ["overview", "scaling"]),
        (compared(9.0, 9.2, 8.9), ["overview", "throughput", "ratios"]),
    ):
        sheets = page(run, tmp_path).sheets
        assert [name for name, sheet in sheets.items() if "95 %" in sheet.caption] == names


def test_drawing_needs_no_torch() -> None:
    """A laptop without torch can draw what a cluster measured."""
    code = "import sys, spbench.report.plots.kinds; sys.exit('torch' in sys.modules)"
    root = Path(kinds.__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=False, timeout=60)
    assert done.returncode == 0


class Draws(Mark):
    def draw(self, ax: Axes) -> None:
        ax.plot([1, 2])


class Fails(Mark):
    def draw(self, ax: Axes) -> None:
        raise OSError(28, "No space left on device")


def test_a_sheet_that_fails_ends_the_drawing(tmp_path: Path, golden: Golden) -> None:
    """As on a full disk: the error is that of the sheet, and sheets not yet begun are not drawn."""
    sheets = {
        str(i): Sheet(heading="heading", panels={"panel": mark}, caption="caption")
        for i, mark in enumerate([Draws(), Fails(), Draws()])
    }
    with pytest.raises(OSError) as refused:
        save_all(sheets, tmp_path)
    golden(refused.value)
    names = [path.name for path in tmp_path.iterdir()]
    assert "0.png" in names
    assert "2.png" not in names


def compared(*steps: float, strategy: str = "ulysses", **more: Any) -> list[Record]:
    """Three launches of dsp and those of another strategy, in the same rounds."""
    cases = {"dsp": (10.0, 10.1, 9.9), strategy: steps}
    return [
        measured(name, ms, launch=i, round=f"r{i}", **more)
        for name, times in cases.items()
        for i, ms in enumerate(times)
    ]


def test_a_ratio_has_its_interval_and_the_band_its_margin(ax: Axes) -> None:
    """A filled dot with a line through it; the reference has no row."""
    lines = lines_of(compared(12.0, 12.2, 11.9))
    draw_ratios(ax, lines)
    times = lines[1].to_reference
    assert times is not None
    interval, dots = ax.collections
    (ends,) = interval.get_paths()  # type: ignore[attr-defined]
    assert list(ends.vertices[:, 0]) == [times.low, times.high]  # type: ignore[index]
    assert list(dots.get_offsets()[0]) == [times.ratio, 0.0]  # type: ignore[index]
    assert to_hex(dots.get_facecolor()[0]) == look.COLOURS["ulysses"].lower()  # type: ignore[index]
    (band,) = (patch for patch in ax.patches if isinstance(patch, Rectangle))
    assert (band.get_x(), band.get_x() + band.get_width()) == pytest.approx((1 / 1.05, 1.05))
    assert [text.get_text() for text in ax.get_yticklabels()] == ["ulysses, 2 ranks"]


def test_what_is_not_told_apart_is_hollow(ax: Axes) -> None:
    """The dot of an inconclusive ratio is hollow; two launches have a dot without a line."""
    draw_ratios(ax, lines_of(compared(10.0, 12.0, 9.0)))
    assert to_hex(ax.collections[-1].get_facecolor()[0]) == "#ffffff"  # type: ignore[index]
    ax.clear()
    draw_ratios(ax, lines_of(compared(12.0, 12.1)))
    assert len(ax.collections) == 1


def test_a_run_of_one_strategy_has_no_ratios(tmp_path: Path) -> None:
    """A forest plot needs a second strategy."""
    names = [path.stem for path in draw([measured("dsp", 10.0)], tmp_path)]
    assert "ratios" not in names
    assert "ratios" in [path.stem for path in draw(compared(12.0, 12.1), tmp_path)]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.95, 8.0, [0.5, 1, 2, 5]),
        (0.9, 2.0, [0.8, 1, 1.2, 1.4, 1.6, 1.8, 2]),
        (0.98, 1.03, [0.98, 0.99, 1, 1.01, 1.02, 1.03]),
        (0.3, 1.02, [0.5, 1, 2]),
        (0.001, 1.04, [0.001, 0.01, 0.1, 1, 10]),
    ],
)
def test_ticks_of_ratios(low: float, high: float, ticks: list[float]) -> None:
    """One at 1, and others on both sides of it, also where all ratios are on one side."""
    assert marks.ratio_ticks(low, high) == pytest.approx(ticks)


def test_a_wide_interval_keeps_the_tick_of_the_reference(ax: Axes) -> None:
    """The ticks lie within the axis, which reaches to one on either side of 1."""
    draw_ratios(ax, lines_of(compared(12.0, 60.0, 20.0)))
    low, high = ax.get_xlim()
    shown = [text.get_text() for text in ax.get_xticklabels()]
    assert "1x" in shown and len(shown) <= 8
    assert low <= ax.get_xticks()[0] < 1 < ax.get_xticks()[-1] <= high
