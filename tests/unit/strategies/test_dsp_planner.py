"""DSP's planner: never a byte more than brute force, never the attended axis, late switches."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers.examples import examples
from helpers.golden import Golden
from helpers.plan_check import why_not_cheapest
from helpers.variants import suited
from hypothesis import assume, given
from hypothesis import strategies as st

from spbench.strategies.dsp import DSP
from spbench.strategies.registry import BUILT_IN, EXCHANGES, load
from spbench.workload.block import Attention, Sublayer
from spbench.workload.catalogue import find, with_settings
from spbench.workload.sharding import shard_sizes
from spbench.workload.traffic import waited_bytes
from spbench.workload.workload import Workload

AXES = ("a", "b", "c", "d")
STACKS = 2000


@st.composite
def forms(draw: st.DrawFn, kinds: st.SearchStrategy[object]) -> dict[str, object]:
    """Up to 8 sublayers: some blocks of one kind, or two stacks."""

    def stack(length: int, depth: int) -> dict[str, object]:
        return {"depth": depth, "block": draw(st.lists(kinds, min_size=length, max_size=length))}

    if draw(st.integers(0, 3)):
        return stack(*draw(st.sampled_from([(1, 4), (2, 4), (3, 2), (4, 2), (5, 1), (8, 1)])))
    sizes = st.sampled_from([(1, 2), (2, 2), (3, 1), (4, 1)])
    return {"stacks": [stack(*draw(sizes)) for _ in range(2)]}


@st.composite
def stacks(draw: st.DrawFn) -> tuple[Workload, int]:
    """Up to 4 axes of any length and up to 8 sublayers, with the ranks that share them.

    Attention goes along one axis, some joined or all joined, with grouped queries.
    """
    names = AXES[: draw(st.integers(2, 4))]
    axes = {name: draw(st.integers(2, 9)) for name in names}
    joined = st.lists(st.sampled_from(names), min_size=2, max_size=len(names), unique=True)
    kinds = st.one_of(
        st.sampled_from([*({"attention": name} for name in names), {"mlp": 1.0}]),
        joined.map(lambda some: {"attention": some}),
        st.just({"attention": list(names)}),
    )
    key_heads = draw(st.sampled_from([1, 3, 6]))
    work = Workload.model_validate(
        {
            "name": "stack",
            "axes": axes,
            "hidden": 12,
            "heads": 6,
            "kv_heads": key_heads,
            **draw(forms(kinds)),
            "mode": draw(st.sampled_from(["train", "forward"])),
            "checkpointing": draw(st.sampled_from(["none", "full", "selective"])),
        }
    )
    return work, draw(st.integers(2, 4))


def brute_force(work: Workload, ranks: int) -> tuple[float, dict[tuple[str, ...], float]]:
    """The fewest bytes that a step waits for over all layouts, and the bytes of each layout.

    Each transfer counts as much as its own busiest rank sends. Written down anew: each switch
    once forward and once backward, once more under checkpointing unless it leads into a block;
    heads shared out likewise.
    """
    train, again = work.mode == "train", work.checkpointing == "full"
    choices = [allowed(sublayer, work, ranks) for sublayer in work.stack]
    grids = np.meshgrid(*[np.arange(len(each)) for each in choices], indexing="ij")
    total = np.zeros(grids[0].shape)
    for i, (sublayer, is_first, _) in enumerate(work.places):
        inside = np.array([of_heads(sublayer, work, axis, ranks) for axis in choices[i]])
        total += inside[grids[i]]
        if not i:
            continue
        moves = np.zeros((len(choices[i - 1]), len(choices[i])))
        for (m, a), (n, b) in itertools.product(enumerate(choices[i - 1]), enumerate(choices[i])):
            if a != b:
                there, back = one_switch(work, a, b, ranks), one_switch(work, b, a, ranks)
                repeated = again and not is_first
                moves[m, n] = there + train * (back + repeated * there)
        total += moves[grids[i - 1], grids[i]]
    layouts = itertools.product(*choices)
    return float(total.min()), dict(zip(layouts, total.ravel(), strict=True))


def allowed(sublayer: Sublayer, work: Workload, ranks: int) -> list[str]:
    joins_all = set(sublayer.attended) == set(work.axes)
    return [
        axis
        for axis, length in work.axes.items()
        if length >= ranks and (joins_all or axis not in sublayer.attended)
    ]


def one_switch(work: Workload, before: str, after: str, ranks: int) -> float:
    """Bytes of one switch that the busiest rank sends: its part of M, less what stays with it."""
    held, kept = (shard_sizes(work.axes[axis], ranks) for axis in (before, after))
    whole = work.axes[before] * work.axes[after]
    M = work.activation_bytes
    return max(h * (sum(kept) - k) / whole * M for h, k in zip(held, kept, strict=True))


def of_heads(sublayer: Sublayer, work: Workload, axis: str, ranks: int) -> float:
    """Bytes of q, k and v to the ranks' heads and of the result back, in forward and backward."""
    if axis not in sublayer.attended:
        return 0.0
    group = work.heads // work.key_heads
    queries = shard_sizes(work.heads, ranks)
    whole_groups = [group * count for count in shard_sizes(work.key_heads, ranks)]
    if min(whole_groups) and max(whole_groups) == max(queries):
        queries = tuple(whole_groups)
    starts = [sum(queries[:rank]) for rank in range(ranks)]
    keys = [
        len({head // group for head in range(start, start + count)})
        for start, count in zip(starts, queries, strict=True)
    ]
    held, length = shard_sizes(work.axes[axis], ranks), work.axes[axis]
    one_head = work.activation_bytes / length / work.heads  # of one position of the axis
    to_heads = [
        h * (sum(queries) - q + 2 * (sum(keys) - k))
        for h, q, k in zip(held, queries, keys, strict=True)
    ]
    back_q = [q * (length - h) for h, q in zip(held, queries, strict=True)]
    there_q = [h * (sum(queries) - q) for h, q in zip(held, queries, strict=True)]
    from_heads = [(q + 2 * k) * (length - h) for h, q, k in zip(held, queries, keys, strict=True)]
    forward = one_head * (max(to_heads) + max(back_q))
    backward = one_head * (max(there_q) + max(from_heads))
    if work.mode == "forward":
        return forward
    # The result's way home is not sent again where attention alone is computed again.
    again = {"none": 0.0, "full": forward, "selective": one_head * max(to_heads)}
    return forward + backward + again[work.checkpointing]


@examples(STACKS)
@given(stacks())
def test_never_a_byte_more_than_brute_force(case: tuple[Workload, int]) -> None:
    """No layout that never shards the attended axis sends less."""
    (work, ranks), dsp = case, DSP(across="ulysses")
    assume(dsp.why_not(work, ranks) is None)
    # Where no single axis is long enough two are sharded at once, which brute force leaves out.
    assume(all(allowed(sublayer, work, ranks) for sublayer in work.stack))
    layout = dsp.on(work, ranks).layout
    least, every = brute_force(work, ranks)
    assert every[layout] <= least * (1 + 1e-12)
    counted = sum(max(t.sent) for t in dsp.on(work, ranks).traffic if t.phase != "gradients")
    assert float(counted) == pytest.approx(every[layout], rel=1e-12)


def switches(layout: tuple[str, ...]) -> int:
    return sum(a != b for a, b in itertools.pairwise(layout))


def test_two_switches_a_layer_less_the_last() -> None:
    """time/space: one switch to each attention, none before the first, none after the last."""
    work = find("dsp-720m")
    layout = load("dsp").on(work, 8).layout
    assert switches(layout) == 2 * work.depth - 1
    assert layout[:8] == ("time", "space", "space", "space") * 2


@pytest.mark.parametrize("rounds", [2, 4, 10])
@pytest.mark.parametrize("name", ["earthformer", "axial-weather"])
def test_three_axes_need_one_and_a_half_switches_a_round(name: str, rounds: int) -> None:
    """A round of K axes takes K/(K-1) switches."""
    work = find(name)
    axes = "{" + ", ".join(f"{axis}: 12" for axis in work.axes) + "}"
    layout = load("dsp").on(with_settings(work, [f"axes={axes}", f"depth={rounds}"]), 4).layout
    assert switches(layout) == 3 * rounds // 2 - 1


def test_switches_come_as_late_as_they_can() -> None:
    """Sublayers that run on any shard stay on the one that the attention before them had."""
    work = find("open-sora-1.2-480p")
    assert load("dsp").on(work, 2).layout[:6] == ("time",) * 3 + ("space",) * 3


def test_short_axes_are_not_sharded() -> None:
    """With 16 ranks and 13 time steps the planner shards height and width alone."""
    layout = load("dsp").on(find("earthformer"), 16).layout
    assert set(layout) == {"height", "width"}


def test_one_axis_is_not_enough(golden: Golden) -> None:
    """DSP needs a second sequence axis and says so; strategies with a fixed axis work."""
    for name in ("bert-base", "gpt-7b", "llama3-8b"):
        why = load("dsp").why_not(find(name), 2)
        assert why is not None
        golden(why, name)
        assert all(load(s).why_not(find(name), 2) is None for s in ("ulysses", "megatron-sp"))


def test_all_axes_joined_leave_nothing_to_shard(golden: Golden) -> None:
    """Full 3D attention and nothing else: DSP declines and says why."""
    why = load("dsp").why_not(find("hunyuan-like"), 8)
    assert why is not None
    golden(why)


@examples(100)
@given(stacks())
def test_what_attends_to_all_axes_sends_least(case: tuple[Workload, int]) -> None:
    """By default no other exchange would send less in a step, switches and all."""
    work, ranks = case
    assume(DSP().why_not(work, ranks) is None)
    each = [DSP(across=name) for name in EXCHANGES]
    sent = [waited_bytes(x.on(work, ranks).traffic) for x in each if not x.why_not(work, ranks)]
    assert waited_bytes(DSP().on(work, ranks).traffic) == pytest.approx(min(sent), rel=1e-9)
    assert why_not_cheapest(DSP(), work, ranks) is None


def test_what_attends_to_all_axes_depends_on_heads(golden: Golden) -> None:
    """Ulysses where heads suffice; where they do not or keys are few, a gather or groups; none
    but Ulysses keeps positions in order under a causal mask."""
    work = with_settings(
        find("mixed", "verify"),
        ["block=[{attention: time}, {mlp: 2}, {attention: [time, height, width]}]", "kv_heads=8"],
    )
    chosen = {
        settings: load("dsp").on(with_settings(work, list(settings)), 4).strategy
        for settings in ((), ("kv_heads=1", "heads=16"), ("heads=2", "kv_heads=2"))
    }
    assert [each.across for each in chosen.values()] == ["ulysses", "kv-gather", "usp"]
    masked = find("mixed", "verify")
    assert load("dsp").on(masked, 4).strategy.across == "ulysses"
    why = load("dsp:across=ring").why_not(masked, 4)
    assert why is not None
    golden(why)


def test_joint_attention_among_others_shares_its_heads(golden: Golden) -> None:
    """A mixed stack runs: axial sublayers by switching, the joint one by heads, and says so."""
    work, dsp = find("mixed", "verify"), load("dsp")
    assert dsp.why_not(work, 4) is None
    golden(dsp.on(work, 4).notes, "notes")
    assert not dsp.on(find("dsp-720m"), 4).notes
    layout = dsp.on(work, 4).layout
    for sublayer, axis in zip(work.stack, layout, strict=True):
        joint = isinstance(sublayer, Attention) and len(sublayer.axes) == len(work.axes)
        sent = dsp.on(work, 4).sublayer_traffic(sublayer, axis)[0]
        assert bool(sent) == joint
        assert joint or axis not in sublayer.attended
    why = dsp.why_not(work.model_copy(update={"heads": 2, "kv_heads": 2}), 4)
    assert why is not None
    golden(why, "of few heads")


def test_timesformer_on_eight_ranks() -> None:
    """8 frames fit 8 ranks, 196 patches and 12 heads do not divide: no strategy declines."""
    work = find("timesformer")
    for name in BUILT_IN:
        assert load(name).why_not(suited(name, work), 8) is None
    assert set(load("dsp").on(work, 8).layout) == {"time", "space"}
