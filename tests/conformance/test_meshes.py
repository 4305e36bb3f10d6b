"""Strategies whose ranks exchange in groups equal one device, with the bytes of each axis."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from helpers.complaints import DIFFERS
from helpers.examples import ALL
from helpers.gate_on_threads import prove, why_wrong
from helpers.golden import Golden
from torch import nn

from spbench.comm.transport import Transport
from spbench.layers import blockwise
from spbench.layers.blockwise import Part, merge
from spbench.layers.linear import part_of
from spbench.strategies.registry import load
from spbench.worker import step as timed_step
from spbench.workload.catalogue import find, with_settings
from spbench.workload.mesh import Groups, Mesh
from spbench.workload.sharding import Shard
from spbench.workload.traffic import count
from spbench.workload.workload import Workload


def work(name: str, **fields: object) -> Workload:
    return Workload.model_validate({"name": name, "depth": 1, "dtype": "float64", **fields})


UNEVEN_HEADS = work(
    "uneven heads",
    axes={"space": 26},
    hidden=20,
    heads=5,
    block=[{"attention": "space"}, {"mlp": 2}],
    batch=2,
)
CAUSAL_GROUPS = work(
    "causal, grouped",
    axes={"space": 37},
    hidden=24,
    heads=6,
    kv_heads=2,
    block=[{"attention": "space", "causal": True}],
)
JOINT = work(
    "joint",
    axes={"time": 13, "space": 5},
    hidden=28,
    heads=7,
    block=[{"attention": ["time", "space"]}, {"mlp": 2}],
    batch=2,
    checkpointing="full",
)
WITH_TEXT = work(
    "seven tokens of text",
    axes={"time": 13, "space": 5},
    hidden=28,
    heads=7,
    block=[{"attention": ["time", "space"], "double": True}, {"mlp": 2}],
    text=7,
    batch=2,
)
MESHES = {
    ("usp:ulysses=4", 8): "ring=2 heads=4",
    ("usp:ulysses=2", 8): "ring=4 heads=2",
    ("usp:ulysses=4", 12): "ring=3 heads=4",
    ("usp:ulysses=4:across=kv-gather", 12): "kv-gather=3 heads=4",
    ("usp:ulysses=2:across=attention-2d:rows=2", 12): "rows=2 columns=3 heads=2",
    ("megatron-sp:tp=2", 4): "ulysses=2 tp=2",
    ("megatron-sp:tp=2:across=kv-gather", 6): "kv-gather=3 tp=2",
    ("megatron-sp:tp=2:across=ring", 8): "ring=4 tp=2",
    ("megatron-sp:tp=2:across=attention-2d:rows=2:keep-input", 8): "rows=2 columns=2 tp=2",
    ("megatron-sp:tp=2:across=usp", 8): "ring=2 heads=2 tp=2 or ring=4 heads=1 tp=2",
    ("attention-2d:rows=2", 8): "rows=2 columns=4",
    ("attention-2d:rows=3", 12): "rows=3 columns=4",
    ("attention-2d:rows=4", 12): "rows=4 columns=3",
}
"""The mesh of each strategy on so many ranks; USP has others where a rank has one key head."""
OF_A_SHORT_RUN = {
    ("megatron-sp:tp=2", 4): [UNEVEN_HEADS],
    ("megatron-sp:tp=2:across=ring", 8): [WITH_TEXT],
    ("megatron-sp:tp=2:across=usp", 8): [UNEVEN_HEADS],
    ("megatron-sp:tp=2:across=attention-2d:rows=2:keep-input", 8): [CAUSAL_GROUPS],
    ("usp:ulysses=4", 8): [UNEVEN_HEADS],
    ("usp:ulysses=4:across=kv-gather", 12): [WITH_TEXT],
    ("usp:ulysses=2:across=attention-2d:rows=2", 12): [CAUSAL_GROUPS],
    ("attention-2d:rows=2", 8): [WITH_TEXT, CAUSAL_GROUPS],
}


@pytest.mark.parametrize(("strategy", "ranks"), MESHES if ALL else OF_A_SHORT_RUN)
def test_equals_one_device_on_a_mesh(strategy: str, ranks: int) -> None:
    """Uneven heads, few key heads under a mask, joined axes recomputed, fewer text tokens than
    ranks: below 1e-9."""
    shapes = [UNEVEN_HEADS, CAUSAL_GROUPS, JOINT, WITH_TEXT]
    for shape in shapes if ALL else OF_A_SHORT_RUN[strategy, ranks]:
        chosen = load(strategy)
        assert (chosen.misfit(shape), chosen.why_not(shape, ranks)) == (None, None)
        sizes = dict(chosen.on(shape, ranks).mesh.axes)
        named = " ".join(f"{name}={n}" for name, n in sizes.items())
        assert named in MESHES[strategy, ranks].split(" or ")
        outcomes = prove(shape, chosen, ranks)
        assert not why_wrong(outcomes), shape.name
        assert max(outcome.worst.relative for outcome in outcomes) < 1e-9
        sent = [axis.split("+") for outcome in outcomes for _, _, axis in outcome.sent]
        axes = {axis for together in sent for axis in together}
        assert set(sizes) <= axes <= {*sizes, "all"}


@pytest.mark.parametrize(
    ("strategy", "ranks", "said"),
    [
        ("usp:ulysses=3", 8, "use a multiple of 3 ranks"),
        ("usp:ulysses=8", 16, "5 heads cannot be split over 8 ranks"),
        ("attention-2d:rows=3", 8, "use a multiple of 3 ranks"),
        ("megatron-sp:tp=3", 8, "use a multiple of 3 ranks"),
        ("megatron-sp:tp=8", 16, "5 heads cannot be split over 8 ranks of tp=8; use 1 to 5 ranks"),
        (
            "megatron-sp:tp=2",
            8,
            "with each group of tp=2 as one rank, 2 heads cannot be split over 4",
        ),
    ],
)
def test_ranks_that_make_no_such_mesh(strategy: str, ranks: int, said: str) -> None:
    """A sentence says which would."""
    assert said in (load(strategy).why_not(UNEVEN_HEADS, ranks) or "")


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ("usp:across=rsa", "it may be ring, kv-gather, attention-2d"),
        ("usp:ulysses=two", "ulysses=two is not a number of ranks"),
        ("megatron-sp:tp=0", "tp=0 is not a number of ranks"),
        ("megatron-sp:tp=2:across=rsa", "it may be ulysses, ring, kv-gather, attention-2d, usp"),
        ("megatron-sp:across=ring", "needs groups to go across; write tp=2 beside it"),
        ("attention-2d:rows=0", "rows=0 is not a number of ranks"),
    ],
)
def test_options_that_fit_nothing(strategy: str, said: str) -> None:
    """A sentence says what would."""
    assert said in (load(strategy).misfit(UNEVEN_HEADS) or "")


def test_groups_of_the_fewest_bytes() -> None:
    """By default as many heads are shared out as send least; where all are, nothing goes across."""
    sent = {
        size: sum(
            transfer.most
            for transfer in load(f"usp:ulysses={size}").on(JOINT, 8).traffic
            if transfer.phase != "gradients"
        )
        for size in (1, 2, 4)
    }
    assert load("usp").on(JOINT, 8).mesh == Mesh.of({"ring": 2, "heads": 4})
    assert sent[4] == min(sent.values())
    assert load("usp").on(UNEVEN_HEADS, 5).mesh == Mesh.of({"ring": 1, "heads": 5})


def test_groups_that_heads_divide_by() -> None:
    """16 heads on 24 ranks: groups of 12 send 8 % less than groups of 8, but four ranks of each
    have two heads, 3/2 of the mean, where in groups of 8 all have two: those are taken."""
    work = find("dsp-720m")
    sent = {
        size: sum(
            transfer.most
            for transfer in load(f"usp:ulysses={size}").on(work, 24).traffic
            if transfer.phase != "gradients"
        )
        for size in (8, 12)
    }
    assert 1.05 < sent[8] / sent[12] < 1.10
    assert load("usp").on(work, 24).mesh == Mesh.of({"ring": 3, "heads": 8})


def complaint(strategy: str) -> str:
    """What the gate says of a planted defect on eight ranks; blank: it got through."""
    return why_wrong(prove(CAUSAL_GROUPS, load(strategy), 8))


def test_a_part_that_is_not_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention2D without the parts of the last column."""

    def wrong(total: Part, part: Part) -> Part:
        return total if part.out.shape[2] < 10 else merge(total, part)

    monkeypatch.setattr(blockwise, "merge", wrong)
    assert DIFFERS in complaint("attention-2d")


