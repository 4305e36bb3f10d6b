"""Every kind of figure is drawn of runs that hold anything a figure may meet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.example_rows import lines_of, row, rows
from helpers.golden import Golden
from helpers.kept_runs import kept, side
from helpers.plotted_runs import TWENTY, USUAL, plotted, projected_of, run_of
from matplotlib.figure import Figure
from pandas import DataFrame

import spbench
from spbench.report.plots import style
from spbench.report.plots.draw import Curve, Curves
from spbench.report.plots.figure import Sheet, save
from spbench.report.plots.frame import Asked, curve_panels
from spbench.report.plots.kinds import KINDS, PARETO, missing_from
from spbench.report.plots.pages import page_of
from spbench.report.strategy_table import ranking_sentences
from spbench.results.record import Record
from spbench.results.runs_csv import frame_of

BLANK = [name for name in vars(row()) if name.endswith(("_ms", "_per_s", "_per_rank", "_bytes"))]
BLANK += [name for name in vars(row()) if name.startswith(("sent_bytes", "predicted_bytes"))]
RUNS: dict[str, Callable[[], list[Record]]] = {
    "all": lambda: run_of() + projected_of(),
    "one": lambda: run_of(("dsp",), (2,)),
    "twenty": lambda: run_of(TWENTY, (1, 8, 16), launches=2),
    "failed": lambda: [row(x.strategy, status="crash", reason="x") for x in run_of(launches=1)],
    "blank": lambda: [replace(x, **dict.fromkeys(BLANK)) for x in run_of(launches=1)],
}


def drawn(
    records: list[Record], folder: Path, *kinds: str, asked: Asked = USUAL
) -> dict[str, Sheet]:
    return dict(page_of(plotted(records, folder, asked), 1, kinds).sheets)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long) if n == "twenty" else n for n in RUNS]
)
def test_every_kind_is_drawn(name: str, tmp_path: Path) -> None:
    """No run, however little of it succeeded, ends the drawing, nor makes matplotlib warn."""
    kinds = [kind for kind in KINDS if kind not in ("capacity", "launches")]
    sheets = drawn(RUNS[name](), tmp_path, *kinds)
    assert {"overview", "scaling", "memory", "pareto", "winners"} <= set(sheets)
    for kind, sheet in sheets.items():
        (path,) = save(sheet, tmp_path / kind, ("svg",))
        text = path.read_text()
        is_mixed = name == "all" and kind not in ("overview", "sent_bytes")
        assert (style.PROJECTED in text) == is_mixed, kind
        assert ("projected on hgx-h100: not measured" in sheet.caption) == is_mixed, kind


@pytest.mark.parametrize("name", ["failed", "blank"])
def test_a_figure_without_points_says_what_is_missing(
    name: str, tmp_path: Path, golden: Golden
) -> None:
    sheet = drawn(RUNS[name](), tmp_path, "pareto")["pareto"]
    (path,) = save(sheet, tmp_path / "pareto", ("svg",))
    (rows,) = curve_panels(plotted(RUNS[name](), tmp_path), PARETO).values()
    golden(missing_from(rows))
    assert path.exists()


def test_work_that_grows_with_the_ranks_is_weak_scaling(tmp_path: Path, golden: Golden) -> None:
    """Cases on one number of ranks each, with equal tokens a rank, share a panel."""
    records = [x for n in (1, 2, 4) for x in run_of(("dsp",), (n,), (1024 * n,))]
    (title,) = drawn(records, tmp_path, "scaling")["scaling"].panels
    golden(title, "weak scaling")
    (title,) = drawn(run_of(("dsp",)), tmp_path, "scaling")["scaling"].panels
    golden(title, "strong scaling")


def test_any_figure_over_any_column(tmp_path: Path) -> None:
    """Panels are of what stays the same; a facet names another column."""
    records = run_of(("dsp", "rsa"), (2, 4), (512, 1024))
    asked = Asked(metric="step_ms", x="space")
    sheets = drawn(records, tmp_path, asked=asked)
    assert list(sheets) == ["step_ms-over-space"]
    assert len(sheets["step_ms-over-space"].panels) == 2
    by_strategy = drawn(records, tmp_path, asked=Asked(facet="strategy"))
    assert [title.split(",")[0] for title in next(iter(by_strategy.values())).panels] == [
        "dsp",
        "rsa",
    ]


@pytest.mark.parametrize(
    ("kinds", "asked", "said"),
    [
        (("winner",), Asked(), "Did you mean 'winners'"),
        ((), Asked(metric="step"), "there is no figure 'step'"),
        ((), Asked(x="length"), "--x length: use ranks, tokens, batch, time, space"),
        ((), Asked(facet="colour"), "--facet colour: use workload, time, space"),
        (("memory",), Asked(x="batch"), "are of the kind scaling"),
    ],
)
def test_what_is_not_known_is_said(
    kinds: tuple[str, ...], asked: Asked, said: str, tmp_path: Path
) -> None:
    """With what works."""
    with pytest.raises(ValueError, match="^.*" + said.replace("?", "[?]")):
        drawn(run_of(("dsp",), (2,)), tmp_path, *kinds, asked=asked)


def test_the_winner_is_told_apart_or_light(tmp_path: Path) -> None:
    """By the launches' verdict; a projected winner by the draws, and only of what fits."""
    records = run_of(ranks=(8,)) + projected_of(ranks=(8,), memory_limit_bytes=2**33)
    measured, projected = (
        panel for panel in drawn(records, tmp_path, "winners")["winners"].panels.values()
    )
    assert (measured.is_projected, projected.is_projected) == (False, True)
    assert measured.winners[0, 0][:2] == ("dsp", True)
    assert projected.winners[0, 0].strategy == ""
    assert "too large" in projected.winners[0, 0].text


