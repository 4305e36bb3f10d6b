"""Workloads and cases as data: refusals, derived sizes, the fields in a key."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.golden import Golden
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from spbench.workload.block import Attention, CrossAttention, Mlp
from spbench.workload.case import QUICK, Case
from spbench.workload.flops import step_flops
from spbench.workload.misfits import MIN_HIDDEN
from spbench.workload.reduced import reductions
from spbench.workload.traffic import shared_length
from spbench.workload.workload import Workload

SIZES = st.integers(4, 2**17)
LENGTHS = st.integers(1, 5000)
PLAIN: dict[str, Any] = {
    "name": "plain",
    "axes": {"time": 8, "space": 12},
    "hidden": 48,
    "heads": 6,
    "depth": 3,
    "block": [{"attention": "space"}, {"attention": "time"}, {"cross_attention": 9}, {"mlp": 2.5}],
}


JOINT: dict[str, Any] = {"attention": ["time", "space"]}


def workload(**more: Any) -> Workload:
    return Workload.model_validate(PLAIN | more)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 2),
        ("name", ""),
        ("name", 5),
        ("axes", {}),
        ("axes", {"time": 0, "space": 4}),
        ("axes", {"time": 2.0, "space": 4}),
        ("hidden", -48),
        ("hidden", "48"),
        ("hidden", 2**40),
        ("heads", 0),
        ("heads", True),
        ("depth", 0),
        ("depth", 10**6),
        ("batch", 0),
        ("block", []),
        ("block", [{"attention": 5}]),
        ("block", [{"cross_attention": 0}]),
        ("block", [{"mlp": 0}]),
        ("block", [{"mlp": float("nan")}]),
        ("block", [{"mlp": float("inf")}]),
        ("block", [{"mlp": 1e308}]),
        ("block", [{"pool": 2}]),
        ("block", [{"mlp": 4, "attention": "time"}]),
        ("modulation", "per_space"),
        ("dtype", "float8"),
        ("mode", "training"),
        ("checkpointing", True),
        ("optimizer", "adam"),
        ("colour", "red"),
    ],
)
def test_fields_out_of_range_are_refused(field: str, value: object) -> None:
    """Zero, negative, huge, the wrong type or an unknown word never becomes a workload."""
    with pytest.raises(ValidationError):
        workload(**{field: value})


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"heads": 5}, "heads that fit: 1, 2, 3, 4, 6, 8, 12, 16, 24, 48"),
        ({"block": [{"attention": "width"}]}, "unknown axis 'width'; the axes are time, space"),
        (
            {"axes": {"space": 4}, "block": [{"mlp": 4}], "modulation": "per_time"},
            "needs an axis named time",
        ),
        ({"block": [{"mlp": 0.01}]}, "leaves no columns of 48"),
        ({"optimizer": "adamw", "mode": "forward"}, "optimizer adamw needs mode train"),
        ({"text": 7}, r"text 7 .* write attention: \[time, space\], or text: 0"),
        ({"text": 7, "block": [{"mlp": 4}]}, "text 7 needs a self-attention; write '- attention"),
        ({"block": [{"mlp": 4, "double": True}]}, "say how many, as in text: 256"),
        ({"block": [JOINT | {"double": True}]}, "say how many, as in text: 256"),
        (
            {"text": 7, "block": [JOINT | {"causal": True}]},
            "text 7 cannot take part in an attention with causal; leave that out, or write text: 0",
        ),
        (
            {"text": 7, "block": [JOINT], "modulation": "per_time"},
            "text 7 has no vectors under modulation per_time, .* use per_sample or none",
        ),
    ],
)
def test_what_does_not_fit_together_says_what_would(more: dict[str, Any], message: str) -> None:
    """The message names the values, and the valid ones where they can be listed."""
    with pytest.raises(ValidationError, match=message):
        workload(**more)


def test_a_workload_cannot_be_changed() -> None:
    """Fields are frozen; another workload is made by copying."""
    with pytest.raises(ValidationError):
        workload().depth = 4  # type: ignore[misc]


def test_what_is_derived() -> None:
    """Derived sizes equal those worked out by hand."""
    work = workload(batch=2, dtype="bfloat16")
    assert [attention.axes for attention in work.attentions] == [("space",), ("time",)]
    assert work.stack == work.block * 3
    assert work.block == (
        Attention(axes=("space",)),
        Attention(axes=("time",)),
        CrossAttention(length=9),
        Mlp(ratio=2.5),
    )
    assert (work.head_size, work.tokens, work.context_tokens) == (8, 96, 9)
    assert work.activation_bytes == 2 * 96 * 48 * 2
    assert (work.dim("time"), work.dim("space")) == (1, 2)
    assert workload(block=[{"mlp": 4}]).context_tokens == 0


def test_text_takes_part_in_attention() -> None:
    """Sequences and bytes of attention have its tokens, the activation has not."""
    work, without = (workload(block=[JOINT], text=text, batch=2) for text in (7, 0))
    assert (work.tokens, work.all_tokens, without.all_tokens) == (96, 103, 96)
    assert [each.length(each.attentions[0]) for each in (work, without)] == [103, 96]
    assert [shared_length(each, "time") for each in (work, without)] == [103, 8]
    assert work.key_bytes * 96 == without.key_bytes * 103
    assert work.activation_bytes == without.activation_bytes


def test_a_twin_has_few_tokens_of_text() -> None:
    """With the same remainder modulo the ranks, so that shards are as uneven."""
    *_, reduced = reductions(workload(block=[JOINT], text=515), 4)
    assert reduced.text == 11
    assert "text 11 of 515" in reduced.name


TWO: list[dict[str, Any]] = [
    {"depth": 20, "block": [{"attention": "space"}, {"cross_attention": 9}, {"mlp": 2}]},
    {"depth": 2, "block": [{"attention": "time"}]},
]


def stacked(**more: Any) -> Workload:
    fields = {key: value for key, value in PLAIN.items() if key not in ("depth", "block")}
    return Workload.model_validate({**fields, "stacks": TWO, **more})


def test_stacks_run_one_after_another() -> None:
    """Every block of the first, then those of the second."""
    work = stacked()
    assert [part.depth for part in work.parts] == [20, 2]
    assert work.stack == work.parts[0].block * 20 + work.parts[1].block * 2
    assert (work.blocks, work.depth, work.depth_in_words) == (22, None, "20 + 2")
    firsts = [i for i, place in enumerate(work.places) if place.is_first]
    assert firsts == [*range(0, 60, 3), 60, 61]
    assert [each.axes for each in work.attentions] == [("space",), ("time",)]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"depth": 2}, "each of the stacks has a depth of its own; leave out depth"),
        ({"block": [{"mlp": 4}]}, "each of the stacks has a block of its own; leave out block"),
        ({"stacks": None}, "key 'depth' is missing"),
        ({"stacks": None, "depth": 2}, "key 'block' is missing"),
        ({"stacks": [TWO[0], {"depth": 9, "block": [{"attention": "room"}]}]}, "axis 'room'"),
        (
            {"stacks": [{"depth": 1000, "block": [{"mlp": 4}] * 6}] * 2},
            "6 sublayers x depth 1000 . 6 sublayers x depth 1000 are 12000",
        ),
    ],
)
def test_stacks_that_do_not_fit(more: dict[str, Any], message: str) -> None:
    """One of both forms is given, and each block of each stack is checked."""
    with pytest.raises(ValidationError, match=message):
        stacked(**more)


def test_a_twin_has_some_blocks_of_each_stack(golden: Golden) -> None:
    """Three of each at most, and short side inputs in all of them."""
    first, *_, last = reductions(stacked(), 2)
    golden(first.name)
    assert [part.depth for part in last.parts] == [3, 2]
    assert last.context_tokens == 7
    golden(last.name, "second")


def test_a_key_is_of_what_is_computed() -> None:
    """One stack is the short form; another order of stacks is another case."""
    alone = [{"depth": PLAIN["depth"], "block": PLAIN["block"]}]
    assert case(workload=stacked(stacks=alone)).key == case().key
    assert case(workload=stacked()).key != case(workload=stacked(stacks=TWO[::-1])).key


def test_branches_of_guidance_are_a_batch() -> None:
    """Two branches of three samples compute and send what six samples do."""
    guided, batched = workload(batch=3, guidance=2), workload(batch=6)
    assert (guided.batch, guided.samples, batched.samples) == (3, 6, 6)
    assert (guided.activation_bytes, guided.key_bytes) == (
        batched.activation_bytes,
        batched.key_bytes,
    )
    assert step_flops(guided) == step_flops(batched)


def test_heads_of_a_size_of_their_own() -> None:
    """Queries, keys and results go by heads x head_dim; activations at rest stay hidden wide."""
    work = workload(hidden=20, head_dim=12, kv_heads=2, dtype="bfloat16")
    assert (work.attention_width, work.head_size) == (72, 12)
    assert (work.query_bytes, work.key_bytes) == (96 * 72 * 2, 96 * 24 * 2)
    assert work.activation_bytes == 96 * 20 * 2
    assert work.cross_heads(CrossAttention(length=3)) == (6, 12)
    assert work.cross_heads(CrossAttention(length=3, heads=5)) == (5, 4)


def test_a_twin_shrinks_hidden_with_its_heads() -> None:
    """Where heads have a size of their own, hidden keeps its ratio to it."""
    *_, reduced = reductions(workload(hidden=2 * 672, heads=8, head_dim=128), 2)
    assert (reduced.heads, reduced.head_dim, reduced.hidden) == (8, 8, 84)


@pytest.mark.parametrize(("hidden", "channels"), [(1152, 32), (2048, 56), (48, 8), (288, 8)])
def test_out_channels(hidden: int, channels: int) -> None:
    """36 times fewer than hidden, as 1152 gives 32, and never fewer than 8."""
    assert workload(hidden=hidden, heads=2).out_channels == channels


@pytest.mark.parametrize(("ratio", "columns"), [(4, 192), (2.5, 120), (2.6, 125), (0.011, 1)])
def test_columns_of_an_mlp(ratio: float, columns: int) -> None:
    """The ratio times hidden, to the nearest whole column."""
    work = workload(block=[{"mlp": ratio}])
    (mlp,) = work.block
    assert isinstance(mlp, Mlp)
    assert work.columns(mlp) == columns


PUBLISHED = [(5120, 13824), (1536, 8960), (3072, 14336), (5376, 14336), (4096, 10944)]
PUBLISHED += [(4096, 11264), (3584, 18944), (5120, 25600), (8192, 28672), (16384, 53248)]


@given(st.one_of(st.sampled_from(PUBLISHED), st.tuples(SIZES, SIZES)))
def test_a_ratio_gives_any_width_exactly(sizes: tuple[int, int]) -> None:
    """A width in place of the ratio is refused with a ratio that gives just these columns."""
    hidden, columns = sizes
    assume(64 < columns <= 64 * hidden)
    with pytest.raises(ValidationError, match="write mlp: ") as refused:
        workload(hidden=hidden, heads=1, block=[{"mlp": columns}])
    ratio = float(str(refused.value).split("write mlp: ")[1].split()[0])
    work = workload(hidden=hidden, heads=1, block=[{"mlp": ratio}])
    assert work.columns(work.mlps[0]) == columns


@given(LENGTHS, LENGTHS, st.integers(1, 16), st.integers(1, 64), st.integers(1, 40))
def test_a_twin_keeps_what_makes_shards_uneven(
    time: int, space: int, heads: int, head_dim: int, ranks: int
) -> None:
    """Reduced axes keep their remainders modulo ranks, heads their number; all else shrinks."""
    assume(heads * head_dim >= MIN_HIDDEN)
    work = workload(axes={"time": time, "space": space}, heads=heads, hidden=heads * head_dim)
    *_, reduced = reductions(work, ranks)
    assert Workload.model_validate(reduced.model_dump(by_alias=True)) == reduced
    for axis, length in work.axes.items():
        assert reduced.axes[axis] % ranks == length % ranks
        assert reduced.axes[axis] <= min(length, 3 * ranks)
        assert (reduced.axes[axis] >= ranks) == (length >= ranks)
    assert reduced.heads == work.heads
    assert reduced.head_size == min(8, work.head_size)
    assert reduced.depth == min(3, work.depth)
    assert [type(s) for s in reduced.block] == [type(s) for s in work.block]
    assert reduced.context_tokens <= 7


def case(**more: Any) -> Case:
    fields = {"workload": workload(), "strategy": "dsp", "ranks": 4, "device": "cpu"}
    return Case.model_validate(fields | more)


def test_a_key_ignores_how_often_and_how_long() -> None:
    """The launch, the measurement budget and the workload's source are not part of the key."""
    same = [case(launch=3), case(effort=QUICK), case(workload=workload(source="a paper"))]
    assert {each.key for each in same} == {case().key}
    assert len(case().key) == 16
    assert int(case().key, 16) >= 0


