"""``spbench show``: lanes add up to the prediction, and the picture fits any terminal."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
from helpers.command_line import spbench
from helpers.examples import ALL as ALL_RANKS
from helpers.examples import examples
from helpers.golden import Golden
from helpers.terminal import COLOURED, STYLED, Terminal
from hypothesis import given
from hypothesis import strategies as st

from spbench.errors import USAGE
from spbench.report import block_diagram as drawing
from spbench.report import tables
from spbench.report.block_diagram import Picture, draw
from spbench.strategies.describe import lanes
from spbench.strategies.registry import load, places
from spbench.workload.catalogue import find, load_text, with_settings
from spbench.workload.config_names import names
from spbench.workload.predicted import Lane
from spbench.workload.traffic import by_busiest

ALL = list(places())
VARIANTS = [*ALL, "ulysses:every-attention", "megatron-sp:keep-input"]


def lane(strategy: str, workload: str = "open-sora-1.2-480p", ranks: int = 8, *set_: str) -> Lane:
    (drawn,) = lanes(with_settings(find(workload), set_), [strategy], ranks)
    return drawn


def pictured(workload: str, ranks: int = 8, strategies: list[str] = ALL, *set_: str) -> Picture:
    work = with_settings(find(workload), set_)
    return Picture(workload=work, ranks=ranks, lanes=lanes(work, strategies, ranks))


def lines(shown: Picture, width: int = 100) -> list[str]:
    return [line.plain for line in draw(shown, width)]


def of(strategy: str, shown: list[str]) -> list[str]:
    """The lines of one lane, from its title to the blank line behind it."""
    start = next(i for i, line in enumerate(shown) if line.split()[:1] == [strategy])
    return shown[start : shown.index("", start)]


def test_an_optimizer_is_shown() -> None:
    """A step that ends with one says so; without one nothing is said."""
    small = "dsp-720m-small"
    (plain,) = [line for line in lines(pictured(small, 2)) if line.lstrip().startswith("run ")]
    shown = lines(pictured(small, 2, ALL, "optimizer=adamw"))
    assert f"{plain}, optimizer adamw" in shown


def test_guidance_is_shown(golden: Golden) -> None:
    """M is of all branches, and the line of the batch names them."""
    facts = [
        drawing.facts(pictured("dsp-720m-small", 2, ["rsa"], *x)) for x in ([], ["guidance=2"])
    ]
    golden(facts[1]["axes"])
    assert facts[0]["activation"].startswith("M = 3,072 KiB")
    assert facts[1]["activation"].startswith("M = 6,144 KiB")


EACH_RANKS = [(1, 2, 3, 8)] if ALL_RANKS else [(3,), (), (8,), ()]
"""Of the workloads in turn: in a short run one in four is cut for 3 ranks, one in four for 8."""


@pytest.mark.parametrize(
    ("name", "ranks"),
    [(name, ranks) for i, name in enumerate(names()) for ranks in EACH_RANKS[i % len(EACH_RANKS)]],
)
def test_lanes_add_up(name: str, ranks: int) -> None:
    """Legs add up to the forward bytes of the traffic, to the byte; a step has all its phases."""
    for strategy in VARIANTS:
        given, loaded = find(name), load(strategy)
        (drawn,) = lanes(given, [strategy], ranks)
        assert drawn.why_not == loaded.declines(given, ranks)
        work = loaded.flattened(given)
        if drawn.why_not is None:
            plan = loaded.on(work, ranks)
            traffic = plan.traffic
            busiest = max(
                sum(one.sent[rank] for one in traffic if one.phase == "forward")
                for rank in range(ranks)
            )
            assert sum(leg.total_bytes for leg in drawn.legs) == busiest
            assert drawn.step_bytes == by_busiest(traffic)
            sharded = ["" if plan.holds_whole else axis for axis in plan.layout]
            assert [leg.axis for leg in drawn.legs] == sharded


@pytest.mark.parametrize("strategy", VARIANTS)
def test_blocks_add_up(strategy: str) -> None:
    """Depth times a block is the stack's forward, less the switch that the last block saves."""
    for workload in ("open-sora-1.2-480p", "axial-weather", "dsp-720m"):
        if load(strategy).declines(find(workload), 1):
            continue  # none of these has a window
        drawn = lane(strategy, workload)
        block = find(workload).block
        saved = drawn.legs[drawn.periods[0] * len(block) - 1].switch
        assert drawn.saves_last_switch == (saved is not None) == (strategy == "dsp")
        whole = drawn.block_bytes * find(workload).depth - (saved.sent_bytes if saved else 0)
        assert sum(leg.total_bytes for leg in drawn.legs) == whole