def test_queries_without_the_keys_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid whose queries see the keys before their run, or of their own positions, and none
    between: right shapes, too few scores."""
    right = blockwise.tiles

    def wrong(queries: Shard, keys: Shard, causal: bool) -> Any:
        return [x for x in right(queries, keys, causal) if x[2] or x[1][0] == 0]

    monkeypatch.setattr(blockwise, "tiles", wrong)
    assert DIFFERS in complaint("attention-2d")


def test_positions_left_in_rank_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid that takes zigzag queries and keys as they come: right shapes, other scores."""
    monkeypatch.setattr(blockwise, "by_position", lambda x, *_: x)
    monkeypatch.setattr(blockwise, "by_rank", lambda x, *_: x)
    assert DIFFERS in complaint("attention-2d")


def test_positions_of_another_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """USP whose ring takes groups for one another: right lengths, other positions masked."""
    right = Shard.joined

    def wrong(self: Shard, parts: int) -> Shard:
        joined = right(self, parts)
        return replace(joined, runs=joined.runs[::-1])

    monkeypatch.setattr(Shard, "joined", wrong)
    work = CAUSAL_GROUPS.model_copy(update={"axes": {"space": 32}})
    assert DIFFERS in why_wrong(prove(work, load("usp:ulysses=2"), 8))