@pytest.mark.parametrize(
    "more",
    [
        {"strategy": "dsp:x"},
        {"ranks": 5},
        {"device": "cuda"},
        {"kind": "one_gpu_share"},
        {"seed": 1},
    ],
)
def test_a_key_tells_cases_apart(more: dict[str, Any]) -> None:
    """Strategy, ranks, device, kind and seed are part of the key."""
    assert case(**more).key != case().key


@pytest.mark.parametrize(
    "more",
    [
        {"name": "other"},
        {"axes": {"time": 8, "space": 13}},
        {"axes": {"time": 8, "room": 12, "space": 12}},
        {"hidden": 96},
        {"heads": 3},
        {"head_dim": 12},
        {"qk_norm": "across_heads"},
        {"depth": 2},
        {"block": PLAIN["block"][::-1]},
        {"modulation": "per_time"},
        {"batch": 2},
        {"guidance": 2},
        {"text": 7, "block": [JOINT]},
        {"dtype": "float64"},
        {"mode": "forward"},
        {"checkpointing": "full"},
        {"optimizer": "adamw"},
    ],
)
def test_a_key_depends_on_every_field_of_the_workload(more: dict[str, Any]) -> None:
    """Each field that decides what is computed gives another key."""
    fields = set(Workload.model_fields) - {"version", "source"}
    assert more.keys() <= fields
    assert case(workload=workload(**more)).key != case().key


def test_keys_of_steps_without_an_optimizer_stay() -> None:
    """They are those of versions that knew no optimizer."""
    assert case(workload=workload(optimizer="none")).key == case().key
    assert "optimizer" not in case().model_dump_json(by_alias=True, exclude_defaults=True)


def test_a_key_knows_no_head_dim_that_changes_nothing() -> None:
    """Heads of hidden over heads, said or not, are one case."""
    assert case(workload=workload(head_dim=8)).key == case().key


def test_a_key_survives_writing_and_reading() -> None:
    """Equivalent spellings (4 and 4.0, a mapping and a model) give one key."""
    read = Case.model_validate_json(case().model_dump_json(by_alias=True))
    assert read.key == case().key
    whole = [workload(block=[{"mlp": ratio}]) for ratio in (4, 4.0)]
    assert case(workload=whole[0]).key == case(workload=whole[1]).key


def test_a_label_names_strategy_and_ranks() -> None:
    """A case's label has its strategy and ranks."""
    assert case().label == "dsp on 4"