def test_the_period_of_a_layout(golden: Golden) -> None:
    """Two axes repeat with each block, three with every second, four with every third."""
    assert lane("dsp").periods == (1,)
    assert lane("dsp", "axial-weather").periods == (2,)
    assert lane("rsa", "axial-weather").periods == (1,)
    ends_otherwise = lane("dsp", "earthformer")  # in the mlp behind its last attention
    assert (ends_otherwise.periods, ends_otherwise.saves_last_switch) == ((2,), True)
    assert lane("dsp", "axial-weather", 8, "depth=1").periods == (1,)
    four = ["axes={a: 12, b: 12, c: 12, d: 12}", "depth=9"]
    four += ["block=[{attention: a}, {attention: b}, {attention: c}, {attention: d}]"]
    assert lane("dsp", "axial-weather", 4, *four).periods == (3,)
    shown = lines(pictured("axial-weather", 4, ["dsp"], *four))
    golden("\n".join(shown))
    assert sum("block 2 of 9" in line for line in shown) == 1
    assert not any("block 3" in line for line in shown)


def test_each_stack_is_drawn(golden: Golden) -> None:
    """A frame for each, whose lines go on; bytes of a block are the mean of all."""
    stacks = "stacks=[{depth: 3, block: [{attention: level}, {attention: lat}]}, "
    stacks += "{depth: 2, block: [{attention: lon}, {mlp: 4}]}]"
    (drawn,) = lanes(with_settings(find("axial-weather"), [stacks]), ["ulysses"], 4)
    assert drawn.periods == (1, 1)
    assert drawn.block_bytes * 5 == sum(leg.total_bytes for leg in drawn.legs)
    shown = pictured("axial-weather", 4, ["dsp"], stacks)
    text = lines(shown)
    assert [every.start for every in shown.drawn] == [0, 6]
    assert [line.split("block ")[1] for line in text if "  block " in line] == ["1 of 5", "4 of 5"]
    assert any("depth 3 + 2:" in line for line in text)
    golden("\n".join(text))
    data = shown.as_data()
    assert len(data["lanes"][0]["legs"]) == sum(map(len, shown.drawn))
    assert [part["depth"] for part in data["workload"]["stacks"]] == [3, 2]


def test_a_block_alone_saves_nothing() -> None:
    """Where the whole stack is drawn, the picture shows no switch behind it and no remark."""
    shown = lines(pictured("open-sora-1.2-480p", 8, ["dsp"], "depth=1"))
    assert not any("left out" in line for line in shown)
    assert sum(line.count("switch") for line in shown) == 1


def test_dsp_hops_out_of_the_way(golden: Golden) -> None:
    """The line leaves an axis before it is attended, a switch stands there, and nothing else."""
    title, time, space, switch, saved = of("dsp", lines(pictured("open-sora-1.2-480p")))
    assert re.fullmatch(r"  time    ━+┓ +░+ +┏━", time)
    assert re.fullmatch(r"  space   ░+ ┗━+┛", space)
    assert re.fullmatch(r" +switch 12.2 +switch 11.4", switch)
    golden(f"{title}\n{saved}")
    assert len(time) == len(switch)
    assert time[space.index("┗")] == "┓"


