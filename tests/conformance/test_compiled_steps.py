"""A strategy that uses torch.compile is proved, counted and timed with its compiled code."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers.graphs import CountedGraphs
from helpers.run_on_threads import complaint, run_on_threads, verify_on_threads
from torch import Tensor

from spbench.layers import heads
from spbench.strategies import ulysses
from spbench.strategies.registry import load
from spbench.worker.step import Step
from spbench.workload.catalogue import find, with_settings
from spbench.workload.workload import Workload

ATTENTIONS = 4
"""In a step: two blocks of two, and of nothing else."""


def shape(**settings: Any) -> Workload:
    settings = {"block": "[{attention: space}, {attention: time}]"} | settings
    return with_settings(find("axes-2d", "verify"), [f"{k}={v}" for k, v in settings.items()])


@pytest.fixture
def graphs() -> Iterator[CountedGraphs]:
    """A backend that runs a graph as it is; nothing compiled is left of other tests."""
    torch.compiler.reset()
    yield CountedGraphs()
    torch.compiler.reset()


@pytest.fixture
def graphs_of_steps(monkeypatch: pytest.MonkeyPatch, graphs: CountedGraphs) -> dict[int, list[int]]:
    """Graphs that ran in each step on several ranks, by thread."""
    of_steps: dict[int, list[int]] = defaultdict(list)
    real = Step.__call__

    def counted(self: Step, *args: Any) -> Any:
        before = graphs.of_this_thread()
        out = real(self, *args)
        if self.ranks > 1:
            of_steps[threading.get_ident()].append(graphs.of_this_thread() - before)
        return out

    monkeypatch.setattr(Step, "__call__", counted)
    return of_steps


def doubled(q: Tensor) -> Tensor:
    return (q + q).mul(0.5)


def compile_attention(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    """In a graph that computes something harmless in front of each attention."""
    right: Callable[..., Tensor] = heads.attend_whole
    halves = torch.compile(doubled, backend=backend)
    monkeypatch.setattr(heads, "attend_whole", lambda q, *rest: right(halves(q), *rest))


def test_every_step_runs_the_compiled_graphs(
    monkeypatch: pytest.MonkeyPatch, graphs: CountedGraphs, graphs_of_steps: dict[int, list[int]]
) -> None:
    """From the gate to the last step, those under the clock too; the row says how many. What
    compiled code allocates on a CPU is not known."""
    compile_attention(monkeypatch, graphs)
    samples = run_on_threads(shape(), "ulysses", 2)
    assert complaint(samples) == ""
    assert len(graphs_of_steps) == 2
    for of_steps in graphs_of_steps.values():
        assert len(of_steps) >= 8  # gate, first, memory, warm-up, three timed, silent ones, last
        assert set(of_steps) == {ATTENTIONS // 2}  # one of the two is along the sharded axis
    for sample in samples:
        assert sample.compiled == ATTENTIONS // 2
        assert sample.peak_allocated_bytes is None
        assert sample.host_rss_bytes


def test_no_graph_in_an_eager_strategy() -> None:
    """0, and not blank: the step was looked at."""
    samples = run_on_threads(shape(), "ulysses", 2)
    assert [sample.compiled for sample in samples] == [0, 0]
    assert all(sample.peak_allocated_bytes for sample in samples)


def test_transfers_in_compiled_code_are_counted(
    monkeypatch: pytest.MonkeyPatch, graphs: CountedGraphs
) -> None:
    """A whole attention is compiled, transfers in it: what is sent is what is predicted."""
    right = ulysses.UlyssesPlan.attend
    monkeypatch.setattr(
        ulysses.UlyssesPlan, "attend", torch.compile(right, backend=graphs, dynamic=False)
    )
    samples = run_on_threads(shape(), "ulysses", 2)
    assert complaint(samples) == ""
    for sample in samples:
        assert sample.compiled
        assert sample.sent_by_phase == sample.predicted_by_phase
    assert verify_on_threads(shape(dtype="bfloat16"), "ulysses", 2) == ""


@pytest.mark.long
def test_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own backend, which makes kernels of its own."""
    torch.compiler.reset()
    compile_attention(monkeypatch, "inductor")
    samples = run_on_threads(shape(), "ulysses", 2)
    assert complaint(samples) == ""
    assert [sample.compiled for sample in samples] == [ATTENTIONS // 2] * 2


@pytest.fixture
def by_autograd_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``--compiled`` with graphs that run as torch traces them, forward and backward: no kernel is
    made, which takes long."""
    torch.compiler.reset()
    real = torch.nn.Module.compile

    def traced(module: torch.nn.Module, **how: Any) -> None:
        real(module, backend="aot_eager", **how)

    monkeypatch.setattr(torch.nn.Module, "compile", traced)
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("by_autograd_alone")
@pytest.mark.parametrize(
    ("strategy", "breaks"),
    [
        ("dsp", 0),
        ("ulysses", 2),  # to the heads, and back
        ("ring", 1),
        pytest.param("megatron-sp", 4, marks=pytest.mark.long),  # each projection is parted once
        pytest.param("megatron-tp", 4, marks=pytest.mark.long),
        *(pytest.param(name, 1, marks=pytest.mark.long) for name in ("rsa", "kv-gather")),
        pytest.param("attention-2d", 1, marks=pytest.mark.long),
        pytest.param("usp", 2, marks=pytest.mark.long),
    ],
)
def test_only_transfers_part_the_graphs_of_sublayers(strategy: str, breaks: int) -> None:
    """Gate, timed and silent steps are right, and a step runs one graph a sublayer, and one more
    for each transfer in it."""
    work = with_settings(shape(), ["depth=1"])
    samples = run_on_threads(work, strategy, 2, execution="compiled")
    assert complaint(samples) == ""
    sublayers = len(work.stack)
    assert [sample.compiled for sample in samples] == [sublayers + breaks] * 2
    assert all(not sample.compute_note and sample.compute_ms for sample in samples)


@pytest.mark.usefixtures("by_autograd_alone")
@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        ("ulysses", "selective"),
        pytest.param("megatron-sp", "checkpointed", marks=pytest.mark.long),
        pytest.param("dsp", "streams", marks=pytest.mark.long),
        pytest.param("usp", "selective", marks=pytest.mark.long),
        pytest.param("ring", "pair-bias", marks=pytest.mark.long),
        pytest.param("rsa", "pair-bias", marks=pytest.mark.long),
        pytest.param("kv-gather", "causal", marks=pytest.mark.long),
        pytest.param("megatron-sp", "attention-only", marks=pytest.mark.long),
        pytest.param("ulysses", "projected", marks=pytest.mark.long),
    ],
)
def test_compiled_sublayers_of_every_kind(strategy: str, name: str) -> None:
    """Recomputed blocks and attentions, two streams, biases and masks: right, and bytes as
    predicted."""
    work = find(name, "verify")
    if work.depth:
        work = with_settings(work, ["depth=1"])
    if load(strategy).declines(work, 3):
        return
    assert complaint(run_on_threads(work, strategy, 3, execution="compiled")) == ""


@pytest.mark.usefixtures("by_autograd_alone")
@pytest.mark.parametrize("strategy", ["dsp:chunks=2", "ulysses:chunks=2"])
def test_switches_in_chunks(strategy: str) -> None:
    """What leaves chunk by chunk is right, and as many transfers are counted as of eager steps."""
    work = with_settings(find("axes-2d", "verify"), ["axes={time: 6, space: 12}", "heads=8"])
    eager, compiled = (
        run_on_threads(work, strategy, 2, execution=how) for how in ("eager", "compiled")
    )
    assert complaint(compiled) == ""
    for before, now in zip(eager, compiled, strict=True):
        assert now.collectives == before.collectives
        assert now.sent_by_phase == now.predicted_by_phase
        assert now.compute_ms and not now.compute_note
        assert now.compiled


@pytest.mark.long
def test_a_compiled_run_by_inductor() -> None:
    """torch's own backend, from the gate to the last step."""
    torch.compiler.reset()
    work = with_settings(shape(), ["depth=1"])
    samples = run_on_threads(work, "dsp", 2, execution="compiled")
    assert complaint(samples) == ""
    assert [sample.compiled for sample in samples] == [len(work.stack)] * 2
