"""Axes that are only attended jointly, as one: which they are, and that nothing else changes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from helpers.examples import examples
from helpers.golden import Golden
from hypothesis import given
from hypothesis import strategies as st

from spbench.strategies.describe import predictions
from spbench.strategies.registry import in_mesh, load
from spbench.workload.case import Case, Cell
from spbench.workload.catalogue import find
from spbench.workload.flattened import as_given, flattened
from spbench.workload.flops import parameters, step_flops
from spbench.workload.mesh import CaseMesh
from spbench.workload.reduced import reductions
from spbench.workload.workload import Workload

AXES = {"time": 5, "height": 6, "width": 7}
SIZES = ("tokens", "all_tokens", "activation_bytes", "key_bytes", "context_tokens", "out_channels")


def joint(*attended: list[str], **fields: Any) -> Workload:
    """Attention along these axes in turn."""
    block = [*({"attention": axes} for axes in attended), {"mlp": 2}]
    data = {"name": "joint", "axes": AXES, "hidden": 48, "heads": 4, "depth": 1, "block": block}
    return Workload.model_validate(data | fields)


@pytest.mark.parametrize(
    ("attended", "axes"),
    [
        ([["time", "height", "width"]], {"time x height x width": 210}),
        ([["width", "time", "height"]], {"time x height x width": 210}),
        ([["time", "height", "width"], ["time"]], {"time": 5, "height x width": 42}),
        ([["height", "width"], ["time"]], {"time": 5, "height x width": 42}),
        ([["time"]], {"time": 5, "height x width": 42}),
        ([["time", "width"], ["height"]], AXES),
        ([["time"], ["height"], ["width"]], AXES),
        ([["time", "height"], ["height", "width"]], AXES),
        ([], {"time x height x width": 210}),
    ],
)
def test_neighbours_that_no_attention_has_apart_are_one(
    attended: list[list[str]], axes: dict[str, int]
) -> None:
    """In tensor order, however they are listed; an axis between two others keeps them apart."""
    work = joint(*attended)
    one = flattened(work)
    assert list(one.axes.items()) == list(axes.items())
    assert one.coordinates == AXES
    assert flattened(one) == one
    assert as_given(one) == joint(*([x for x in AXES if x in each] for each in attended))
    assert (one == work) == (len(axes) == 3)


def test_an_axis_that_is_named_stays(golden: Golden) -> None:
    """``shard-axis`` cuts an axis of the model as it did, or the axes that are one by their name;
    an unknown one is answered with both."""
    work = joint(["time", "height", "width"])
    for axis in AXES:
        named = load(f"ulysses:shard-axis={axis}")
        assert named.flattened(work) == work
        assert named.on(named.flattened(work), 2).layout == (axis, axis)
    every = load("ring:shard-axis=time x height x width")
    assert every.declines(work, 200) is None
    golden(every.on(every.flattened(work), 200).layout[0])
    golden(load("usp:shard-axis=depth").declines(work, 2), "second")
    groups = in_mesh("ulysses:shard-axis=width", CaseMesh(cfg=2))
    assert groups.flattened(joint(["time", "height", "width"], guidance=2)).axes == AXES


def test_why_not_counts_positions_in_a_row(golden: Golden) -> None:
    """More ranks than any axis has run; more than all positions are told how many there are."""
    work = joint(["time", "height", "width"])
    for name in ("rsa", "ring", "kv-gather", "attention-2d", "usp"):
        assert load(name).declines(work, 64) is None
        golden(load(name).declines(work, 256), name)
    golden(load("dsp").declines(work, 2), "second")


def test_dsp_switches_between_an_axis_and_the_rest_in_a_row() -> None:
    """Attention over height and width, then time: the rest is long enough for 42 ranks at once."""
    work = joint(["height", "width"], ["time"], axes={"time": 42, "height": 6, "width": 7})
    dsp = load("dsp")
    assert dsp.declines(work, 42) is None
    assert dsp.on(dsp.flattened(work), 42).layout[:2] == ("time", "height x width")


def test_a_case_is_named_by_the_axes_of_the_model() -> None:
    """Its key is that of its file, and a workload on other axes is not written."""
    work = joint(["time", "height", "width"])
    case = Case(workload=work, strategy="ulysses", ranks=2, device="cpu")
    one = case.model_copy(update={"workload": as_given(flattened(work))})
    assert case.key == one.key and case.workload_key == one.workload_key


@pytest.mark.parametrize("modulation", ["none", "per_sample", "per_time", "per_token"])
@pytest.mark.parametrize("positions", ["none", "rotary", "learned"])
def test_sizes_stay(positions: str, modulation: str) -> None:
    """Parameters, operations and bytes are those of the axes apart."""
    work = joint(["time", "height", "width"], positions=positions, modulation=modulation)
    one = flattened(work)
    assert parameters(one) == parameters(work)
    assert step_flops(one) == step_flops(work)
    assert [getattr(one, size) for size in SIZES] == [getattr(work, size) for size in SIZES]


@examples(200)
@given(lengths=st.tuples(*[st.integers(1, 60)] * 3), ranks=st.integers(2, 70), causal=st.booleans())
def test_reduced_ones_are_as_uneven(
    lengths: tuple[int, int, int], ranks: int, causal: bool
) -> None:
    """Each leaves the ranks the remainder of all positions, and can run; the last has few."""
    block = [{"attention": list(AXES), "causal": causal}, {"mlp": 2}]
    axes = dict(zip(AXES, lengths, strict=True))
    work = flattened(joint(axes=axes, block=block))
    parts, whole = 2 * ranks if causal else ranks, math.prod(lengths)
    for reduced in (last := [*reductions(work, ranks)]):
        assert reduced.coordinates.keys() == AXES.keys() and len(reduced.axes) == 1
        assert reduced.tokens % parts == whole % parts
        assert all(n <= axes[axis] for axis, n in reduced.coordinates.items())
        assert reduced.tokens >= min(whole, 2 * parts)
    assert last[-1].tokens <= max(whole % parts + 2 * parts, 5 * 5 * 5 * parts)


def test_a_video_on_64_ranks_is_reduced_to_few_positions(golden: Golden) -> None:
    """21 x 30 x 52 positions are 56 more than a multiple of 64, and so are 184."""
    axes = {"time": 21, "height": 30, "width": 52}
    *_, last = reductions(flattened(joint(list(axes), axes=axes)), 64)
    assert last.tokens == 184
    golden(last.name)


def test_axial_workloads_are_as_they_were() -> None:
    """The DSP paper's model has no axes that are one: it is the very same."""
    work = find("dsp-720m")
    assert flattened(work) == work


def test_a_layout_in_words_parts_axes_of_several_words(golden: Golden) -> None:
    """Axes that are one are parted by commas from those beside them."""
    work = joint(["height", "width"], ["time"])
    (told,) = predictions([Cell(case=case_of(work), why_not=None)]).values()
    golden(told.sharded)


def case_of(work: Workload) -> Case:
    return Case(workload=work, strategy="dsp", ranks=2, device="cpu")
