"""DSP with two axes of the tensor sharded at once: one device's values, exact bytes."""

from __future__ import annotations

import time
from fractions import Fraction
from itertools import permutations, product
from typing import Any

import pytest
from helpers.complaints import DIFFERS
from helpers.examples import ALL
from helpers.gate_on_threads import prove, why_wrong
from helpers.plan_check import why_not_cheapest

from spbench.strategies.describe import lanes
from spbench.strategies.dsp import INNER, OUTER, TwoAxes
from spbench.strategies.registry import load
from spbench.workload.mesh import Mesh
from spbench.workload.sharding import Shard
from spbench.workload.traffic import Hop, Transfer
from spbench.workload.workload import Workload


def work(*lengths: int, joint: bool = False, **fields: object) -> Workload:
    """Attention along each of three axes; in the last block's place, over all of them."""
    block: list[dict[str, Any]] = [{"attention": "time"}, {"mlp": 2}, {"attention": "height"}]
    block += [{"attention": ["time", "height", "width"]}] if joint else []
    block += [{"attention": "width"}]
    sizes = {"axes": dict(zip(("time", "height", "width"), lengths, strict=True)), "hidden": 24}
    form = {"name": "short", "depth": 2, "dtype": "float64", "heads": 4, "block": block}
    return Workload.model_validate({**form, **sizes, **fields})


PLACED: dict[str, Any] = {"positions": "learned", "modulation": "per_time", "batch": 2}
TURNED: dict[str, Any] = {"positions": "rotary", "modulation": "per_token"}
CASES = [
    ("dsp:inner=2", 4, work(3, 5, 7, **TURNED)),
    ("dsp", 6, work(2, 5, 7, checkpointing="full", **PLACED)),
    ("dsp", 8, work(4, 4, 9, **TURNED)),
    ("dsp", 8, work(2, 5, 13, joint=True, kv_heads=1)),
    ("dsp:across=ulysses:inner=2", 4, work(2, 5, 3, joint=True, checkpointing="full")),
    ("dsp", 12, work(4, 4, 9, **PLACED)),
]
SHORT_RUN = (0, 3)


@pytest.mark.parametrize(
    ("strategy", "ranks", "shape"), CASES if ALL else [CASES[i] for i in SHORT_RUN]
)
def test_equals_one_device(strategy: str, ranks: int, shape: Workload) -> None:
    """Output and all gradients below 1e-9, bytes by phase, operation and axis of the mesh, and no
    layout of fewer bytes."""
    dsp = load(strategy)
    assert dsp.why_not(shape, ranks) is None
    assert dsp.on(shape, ranks).mesh.names == (OUTER, INNER)
    assert any("+" in entry for entry in dsp.on(shape, ranks).layout)
    outcomes = prove(shape, dsp, ranks)
    assert not why_wrong(outcomes)
    assert max(outcome.worst.relative for outcome in outcomes) < 1e-9
    assert why_not_cheapest(dsp, shape, ranks) is None


def test_one_axis_is_enough_where_it_is_long() -> None:
    """Without need ranks are one group, unless groups are asked for."""
    shape = work(8, 8, 8)
    assert load("dsp").on(shape, 8).mesh == Mesh.of({"sequence": 8})
    assert load("dsp:inner=4").on(shape, 8).mesh == Mesh.of({OUTER: 2, INNER: 4})


@pytest.mark.parametrize("ranks", [4, 6, 8, 9, 12, 16, 20] if ALL else [8])
def test_declines_if_no_mesh_fits(ranks: int) -> None:
    """Only where some sublayer has no axes that are free and long enough, whatever the groups."""
    for lengths in (
        product((2, 3, 4, 7), (4, 5), (7, 20)) if ALL else [(2, 4, 7), (3, 5, 7), (2, 3, 20)]
    ):
        axes = dict(zip("thw", lengths, strict=True))
        fits = [
            all(_can_shard({a: n for a, n in axes.items() if a != at}, size, ranks) for at in axes)
            for size in range(1, ranks + 1)
            if ranks % size == 0
        ]
        why = load("dsp").why_not(work(*lengths), ranks)
        assert (why is None) == any(fits), (lengths, why)
        if why is not None:
            most = int(why.split("use 1 to ")[1].split()[0])
            assert load("dsp").why_not(work(*lengths), most) is None


def _can_shard(free: dict[str, int], inner: int, ranks: int) -> bool:
    pairs = permutations(free.values(), 2)
    two = any(a >= ranks // inner and b >= inner for a, b in pairs)
    return max(free.values()) >= ranks or (1 < inner < ranks and two)


def test_bytes_of_switches_in_groups() -> None:
    """(I - 1) / I of M / N in inner groups of I ranks, (O - 1) / O in outer ones; and back."""
    shape = work(2, 16, 16)
    plan = load("dsp:inner=2").on(shape, 8)
    M = shape.activation_bytes
    for before, after, groups in (
        ("width+height", "width+time", 2),
        ("width+time", "height+time", 4),
    ):
        (hop,) = plan.hops(before, after) or ()
        for each in (hop, hop.undone):
            assert set(each.transfer(M, plan.mesh).sent) == {Fraction(M * (groups - 1), 8 * groups)}


def test_thirty_thousand_ranks_are_planned_at_once() -> None:
    """Two axes at once take seconds, as one does."""
    shape = work(2, 20_000, 40_000, depth=10, dtype="bfloat16")
    began_s = time.process_time()
    (lane,) = lanes(shape, ["dsp:inner=2"], 30_000)
    assert lane.why_not is None
    assert time.process_time() - began_s < 5


def complaint() -> str:
    """What the gate says of a planted defect; blank: it got through."""
    return why_wrong(prove(work(2, 2, 8, positions="rotary"), load("dsp"), 4))


@pytest.mark.parametrize("turned", [(-1, 1), (1, -1)])
def test_a_cut_is_that_of_other_ranks(
    monkeypatch: pytest.MonkeyPatch, turned: tuple[int, int]
) -> None:
    """Of one of two axes ranks have the positions of others: right shapes."""
    right, (outer, inner) = TwoAxes._shard, turned

    def wrong(self: TwoAxes, entry: str) -> Shard:
        cut = right(self, entry)
        if cut.beside is None:
            return cut
        beside = Shard(cut.beside.dim, cut.beside.runs[::inner])
        return Shard(cut.dim, cut.runs[::outer], beside)

    monkeypatch.setattr(TwoAxes, "_shard", wrong)
    assert DIFFERS in complaint()


def test_switches_predicted_over_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A switch in groups sends less than one over all."""

    def wrong(self: Hop, whole_bytes: int, mesh: Any) -> Transfer:
        return Transfer.all_to_all(whole_bytes, self.before.sizes, self.after.sizes)

    monkeypatch.setattr(Hop, "transfer", wrong)
    assert "predicted" in complaint()