def test_bytes_over_another_axis(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    """As many bytes, over the ring instead of the group: the axis is part of the proof."""
    right = Transport.along

    def wrong(self: Transport, axis: str, groups: Groups) -> Transport:
        part = right(self, axis, groups)
        part._axis = "heads"
        return part

    monkeypatch.setattr(Transport, "along", wrong)
    golden(complaint("usp:ulysses=2"))


@pytest.mark.parametrize("wrong", [("tp",), ("ring", "tp"), ()])
def test_gradients_of_cut_weights_over_other_ranks(
    monkeypatch: pytest.MonkeyPatch, wrong: tuple[str, ...]
) -> None:
    """A part of a weight summed with other parts, with all ranks' or with none: never right."""
    right = timed_step.summed_over

    def other(parameter: nn.Parameter, mesh: Mesh, holds_whole: bool) -> tuple[str, ...]:
        return wrong if part_of(parameter) else right(parameter, mesh, holds_whole)

    monkeypatch.setattr(timed_step, "summed_over", other)
    assert DIFFERS in complaint("megatron-sp:tp=2:across=ring")


def test_bytes_in_groups_that_cut_weights() -> None:
    """Four gathers and scatters of a group's part, (T - 1) M / N each, in an attention and an mlp;
    across groups what Ulysses sends of a rank's heads."""
    work, ranks, size = find("axes-2d", "verify"), 4, 2
    work = with_settings(work, ["block=[{attention: space}, {mlp: 2}]", "mode=forward"])
    M, chosen = work.activation_bytes, load("megatron-sp:tp=2:shard-axis=space")
    sent = count(chosen.on(work, ranks).traffic, 0)
    inside = sum(n for (_, _, axis), n in sent.items() if axis == "tp")
    across = sum(n for (_, _, axis), n in sent.items() if axis == "ulysses")
    assert inside == work.blocks * 4 * (size - 1) * M // ranks
    assert across == work.blocks * 4 * M // ranks // 2
