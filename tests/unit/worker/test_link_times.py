"""Timed transfers: sizes and counts as a strategy's, and repeats by a cap."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.thread_group import ThreadGroup

from spbench.comm.group import ShareOfGroup
from spbench.comm.threaded import ThreadRendezvous, ThreadTransport, run_rank_threads
from spbench.comm.transport import Several
from spbench.results.link_report import LinkTimes, LinkTiming
from spbench.strategies.registry import load, places
from spbench.worker import link_times
from spbench.worker.link_times import ROUNDS, SWEEPS, time_alone
from spbench.worker.observer import Observer, PhaseTimes
from spbench.workload.catalogue import find
from spbench.workload.fields import DTYPE_BYTES
from spbench.workload.timed import TimedKernel, TimedTransfer
from spbench.workload.traffic import Transfer

CPU = torch.device("cpu")


def timed_transfer(transfer: Transfer, dtype: str) -> TimedTransfer:
    """The transfer by the elements that each rank sends or holds."""
    ranks, sent = len(transfer.sent), transfer.sent
    whole = Fraction(sum(sent), ranks - 1)
    match transfer.op:
        case "all_to_all":
            held = list(sent)
        case "all_gather":
            held = [part / (ranks - 1) for part in sent]
        case "reduce_scatter":
            held = [whole - part for part in sent]
        case "p2p":
            held = [whole - sent[rank - 1] for rank in range(ranks)]
        case "all_reduce":
            held = [whole / 2]
    elements = [round(float(part) / DTYPE_BYTES[dtype]) for part in held]
    in_gradients = transfer.phase == "gradients"
    return TimedTransfer(op=transfer.op, elements=elements, dtype=dtype, gradients=in_gradients)


def on_threads(transfers: Sequence[TimedTransfer], ranks: int) -> list[LinkTimes]:
    others = ThreadRendezvous(ranks), ThreadRendezvous(ranks)

    def rank_main(transport: ThreadTransport) -> LinkTimes:
        group = ThreadGroup(transport.rank, [transport.meeting, *others])
        return time_alone(transfers, [], [], group, Observer())

    return run_rank_threads(ranks, rank_main)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_transfer_sends_what_the_strategy_sends(
    monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    """The bytes that are counted are those of the prediction, on each rank, also where uneven."""
    monkeypatch.setattr(link_times, "CAP_S", 0.0)
    work = find("axes-2d-uneven", "verify")
    predicted = [
        transfer
        for name in places()
        if load(name).why_not(work, ranks) is None
        for transfer in load(name).on(work, ranks).traffic
        if any(transfer.sent)
    ]
    assert {transfer.op for transfer in predicted} >= {"all_to_all", "all_gather", "p2p"}
    transfers = [timed_transfer(transfer, work.dtype) for transfer in predicted]
    for rank, times in enumerate(on_threads(transfers, ranks)):
        assert [len(timing.ms) for timing in times.timings] == [3] * len(transfers)
        for transfer, timing in zip(predicted, times.timings, strict=True):
            sent = float(transfer.sent[rank])
            # A ring of N - 1 shifts is timed as one of them.
            expected = sent if transfer.op != "p2p" else timing.sent_bytes
            assert timing.sent_bytes == pytest.approx(expected)
    rings = [i for i, transfer in enumerate(predicted) if transfer.op == "p2p"]
    for i in rings:
        total = sum(predicted[i].sent) / (ranks - 1)
        held = [n * DTYPE_BYTES[work.dtype] for n in transfers[i].elements]
        assert sum(held) == total


@pytest.mark.parametrize(("step_ms", "repeats"), [(1000.0, 3), (100.0, 6), (1.0, 50)])
def test_repeats_by_a_cap(monkeypatch: pytest.MonkeyPatch, step_ms: float, repeats: int) -> None:
    """0.6 s of each size, but three repeats at least and fifty at most; two warm up."""
    clock, sends = SimpleNamespace(now_s=0.0), []

    def started(*_: object) -> Any:
        def send() -> Several:
            sends.append(1)
            clock.now_s += step_ms / 1e3
            return Several([])

        return send

    monkeypatch.setattr(link_times, "started", started)
    observer = Observer(times=PhaseTimes(now_s=lambda: clock.now_s))
    transfer = TimedTransfer(op="all_reduce", elements=[8], dtype="float32")
    times = time_alone([transfer], [], [], ShareOfGroup(CPU, 2), observer)
    (timing,) = times.timings
    assert timing.ms == pytest.approx([step_ms] * repeats)
    assert len(sends) == repeats + 2


def beside_a_kernel(
    monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace, **how: Any
) -> LinkTiming:
    """Times of a shift beside a kernel of 10 ms, by this clock."""

    def kernel() -> None:
        clock.now_s += 0.01

    monkeypatch.setattr(link_times, "prepared", lambda *_: kernel)
    monkeypatch.setattr(link_times, "even_clock", lambda _, now_s: now_s)
    between = TimedKernel(kind="elementwise", shape=[8], dtype="float32")
    transfer = TimedTransfer(op="p2p", elements=[8], dtype="float32", between=between, **how)
    observer = Observer(times=PhaseTimes(now_s=lambda: clock.now_s))
    (timing,) = time_alone([transfer], [], [], ShareOfGroup(CPU, 2), observer).timings
    return timing


def test_a_transfer_beside_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it adds to the kernel before it."""
    clock = SimpleNamespace(now_s=0.0)

    def started(*_: object) -> Any:
        def arrive() -> None:
            clock.now_s += 0.002

        return lambda: Several([], [arrive])

    monkeypatch.setattr(link_times, "started", started)
    timing = beside_a_kernel(monkeypatch, clock)
    assert timing.kernel_ms == pytest.approx([10.0] * ROUNDS * SWEEPS)
    assert timing.ms == pytest.approx([2.0] * ROUNDS * SWEEPS)