def test_the_others_stay_and_communicate() -> None:
    """Their line runs through the shade; bytes stand under the sublayer that sends them."""
    shown = lines(pictured("open-sora-1.2-480p"))
    for strategy, below in (("ulysses", "2 all-to-alls 45.9"), ("rsa", "2 rings 184")):
        _, time, space, sent = of(strategy, shown)
        assert re.fullmatch(r"  time +░+", time)
        assert re.fullmatch(r"  space   ▓+━+", space)
        assert sent.strip() == below
        assert sent.index(below) == space.index("▓")
    *_, gathers, scatters, figures = of("megatron-sp", shown)
    assert gathers.split() == ["gather"] * 6
    assert scatters.split() == ["scatter"] * 6
    assert figures.split() == ["184"] * 6


def test_three_axes() -> None:
    """Two blocks are drawn; a hop from the last axis to the first crosses the one between."""
    shown = lines(pictured("axial-weather"))
    _, level, lat, lon, *_ = of("dsp", shown)
    assert (level.count("┏"), lat.count("┏"), lon.count("┛")) == (1, 1, 1)
    assert lat.count("┃") == 1
    assert level.index("┓") == lat.index("┃") == lon.index("┗")
    assert sum("block 1 of 24" in line and "block 2 of 24" in line for line in shown) == 1


def test_one_axis_and_joint_attention(golden: Golden) -> None:
    """The lane of a strategy that declines has its reason; joined axes are shaded together."""
    one = lines(pictured("axial-weather", 8, ALL, "axes={text: 64}", "block=[{attention: text}]"))
    why_not = lane(
        "dsp", "axial-weather", 8, "axes={text: 64}", "block=[{attention: text}]"
    ).why_not
    assert f"  declines: {why_not}" in one
    assert not any(line.startswith("dsp ") for line in one)
    joint = "block=[{attention: [level, lat, lon]}, {mlp: 4}]"
    row = of("ulysses", lines(pictured("axial-weather", 8, ["ulysses"], joint)))[1]
    golden(row, "joined axes")
    by_name = "ulysses:shard-axis=lon"
    rows = of(by_name, lines(pictured("axial-weather", 8, [by_name], joint)))[1:4]
    assert [row.split()[1][0] for row in rows] == ["░", "░", "▓"]


def test_a_note_stands_under_its_lane() -> None:
    """A lane ends with the strategy's note on this workload, where there is a note."""
    assert lane("rsa").note == ""
    note = load("rsa").on(find("llama3-8b"), 8).notes
    assert note
    assert of("rsa", lines(pictured("llama3-8b", 8, ["rsa"])))[-1] == f"  {note}"


@lru_cache
def every_variant(name: str, ranks: int) -> Picture:
    work = load_text(LONG, "long.yaml") if name == "long" else find(name)
    return Picture(workload=work, ranks=ranks, lanes=lanes(work, VARIANTS, ranks))


@examples(200)
@given(st.integers(40, 200), st.sampled_from([*names(), "long"]), st.sampled_from([1, 2, 5, 8, 13]))
def test_no_line_is_wider_than_asked(width: int, name: str, ranks: int) -> None:
    """A picture fits into 40 columns or more, whatever the block, with every lane in full."""
    shown = every_variant(name, ranks)
    drawn = lines(shown, width)
    assert max(map(len, drawn)) <= width
    for one in shown.lanes:
        titles = [line for line in drawn if line.split(" ")[0] == one.strategy]
        assert len(titles) == (len(shown.frames(width)) if one.legs else 1)


LONG = """
name: long
source: "names and figures that need room"
axes: {a_very_long_name_of_an_axis: 65536, another_very_long_name: 65536, t: 40}
hidden: 4096
heads: 32
kv_heads: 8
depth: 100
block:
  - {attention: [a_very_long_name_of_an_axis, another_very_long_name]}
  - {attention: t, causal: true}
  - {attention: another_very_long_name, pair_bias: 128}
  - {attention: a_very_long_name_of_an_axis, projection: 256}
  - {cross_attention: 100000, heads: 16}
  - {mlp: 2.6666667, activation: swiglu}
norm: rms
qk_norm: true
positions: {another_very_long_name: rotary}
batch: 16
"""


