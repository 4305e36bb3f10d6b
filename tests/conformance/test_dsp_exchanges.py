"""DSP with each strategy that may attend to all axes joined: one device's values, exact bytes."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.complaints import DIFFERS
from helpers.examples import ALL
from helpers.gate_on_threads import prove, why_wrong
from helpers.golden import Golden

from spbench.layers.attention import attend_whole
from spbench.strategies.base import Plan
from spbench.strategies.dsp import DSPPlan
from spbench.strategies.registry import EXCHANGES, load
from spbench.workload.mesh import Mesh
from spbench.workload.traffic import Hop, Traffic
from spbench.workload.workload import Workload


def work(*joint: dict[str, Any], **fields: object) -> Workload:
    """Axial attentions around a joint one, on axes that do not divide."""
    block = [{"attention": "time"}, {"mlp": 2}, *joint, {"attention": "space"}]
    sizes = {"axes": {"time": 13, "space": 11}, "hidden": 32, "heads": 8, "kv_heads": 4}
    form = {"name": "joint", "depth": 2, "dtype": "float64", "batch": 2, "block": block}
    return Workload.model_validate({**form, **sizes, **fields})


JOINT = {"attention": ["time", "space"]}
RECOMPUTED = work(JOINT, checkpointing="full", kv_heads=1, positions="rotary")
MASKED = work(JOINT | {"causal": True})
PROJECTED = work(JOINT | {"projection": 5}, {"attention": "time", "pair_bias": 2})
SHAPES = [work(JOINT), RECOMPUTED, MASKED, PROJECTED]
RANKS = (2, 3, 4, 8)


@pytest.mark.parametrize(
    "ranks", [*(pytest.param(n, marks=pytest.mark.long) for n in (2, 4)), 3, 8]
)
@pytest.mark.parametrize("across", ["auto", *EXCHANGES])
def test_each_exchange_equals_one_device(across: str, ranks: int) -> None:
    """Output and all gradients below 1e-9, bytes by phase, operation and axis of the mesh; or a
    sentence. A short run tries one shape of each pair."""
    at = RANKS.index(ranks) + ["auto", *EXCHANGES].index(across)
    for shape in SHAPES if ALL else [SHAPES[at % len(SHAPES)]]:
        dsp = load(f"dsp:across={across}")
        if why := dsp.declines(shape, ranks):
            assert across != "auto" and len(why.split()) > 8
            continue
        outcomes = prove(shape, dsp, ranks)
        assert not why_wrong(outcomes), shape
        assert max(outcome.worst.relative for outcome in outcomes) < 1e-9


def test_an_exchange_that_is_unknown(golden: Golden) -> None:
    """A sentence names those that are known."""
    golden(load("dsp:across=rsa").misfit(MASKED))


def complaint(across: str, ranks: int = 3, shape: Workload = SHAPES[0]) -> str:
    """What the gate says of a planted defect; blank: it got through."""
    return why_wrong(prove(shape, load(f"dsp:across={across}"), ranks))


def test_joint_attention_to_a_rank_s_own_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is exchanged where all axes are attended: right shapes, other ranks' keys unseen."""

    def wrong(self: DSPPlan, q: Any, k: Any, v: Any, scores: Any, *how: Any) -> Any:
        return attend_whole(q, k, v, scores)

    monkeypatch.setattr(DSPPlan, "attend", wrong)
    assert DIFFERS in complaint("ring")


def test_an_exchange_that_is_not_the_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right values, by the bytes of another strategy."""
    other = load("kv-gather")

    def wrong(self: DSPPlan, q: Any, k: Any, v: Any, scores: Any, shard: Any, comm: Any) -> Any:
        return other.on(self.workload, self.ranks).attend(q, k, v, scores, shard, comm)

    monkeypatch.setattr(DSPPlan, "attend", wrong)
    assert "predicted" in complaint("ulysses")


def test_switches_of_other_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards are those of the exchange's groups; a switch predicted of even ones is off."""

    def wrong(self: Plan, before: str, after: str) -> Traffic:
        there = Hop.between(Plan.shard(self, before), Plan.shard(self, after))
        whole_bytes = self.workload.activation_bytes
        sent = [hop.transfer(whole_bytes, self.mesh) for hop in there]
        back = [hop.undone.transfer(whole_bytes, self.mesh) for hop in there]
        return sent, back

    monkeypatch.setattr(Plan, "switch_traffic", wrong)
    few = work(JOINT, heads=4)
    assert load("dsp:across=usp").on(few, 8).mesh == Mesh.of({"ring": 2, "heads": 4})
    assert "predicted" in complaint("usp", 8, few)