def test_the_map_names_no_winner_where_launches_were_noisy(tmp_path: Path, golden: Golden) -> None:
    """As in words: a noisy strategy may be the fastest, whether it has the lowest time or not."""
    quiet = [*rows("dsp", (10.0, 10.1, 9.9)), *rows("ulysses", (20.0, 20.1, 19.9))]
    for ms in (5.0, 130.0):
        records = [*quiet, *rows("rsa", (ms, ms, ms), noisy="a neighbour")]
        sheet = drawn(records, tmp_path, "winners")["winners"]
        (panel,) = sheet.panels.values()
        cell = panel.winners[0, 0]  # type: ignore[attr-defined]
        assert (cell.strategy, cell.is_ranked) == ("", False)
        golden(cell.text, f"cell, {ms}")
        golden(sheet.caption, f"caption, {ms}")
        save(sheet, tmp_path / "winners", ("png",))
        golden(ranking_sentences(lines_of(records))[0], f"in words, {ms}")
    sheet = drawn(quiet, tmp_path, "winners")["winners"]
    assert "crossed" not in sheet.caption


def test_no_ideal_begins_at_noisy_launches() -> None:
    """The ideal of the best is that of one that can be ranked; none where none can be."""
    steps = {"x": [1.0, 2.0], "look": style.line_look("dsp"), "is_projected": False}
    noisy = Curve(label="dsp", y=[9.0, 9.0], noisy=[True, False], **steps)  # type: ignore[arg-type]
    quiet = Curve(label="rsa", y=[4.0, 7.0], noisy=[False, False], **steps)  # type: ignore[arg-type]
    for drawn, begins in (([noisy, quiet], [4.0]), ([noisy], [])):
        ax = Figure().subplots()
        more = {"x": "ranks", "y": "", "has_ticks_at_points": True, "ideal": 1.0}
        Curves(curves=drawn, **more).draw(ax)  # type: ignore[arg-type]
        dotted = [line for line in ax.lines if len(line.get_xdata()) == 33]
        assert [float(line.get_ydata()[0]) for line in dotted] == begins


def test_shares_of_one_gpu_are_in_no_figure_that_ranks(tmp_path: Path, golden: Golden) -> None:
    """No map, ratio, throughput or scaling is of them; what is drawn says they are no steps."""
    share = {"kind": "one_gpu_share", "step_ms": None, "tokens_per_s": None}
    records = [replace(one, **share) for one in run_of(("dsp", "megatron-sp"), (8,))]
    sheets = drawn(records, tmp_path)
    assert {*sheets} == {"overview", "memory", "step_split"}
    golden(sheets["step_split"].heading)
    for kind, sheet in sheets.items():
        golden(sheet.caption, f"caption of {kind}")
    for kind in ("winners", "ratios", "throughput", "scaling", "pareto"):
        with pytest.raises(ValueError) as refused:
            drawn(records, tmp_path, kind)
        golden(refused.value, kind)
    mixed = [*run_of(("dsp", "megatron-sp"), (8,)), *records]
    (title,) = drawn(mixed, tmp_path, "winners")["winners"].panels
    assert "share" not in title


def test_options_of_a_strategy_have_looks_of_their_own() -> None:
    """One colour and marker, other hatches and dashes."""
    names = [f"usp:{option}" for option in ("ulysses=2", "ulysses=4", "ulysses=8", "across=ring")]
    assert len({style.colour(name) for name in names}) == 1
    assert len({style.hatch(name) for name in names}) == 4
    assert len({str(style.dashes(name)) for name in names}) == 4


def test_a_notebook_gets_the_figure_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Of a run's folder, or of rows that were chosen from one; by kind, or of any figure."""
    frame = frame_of(run_of(("dsp", "rsa"), (2, 4)))
    titles = [ax.get_title("left").replace("\n", " ") for ax in spbench.plot(frame, "memory").axes]
    golden("\n".join(titles))
    few = frame[frame["strategy"] == "dsp"]
    assert spbench.plot(few, metric="step_ms").axes[0].get_ylabel() == "step, ms"
    monkeypatch.chdir(tmp_path)
    kept("run", side("run"), side("run", 1.1, "rsa"))
    spbench.plot("results/run").savefig(tmp_path / "first.png")
    assert (tmp_path / "first.png").stat().st_size > 10_000
    with pytest.raises(ValueError) as refused:
        spbench.plot(frame, "memry")
    golden(refused.value, "no such figure")
    with pytest.raises(ValueError) as refused:
        spbench.plot(frame[frame["strategy"] == "no such"])
    golden(refused.value, "no row")
    with pytest.raises(ValueError) as refused:
        spbench.plot(DataFrame())
    golden(refused.value, "no columns")