@pytest.mark.parametrize(
    ("least", "unit", "shown"),
    [
        (2**40, "TiB", "2"),
        (2**33, "GiB", "16"),
        (2**29, "GiB", "1"),
        (2**29 - 1, "MiB", "1,024"),
        (100, "KiB", "0.195"),
    ],
)
def test_one_unit_for_all(least: int, unit: str, shown: str) -> None:
    """The unit is the largest in which the least figure is half a unit."""
    made = pictured("open-sora-1.2-480p", 8, ["rsa"])
    leg = made.lanes[0].legs[0]
    sent = tuple(replace(one, sent_bytes=type(one.sent_bytes)(least)) for one in leg.transfers[:1])
    short = replace(made.lanes[0], legs=(replace(leg, transfers=sent),))
    one = replace(made, lanes=[short])
    assert (one.unit, one.figure(2 * least)) == (unit, shown)


def test_words_on_the_workload(golden: Golden) -> None:
    """The facts name an unusual norm, positions and keys; the source is folded, not cut."""
    work = load_text(LONG, "long.yaml")
    words = drawing.facts(Picture(workload=work, ranks=8, lanes=lanes(work, ["rsa"], 8)))
    golden("\n".join(map(str, words.values())))
    for extra in ("rotary positions of another_very_long_name", "rms norm", "qk-norm"):
        assert extra in words["model"]
    plain = drawing.facts(pictured("axial-weather"))
    golden("\n".join(map(str, plain.values())), "plain")
    rotary = drawing.facts(pictured("axial-weather", 8, ALL, "positions=rotary"))
    golden(rotary["model"], "rotary")
    mixed = ["positions={level: rotary, lat: learned, lon: rotary}", "heads=1"]
    fact = drawing.facts(pictured("axial-weather", 8, ["rsa"], *mixed))["model"]
    golden(fact, "mixed positions")
    small = ["hidden=16", "axes={level: 8, lat: 8, lon: 8}"]
    fact = drawing.facts(pictured("axial-weather", 8, ["rsa"], *small))["activation"]
    golden(fact, "small")


def test_the_words_of_neighbours_are_apart(golden: Golden) -> None:
    """Neighbours have three spaces or lines of their own; totals stand beside the lane's name."""
    for ranks, width in ((8, 100), (8, 57), (8, 53)):
        both = pictured("gpt-7b", ranks, ["ulysses", "megatron-sp"], "axes={sequence: 131072}")
        shown = lines(both, width)
        title, _, *sent = of("megatron-sp", shown)
        assert not any(re.search(r"\d {1,2}gather", line) for line in sent)
        golden(title)
        assert [line.strip() for line in shown if "block 1 of" in line] == ["block 1 of 32"]


def test_the_mean_of_a_period_is_said(golden: Golden) -> None:
    """Totals are means where blocks differ; a count of one is singular."""
    golden("\n".join(lines(pictured("axial-weather"))))
    alone = lines(pictured("open-sora-1.2-480p", 1, ["rsa"], "depth=1"))[-1]
    golden(alone, "of one block")


def test_as_data(tmp_path: Path, golden: Golden) -> None:
    """--json: the workload's facts, its sublayers, and the legs that are drawn, in whole bytes."""
    words = ["show", "open-sora-1.2-480p", "-s", "dsp,rsa", "-g", "64", "--set", "heads=24"]
    done = spbench(tmp_path, *words, "--json", torch=True)
    assert (done.code, done.err) == (0, "")
    data = json.loads(done.out)
    assert (data["ranks"], data["workload"]["heads"], data["workload"]["tokens"]) == (64, 24, 47700)
    assert [next(iter(one)) for one in data["sublayers"]][:3] == [
        "attention",
        "cross_attention",
        "mlp",
    ]
    dsp, rsa = data["lanes"]
    golden(dsp["why_not"])
    assert (dsp["block_bytes"], dsp["step_bytes"]) == (None, None)
    assert len(rsa["legs"]) == 6
    assert [one["op"] for one in rsa["legs"][0]["transfers"]] == ["p2p", "p2p"]
    sent = sum(one["sent_bytes"] for one in rsa["legs"][0]["transfers"])
    assert rsa["step_bytes"]["forward"] == pytest.approx(28 * sent, abs=28)


