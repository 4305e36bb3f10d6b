"""Any workload that YAML can express, on any strategy that takes it: values and bytes are right.

Fields are drawn together that no file of the catalogue joins.
"""

from __future__ import annotations

from typing import Any

import pytest
from helpers.examples import examples
from helpers.gate_on_threads import prove, why_wrong
from helpers.variants import by_day
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from pydantic import ValidationError

from spbench.strategies.registry import load
from spbench.workload.reduced import reductions
from spbench.workload.workload import Workload

SWIGLU = {"mlp": 0.7, "activation": "swiglu"}
WINDOWS = [{"window": n, "sinks": n % 2 == 0} for n in (1, 2, 5)]
AXES = ("time", "height", "width")


@st.composite
def attentions(draw: st.DrawFn, names: tuple[str, ...], text: int) -> dict[str, Any]:
    """Along one axis or several joined, with at most one of causal, projection and pair bias.

    With text along all axes, with weights of its own or not.
    """
    if text:
        return {"attention": list(names), "double": draw(st.booleans())}
    joined = st.lists(st.sampled_from(names), min_size=1, max_size=len(names), unique=True)
    axes = draw(joined)
    special: dict[str, Any] = draw(
        st.sampled_from([{}, {}, {"causal": True}, {"projection": 4}, {"pair_bias": 3}])
    )
    if special in ({}, {"causal": True}):
        special = special | draw(st.sampled_from([{}, {}, {"sinks": True}, *WINDOWS]))
    if special == {} and draw(st.integers(0, 3)) == 0:
        special, axes = draw(boxes(axes)), [axis for axis in names if axis in axes]
    beside = draw(st.sampled_from([{}, {}, {"beside": {"mlp": 1.3}}, {"beside": SWIGLU}]))
    return {"attention": axes, **special, **beside}


@st.composite
def boxes(draw: st.DrawFn, axes: list[str]) -> dict[str, Any]:
    """Windows of all of these axes, shifted or not, some of which may wrap."""
    window = [draw(st.integers(1, 3)) for _ in axes]
    shift = draw(st.sampled_from([None, [0] * len(window), [n // 2 for n in window]]))
    return {"window": window, "shift": shift, "wraps": draw(st.sampled_from([[], axes[:1]]))}


def as_stacks(stacks: list[dict[str, Any]]) -> dict[str, Any]:
    return {"stacks": stacks}


def alone(attention: dict[str, Any], heads: int, head_dim: int) -> dict[str, Any]:
    """The fields of an attention alone, of so many heads of queries, keys and values."""
    form = {"depth": 1, "block": [attention | {"alone": True, "beside": None}], "stacks": None}
    sizes = {"hidden": heads * head_dim, "head_dim": head_dim}
    plain = dict.fromkeys(("modulation", "optimizer", "checkpointing"), "none") | {"text": 0}
    return form | sizes | plain | {"positions": "rotary"}


@st.composite
def workloads(draw: st.DrawFn) -> Workload | None:
    """One to three axes, every field; None where fields do not fit together."""
    names = AXES[: draw(st.integers(1, 3))]
    heads = draw(st.sampled_from([2, 3, 4, 6, 8]))
    others = st.sampled_from(
        [
            {"cross_attention": 5},
            {"cross_attention": 1},
            {"cross_attention": 4, "heads": 2},
            {"mlp": 2.3},
            {"mlp": 1.5, "activation": "swiglu"},
        ]
    )
    text = draw(st.sampled_from([0, 0, 0, 3, 5]))
    if text:
        others = st.one_of(others, st.just({"mlp": 2, "double": True}))
    blocks = st.lists(st.one_of(attentions(names, text), others), min_size=1, max_size=4)
    stack = st.fixed_dictionaries({"depth": st.integers(1, 2), "block": blocks})
    form = st.one_of(stack, stack, st.lists(stack, min_size=2, max_size=2).map(as_stacks))
    positions = st.sampled_from(["none", "rotary", "learned"])
    widths, head_dim = st.sampled_from([4, 6]), draw(st.sampled_from([None, None, 4, 6]))
    data = {
        "name": "any",
        "axes": {name: draw(st.integers(2, 9)) for name in names},
        "hidden": draw(st.sampled_from([14, 30])) if head_dim else heads * draw(widths),
        "heads": heads,
        "head_dim": head_dim,
        "v_head_dim": draw(st.sampled_from([None, None, 3, 5, 8])),
        "kv_heads": draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0])),
        **draw(form),
        "text": text,
        "norm": draw(st.sampled_from(["layer", "rms"])),
        "qk_norm": draw(st.sampled_from([False, True, "across_heads"])),
        "positions": {name: draw(positions) for name in names},
        "modulation": draw(st.sampled_from(["none", "per_sample", "per_time", "per_token"])),
        "batch": draw(st.integers(1, 2)),
        "guidance": draw(st.sampled_from([1, 1, 2])),
        "dtype": "float64",
        "mode": draw(st.sampled_from(["train", "train", "forward"])),
        "checkpointing": draw(st.sampled_from(["none", "full", "selective"])),
        "optimizer": draw(st.sampled_from(["none", "none", "adamw"])),
    }
    if draw(st.integers(0, 7)) == 0:
        data |= alone(draw(attentions(names, 0)), heads + 2 * data["kv_heads"], head_dim or 4)
        data["v_head_dim"] = None
    try:
        return Workload.model_validate(data)
    except ValidationError:
        return None


@pytest.mark.parametrize("strategy", by_day())
@examples(40, derandomize=True, suppress_health_check=list(HealthCheck))
@given(work=workloads(), ranks=st.integers(2, 5), axis=st.sampled_from(["", *AXES]))
def test_right_or_declined(strategy: str, work: Workload | None, ranks: int, axis: str) -> None:
    """Equal to one device and bytes as predicted, whichever axis is sharded; or a sentence."""
    if work is None:
        return
    if axis in work.axes and hasattr(load(strategy), "shard_axis"):
        strategy = f"{strategy}:shard-axis={axis}"
    chosen = load(strategy)
    if why := chosen.declines(work, ranks):
        assert len(why.split()) > 8
        return
    reduced = reductions(chosen.flattened(work), ranks)
    assert [why for each in reduced if (why := chosen.why_not(each, ranks))] == []
    outcomes = prove(work, chosen, ranks)
    assert not why_wrong(outcomes)
