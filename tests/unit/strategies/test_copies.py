"""Copies of activations around collectives, counted with NCCL's packing; also in the documents."""

from __future__ import annotations

from functools import cache

import pytest
from helpers.counted_copies import CountedCopies, copies_of_a_step
from helpers.spbench_process import ROOT

from spbench.workload.catalogue import find, with_settings

RANKS = 4
LIMITS = {
    "megatron-sp": (0, 3),
    "dsp": (1, 1),
    "ulysses": (4, 4),
    "rsa": (2 * 2, 2 * 2),
    "ring": (1, 0),
    "kv-gather": (1, 2),
    "attention-2d": (2, 3),
    "usp:ulysses=2": (2 + 1, 3),
}
"""The most in forward and in backward: a rank's own part of the gradient of each sum, put in its
place in the whole; one for each switch, two for each ring of whole rows, one for K and V as one
message, two for their gradients as one. Ranks in rows and columns pack K and V, and the output for
each rank of the row; in backward what goes to the row, the queries' gradient, and that of K and V.
Groups of heads have the copies of Ulysses, and those of the ring across."""
TABLE = "## Copies of activations around collectives"


@cache
def seen(strategy: str, axis: str, batch: int, mode: str, *settings: str) -> CountedCopies:
    """Copies of one block of attention along each axis and mlp."""
    block = "block=[{attention: space}, {attention: time}, {mlp: 4}]"
    shape = ["axes={time: 16, space: 32}", "depth=1", "checkpointing=none", f"batch={batch}"]
    work = with_settings(find("dsp-720m-small"), [block, *shape, f"mode={mode}", *settings])
    if strategy == "dsp":  # it shards what the first attention does not attend
        other = "time" if axis == "space" else "space"
        turned = f"block=[{{attention: {other}}}, {{attention: {axis}}}, {{mlp: 4}}]"
        return copies_of_a_step(with_settings(work, [turned]), strategy, RANKS)
    return copies_of_a_step(work, f"{strategy}:shard-axis={axis}", RANKS)


def volumes(strategy: str, axis: str, batch: int) -> tuple[float, float]:
    """Activations copied around collectives in forward and in backward."""
    forward = seen(strategy, axis, batch, "forward").volume
    return forward, seen(strategy, axis, batch, "train").volume - forward


def counts(strategy: str, axis: str, batch: int, *settings: str) -> tuple[int, int]:
    """Copies around collectives in forward and in backward."""
    forward = seen(strategy, axis, batch, "forward", *settings).around.total()
    return forward, seen(strategy, axis, batch, "train", *settings).around.total() - forward


@pytest.mark.parametrize("axis", ["time", pytest.param("space", marks=pytest.mark.long)])
@pytest.mark.parametrize("strategy", LIMITS)
def test_as_few_as_can_be(strategy: str, axis: str) -> None:
    """No more at batch 2 than at batch 1, whichever axis is sharded."""
    counted = counts(strategy, axis, 1)
    assert counts(strategy, axis, 2) == counted
    assert all(n <= most for n, most in zip(counted, LIMITS[strategy], strict=True)), counted
    assert counts(strategy, axis, 2, "modulation=per_time") == counted


@pytest.mark.parametrize("axis", ["time", "space"])
@pytest.mark.parametrize("strategy", LIMITS)
def test_attention_clones_nothing(strategy: str, axis: str) -> None:
    """Elsewhere the gradients of q, k and v are joined, once for each attention, but for those that
    one switch brought, which lie end to end; RSA puts its output in the order of the activation,
    and copies its own part of the sum of dV, so that the whole, N times as large, is let go."""
    own = {"layers/memory_order.py: put_outermost": 1, "strategies/rsa.py: _backward_of_values": 1}
    joins = 1 if strategy in ("ulysses", "usp:ulysses=2") else 2
    expected = {"layers/memory_order.py: _joined": joins} | (own if strategy == "rsa" else {})
    for batch in (1, 2):
        elsewhere = seen(strategy, axis, batch, "train").elsewhere
        assert elsewhere == {f"spbench/{place}": count for place, count in expected.items()}


@pytest.mark.parametrize(("heads", "of_keys"), [("kv_heads=4", 0.25), ("heads=6", 1.0)])
def test_grouped_and_uneven_heads_travel_in_one_message(heads: str, of_keys: float) -> None:
    """q, k and v are packed, and not unpacked; the output is unpacked. A rank with more heads than
    its share has more of it."""
    settings = ["block=[{attention: time}]", "axes={time: 16, space: 32}", "depth=1", heads]
    work = with_settings(find("dsp-720m-small"), [*settings, "batch=2", "mode=forward"])
    copied = copies_of_a_step(work, "ulysses:shard-axis=time", RANKS, least=0.0)
    assert copied.volume <= (1 + 2 * of_keys) + 1 + 0.02


def test_joint_attention_is_folded_as_it_lies() -> None:
    """Without a mask the order of its positions is free, whichever axis is outermost."""
    settings = ["block=[{attention: [time, space]}]", "axes={time: 16, space: 32}", "depth=1"]
    work = with_settings(find("dsp-720m-small"), [*settings, "mode=forward", "checkpointing=none"])
    assert not copies_of_a_step(work, "megatron-sp:shard-axis=space", RANKS).elsewhere


def test_the_documents_have_these_counts() -> None:
    text = (ROOT / "docs" / "performance.md").read_text().split(TABLE)[1].split("\n## ")[0]
    for strategy in LIMITS:
        forward, backward = counts(strategy, "time", 2)
        elsewhere = seen(strategy, "time", 2, "train").elsewhere.total()
        there, back = volumes(strategy, "time", 2)
        row = f"| {strategy} | {forward} ({there:.0f}) | {backward} ({back:.0f}) | {elsewhere} |"
        assert row in text
