"""DSP's planner: never a byte more than brute force, never the attended axis, late switches."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spbench.strategies.base import Strategy, switches
from spbench.strategies.dsp import DSP
from spbench.strategies.registry import load
from spbench.workload.catalogue import find
from spbench.workload.load import with_settings
from spbench.workload.workload import Workload

AXES = ("a", "b", "c", "d")


@st.composite
def stacks(draw: st.DrawFn) -> tuple[Workload, int]:
    """Up to 4 axes of any length and up to 8 sublayers, with the ranks that share them."""
    names = AXES[: draw(st.integers(2, 4))]
    axes = {name: draw(st.integers(2, 9)) for name in names}
    kinds = [{"attention": name} for name in names] + [{"mlp": 1.0}]
    length, depth = draw(st.sampled_from([(1, 4), (2, 3), (3, 2), (4, 2), (5, 1), (8, 1)]))
    block = draw(st.lists(st.sampled_from(kinds), min_size=length, max_size=length))
    work = Workload.model_validate(
        {
            "name": "stack",
            "axes": axes,
            "hidden": 2,
            "heads": 1,
            "depth": depth,
            "block": block,
            "mode": draw(st.sampled_from(["train", "forward"])),
            "checkpointing": draw(st.sampled_from(["none", "full"])),
        }
    )
    return work, draw(st.integers(2, 4))


def bytes_of(work: Workload, ranks: int, layout: tuple[str, ...]) -> float:
    """What the slowest rank sends in a step, switch by switch, gradients apart."""

    class Fixed(Strategy):
        def why_not(self, workload: Workload, ranks: int) -> str | None:
            return None

        def layout(self, workload: Workload, ranks: int) -> tuple[str, ...]:
            return layout

    transfers = Fixed().traffic(work, ranks)
    return float(sum(max(t.sent) for t in transfers if t.phase != "gradients"))


@settings(max_examples=150)
@given(stacks())
def test_never_a_byte_more_than_brute_force(case: tuple[Workload, int]) -> None:
    """Of all layouts that never shard the attended axis, none sends less."""
    work, ranks = case
    if DSP().why_not(work, ranks) is not None:
        return
    layout = DSP().layout(work, ranks)
    choices = []
    for sublayer, axis in zip(work.stack, layout, strict=True):
        attended = sublayer.attended
        assert axis not in attended
        choices.append([a for a, n in work.axes.items() if a not in attended and n >= ranks])
    if len(work.stack) > 6 and len(work.axes) > 3:
        choices = [each[:2] if len(each) > 2 else each for each in choices]
    least = min(bytes_of(work, ranks, option) for option in itertools.product(*choices))
    assert bytes_of(work, ranks, layout) <= least * (1 + 1e-12)


def test_two_switches_a_layer_less_the_last() -> None:
    """time/space: one switch to each attention, none before the first, none after the last."""
    work = find("dsp-720m")
    layout = load("dsp").layout(work, 8)
    assert switches(layout) == 2 * work.depth - 1
    assert layout[:8] == ("time", "space", "space", "space") * 2


@pytest.mark.parametrize("rounds", [2, 4, 10])
def test_three_axes_need_one_and_a_half_switches_a_round(rounds: int) -> None:
    """K/(K-1) switches a round of K axes."""
    settings_ = ["axes={time: 12, height: 12, width: 12}", f"depth={rounds}"]
    work = with_settings(find("earthformer"), settings_)
    layout = load("dsp").layout(work, 4)
    assert switches(layout) == 3 * rounds // 2 - 1


def test_switches_come_as_late_as_they_can() -> None:
    """After the attention, whatever runs on any shard stays on the one at hand."""
    work = find("open-sora-1.2-480p")
    assert load("dsp").layout(work, 2)[:6] == ("time",) * 3 + ("space",) * 3


def test_short_axes_are_not_sharded() -> None:
    """With 16 ranks and 13 time steps the planner gets by with height and width."""
    layout = load("dsp").layout(find("earthformer"), 16)
    assert set(layout) == {"height", "width"}


def test_one_axis_is_not_enough() -> None:
    """DSP says that it needs a second sequence axis."""
    work = with_settings(
        find("axes-2d", "verify"), ["axes={text: 64}", "block=[{attention: text}, {mlp: 4}]"]
    )
    why = load("dsp").why_not(work, 2)
    assert why is not None
    assert "second sequence axis" in why
    assert load("ulysses").why_not(work, 2) is None
