"""Every strategy waits for what it uses, and leaves alone what is being sent.

Ranks are threads whose transfers arrive when they are waited for, and no sooner
(``helpers/late_transport.py``). Defects are planted, and each is caught.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from helpers.gate_on_threads import prove, why_wrong
from helpers.late_transport import LateTransport, Overwritten
from helpers.variants import by_day
from torch import Tensor

from spbench.comm.packing import Cut
from spbench.comm.pending import Gathering, Pending, RingBlocks
from spbench.comm.threaded import ThreadRendezvous
from spbench.comm.transport import Handle, Transport
from spbench.layers import rsa_rows
from spbench.strategies import megatron_sp
from spbench.strategies.registry import load
from spbench.workload.catalogue import find, with_settings
from spbench.workload.workload import Workload

SHAPES = ("axes-2d-uneven", "causal", "joint", "few-key-heads", "pair-bias")
OVERLAPPED = ("megatron-sp", "rsa", "ring", "kv-gather")
IN_CHUNKS = ("dsp:chunks=2", "ulysses:chunks=2")


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work goes by parts however small they are."""
    monkeypatch.setattr(megatron_sp, "LEAST_ROWS", 0)
    monkeypatch.setattr(rsa_rows, "LEAST_PRODUCTS", 0)
    monkeypatch.setattr(rsa_rows, "LEAST_MEANWHILE", 1)


def shape(name: str, **settings: Any) -> Workload:
    small = {"dtype": "float64", "depth": 1} | settings
    return with_settings(find(name, "verify"), [f"{k}={v}" for k, v in small.items()])


def complaint(strategy: str, work: Workload, ranks: int, *, at_once: bool = False) -> str:
    """What the gate says, or that a transfer was not waited for; blank: all is well."""
    transports: list[LateTransport] = []

    def late(rank: int, meeting: ThreadRendezvous) -> LateTransport:
        transports.append(LateTransport(rank, meeting, at_once=at_once))
        return transports[-1]

    wrong = why_wrong(prove(work, load(strategy), ranks, transport_of=late))
    pending = sum(transport.pending for transport in transports)
    return wrong or (f"{pending} transfers were not waited for" if pending else "")