def test_transfers_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three behind three kernels the first passes at once, through a link that has rested."""
    clock, link = SimpleNamespace(now_s=0.0), SimpleNamespace(free_at_s=0.0)

    def started(*_: object) -> Any:
        def start() -> Several:
            came_s = clock.now_s if clock.now_s - link.free_at_s > 0.009 else clock.now_s + 0.03

            def arrive() -> None:
                clock.now_s = link.free_at_s = max(clock.now_s, came_s)

            return Several([], [arrive])

        return start

    monkeypatch.setattr(link_times, "started", started)
    timing = beside_a_kernel(monkeypatch, clock, in_a_row=3)
    assert timing.kernel_ms == pytest.approx([10.0] * ROUNDS * SWEEPS)
    assert timing.ms == pytest.approx([(0 + 30 + 30) / 3] * ROUNDS * SWEEPS)


@pytest.mark.parametrize(("seconds", "kernels"), [(0.001, 20), (0.012, 5), (0.5, 3)])
def test_sweeps_beside_a_kernel(
    monkeypatch: pytest.MonkeyPatch, seconds: float, kernels: int
) -> None:
    """A slow machine repeats less in each of three sweeps, which visit all transfers in turn."""
    clock, visited = SimpleNamespace(now_s=0.0), []

    def started(transfer: TimedTransfer, *_: object) -> Any:
        visited.append(transfer.op)
        return lambda: Several([])

    def prepared(*_: object) -> Any:
        def kernel() -> None:
            clock.now_s += seconds
            computed.append(1)

        return kernel

    computed: list[int] = []
    monkeypatch.setattr(link_times, "started", started)
    monkeypatch.setattr(link_times, "prepared", prepared)
    between = TimedKernel(kind="elementwise", shape=[8], dtype="float32")
    given = {"elements": [8], "dtype": "float32", "between": between}
    transfers = [TimedTransfer(op=op, **given) for op in ("p2p", "all_reduce")]
    observer = Observer(times=PhaseTimes(now_s=lambda: clock.now_s))
    times = time_alone(transfers, [], [], ShareOfGroup(CPU, 2), observer)
    assert visited == ["p2p", "all_reduce"] * SWEEPS
    assert len(computed) == 2 * SWEEPS * (2 + 2 * kernels)
    assert all(len(each.ms) == SWEEPS * min(ROUNDS, kernels) for each in times.timings)