def test_a_strategy_has_no_such_option(tmp_path: Path, golden: Golden) -> None:
    """An unknown option is exit 2 with the options that the strategy has, and no traceback."""
    done = spbench(tmp_path, "show", "dsp-720m", "-s", "rsa:reduce-scater", torch=True)
    assert (done.code, done.out) == (USAGE, "")
    golden(done.err)
    assert len(done.err.splitlines()) == 1


def test_an_option_names_an_axis_that_is_not_there(tmp_path: Path, golden: Golden) -> None:
    """A wrong axis is a usage error with the known axes, before other errors."""
    words = ["dsp-720m", "-s", "rsa,ulysses:shard-axis=width", "--set", "heads=4"]
    known = "there is no axis 'width' to shard; shard-axis may be auto, time, space"
    done = spbench(tmp_path, "show", *words, torch=True)
    assert (done.code, done.out) == (USAGE, "")
    golden(done.err)
    run = spbench(tmp_path, "run", "-w", *words, "-g", "8", torch=True)
    assert run.code == USAGE
    assert known in run.err


def test_a_picture_for_each_number_of_ranks(tmp_path: Path) -> None:
    """Numbers with commas, as 'run' takes them; as JSON one picture, or a list of several."""
    words = ("show", "dsp-720m", "-s", "dsp", "-g")
    alone = [spbench(tmp_path, *words, ranks, torch=True).out for ranks in ("2", "4")]
    assert spbench(tmp_path, *words, "2,4,2", torch=True).out == "\n".join(alone)
    several = json.loads(spbench(tmp_path, *words, "2,4", "--json", torch=True).out)
    single = json.loads(spbench(tmp_path, *words, "4", "--json", torch=True).out)
    assert [picture["ranks"] for picture in several] == [2, 4]
    assert several[1] == single


def on(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, **environ: str) -> None:
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "80", **environ}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(drawing, "console", lambda: tables.console(stream))


def test_colours_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each axis has a colour on a terminal, none with NO_COLOR; a pipe gets no escape codes."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal, bare, pipe = Terminal(), Terminal(), io.StringIO()
    on(terminal, monkeypatch)
    drawing.show(pictured("open-sora-1.2-480p"))
    assert all(code in terminal.getvalue() for code in ("\x1b[36m  time", "\x1b[35m  space"))
    assert STYLED.sub("", terminal.getvalue()).splitlines() == lines(
        pictured("open-sora-1.2-480p"), 80
    )
    on(bare, monkeypatch, NO_COLOR="1")
    drawing.show(pictured("open-sora-1.2-480p"))
    assert COLOURED.search(bare.getvalue()) is None
    on(pipe, monkeypatch)
    drawing.show(pictured("open-sora-1.2-480p"))
    assert pipe.getvalue().splitlines() == lines(pictured("open-sora-1.2-480p"), 100)


def test_without_unicode(tmp_path: Path) -> None:
    """An ASCII stream gets + - # : for lines and shades, and no error."""
    words = ["show", "axial-weather", "-s", "dsp,ulysses"]
    done = spbench(tmp_path, *words, torch=True, PYTHONIOENCODING="ascii")
    assert (done.code, done.err) == (0, "")
    assert re.search(r"^  lon +-+\+ :+", done.out, re.MULTILINE)
    assert "####" in done.out


def test_the_activation_has_one_unit() -> None:
    """M and its share, on few ranks and many: the same figure in each picture."""
    for workload in ("axes-2d", "latte-1-small", "dsp-720m-small", "dsp-720m"):
        where = "verify" if workload == "axes-2d" else "workloads"
        work = find(workload, where)
        said = [
            drawing.facts(Picture(workload=work, ranks=n, lanes=lanes(work, ["rsa"], n)))
            for n in (2, 16)
        ]
        found = [re.findall(r"= ([\d.,]+) (\w+)", fact["activation"]) for fact in said]
        assert found[0][0] == found[1][0]
        assert len({unit for pair in found for _, unit in pair}) == 1