@pytest.mark.parametrize("at_once", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("strategy", [*by_day(), "megatron-sp:tp=2", "usp:ulysses=2"])
def test_transfers_that_come_late(strategy: str, at_once: bool) -> None:
    """Part by part, or all parts at once as on NCCL."""
    ranks = 4 if "=2" in strategy else 3
    for work in map(shape, SHAPES):
        if not load(strategy).declines(work, ranks):
            assert not complaint(strategy, work, ranks, at_once=at_once), work.name


@pytest.mark.parametrize("strategy", ["megatron-sp", "megatron-sp:keep-input", "rsa"])
def test_late_parts_of_recomputed_blocks(strategy: str) -> None:
    """Recomputation sends no more than is predicted, and waits for it."""
    work = shape("axes-2d-uneven", checkpointing="full", depth=2)
    for at_once in (False, True):
        assert not complaint(strategy, work, 3, at_once=at_once)


@pytest.mark.parametrize("strategy", IN_CHUNKS)
def test_chunks_that_come_late(strategy: str) -> None:
    """On even axes, where there are chunks."""
    for name in ("axes-2d", "guided"):
        work = shape(name, axes="{time: 8, space: 16}", heads=4, depth=2)
        assert not complaint(strategy, work, 2), name


@pytest.mark.parametrize("name", ["causal", "pair-bias", "mixed"])
@pytest.mark.parametrize("strategy", IN_CHUNKS)
def test_chunks_of_fewer_keys_than_queries(strategy: str, name: str) -> None:
    """Under masks, with a bias; a rank has several key heads, and more queries."""
    work = shape(name, heads=8, kv_heads=4, head_dim=8)
    chosen = load(strategy)
    if chosen.declines(work, 2):
        pytest.skip(str(chosen.declines(work, 2)))
    assert not complaint(strategy, work, 2)


@pytest.mark.parametrize("strategy", IN_CHUNKS)
def test_a_chunk_that_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    """What is used before it has come is not a number; nor is its gradient."""
    right = Pending.wait
    for mode, is_skipped in (("forward", lambda _: True), ("train", is_in_backward)):
        with monkeypatch.context() as planted:
            planted.setattr(
                Pending,
                "wait",
                lambda self, skips=is_skipped: self.arriving if skips(self) else right(self),
            )
            assert "nan" in complaint(strategy, shape("axes-2d", mode=mode), 2)


def is_in_backward(_: Pending[Any]) -> bool:
    return torch._C._current_graph_task_id() >= 0


@pytest.mark.parametrize("strategy", OVERLAPPED)
def test_a_wait_that_is_missing(monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    """What is used before it has come is not a number."""
    assert not complaint(strategy, shape("axes-2d-uneven"), 3)
    monkeypatch.setattr(Pending, "wait", lambda self: self.arriving)
    monkeypatch.setattr(Gathering, "_wait_for", lambda self, source: None)
    monkeypatch.setattr(Gathering, "wait", lambda self: self.whole)
    monkeypatch.setattr(RingBlocks, "wait", lambda self: self.whole)
    assert "nan" in complaint(strategy, shape("axes-2d-uneven"), 3)


def test_a_part_that_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of several, of a gather that is waited for in the end."""
    right = Gathering._wait_for

    def wrong(self: Gathering, source: int) -> None:
        if source != 2:
            right(self, source)

    monkeypatch.setattr(Gathering, "_wait_for", wrong)
    assert "nan" in complaint("megatron-sp", shape("axes-2d-uneven"), 3)


def test_what_has_left_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """All parts have come, but this rank's own may still be under way."""
    monkeypatch.setattr(Gathering, "wait", lambda self: self.whole)
    work = shape("axes-2d-uneven", mode="forward")
    assert "not waited for" in complaint("megatron-sp", work, 3)


def overwriting(right: Callable[..., Handle], of: Callable[..., Tensor]) -> Callable[..., Handle]:
    def wrong(self: Transport, received: Any, sent: Any, *more: Any) -> Handle:
        handle = right(self, received, sent, *more)
        of(sent).data.mul_(2)  # behind autograd's back
        return handle

    return wrong


@pytest.mark.parametrize(
    ("method", "strategy"),
    [("shift", "rsa"), ("shift", "ring"), ("reduce_scatter", "megatron-sp")]
    + [("all_to_all", strategy) for strategy in IN_CHUNKS],
)
def test_a_buffer_that_is_reused_too_early(
    monkeypatch: pytest.MonkeyPatch, method: str, strategy: str
) -> None:
    """It is written to behind the start of a transfer, which reads it until it is waited for."""

    def of(sent: Tensor | Cut | Sequence[Cut]) -> Tensor:
        first = sent[0] if isinstance(sent, list) else sent
        return first.part(1) if isinstance(first, Cut) else first

    wrong = overwriting(getattr(Transport, method), of)
    monkeypatch.setattr(Transport, method, wrong)
    in_chunks = strategy in IN_CHUNKS
    # The rank whose part it is raises, and in forward alone others wait for nothing else.
    work = shape("axes-2d", mode="forward") if in_chunks else shape("axes-2d-uneven")
    with pytest.raises(Overwritten):
        complaint(strategy, work, 2 if in_chunks else 3)


def test_parts_that_are_computed_into_one_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that is set while the one before it is under way."""
    right = megatron_sp._multiply

    def wrong(x: Tensor, matrix: Tensor, into: Tensor, bias: Tensor | None = None) -> None:
        right(x, matrix, into, bias)
        if into.storage_offset():
            into.as_strided(into.shape, into.stride(), 0).copy_(into)

    monkeypatch.setattr(megatron_sp, "_multiply", wrong)
    assert complaint("megatron-sp", shape("axes-2d", axes="{time: 6, space: 9}"), 3)
