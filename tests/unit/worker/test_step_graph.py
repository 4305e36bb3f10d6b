"""A captured step: what its replays count, whose gradients there are, and what the proof finds.

No GPU is needed: something else stands in for the graph (``helpers/fake_graphs.py``).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.fake_graphs import Nothing, Rerun
from helpers.run_on_threads import complaint, run_on_threads

from spbench.comm.fake import silent_transports
from spbench.model.inputs import Inputs
from spbench.strategies.registry import load
from spbench.worker import measure as measuring
from spbench.worker.observer import Observer
from spbench.worker.step import Step, updates_taken
from spbench.worker.step_graph import StepGraph, replayed
from spbench.worker.step_proof import StepCounts
from spbench.workload.catalogue import find, with_settings
from spbench.workload.workload import Workload

CPU = torch.device("cpu")


def shape(**settings: Any) -> Workload:
    settings = {"depth": 1, "dtype": "float64"} | settings
    return with_settings(find("axes-2d", "verify"), [f"{k}={v}" for k, v in settings.items()])


def step_of(**settings: Any) -> Step:
    """A rank's share of a step on two ranks."""
    return Step(load("ulysses").on(shape(**settings), 2), silent_transports(0, 2), CPU)


def test_each_replay_counts_as_much_as_the_captured_step() -> None:
    """Also where steps came before it; nothing in a replay counts by itself."""
    step = step_of()
    inputs, cotangent = step.seeded_inputs()
    counts = StepCounts(step)
    counts.begin(step.transports)
    step(inputs, cotangent)
    counts.learn()
    sent, calls = step.transports.sent(), step.transports.calls()
    with replayed(step, inputs, cotangent, Observer(), graph := Nothing(aside=3)) as captured:
        assert (captured.sent, captured.calls) == (sent, calls)
        assert sent and calls
        counts.begin(step.transports)
        for _ in range(5):
            step(inputs, cotangent)
        assert graph.replays == 5
        assert counts.why_differs(step.transports, 5, "timed step") is None
        assert counts.why_differs(step.transports, 6, "timed step")
    assert step.captured is None and graph.is_reset


def test_the_optimizer_counts_its_own_updates() -> None:
    """On the device, in the replay: one that does nothing has none."""
    step = step_of(optimizer="adamw")
    inputs, cotangent = step.seeded_inputs()
    step(inputs, cotangent)
    counts = StepCounts(step)
    counts.begin(step.transports)
    step(inputs, cotangent)
    counts.learn()
    assert step.optimizer is not None
    for graph, why in ((Nothing(), "AdamW took 0 updates"), (Rerun(step, inputs), "")):
        with replayed(step, inputs, cotangent, Observer(), graph):
            counts.begin(step.transports)
            before = updates_taken(step.optimizer)
            step(inputs, cotangent)
            assert why in (counts.why_differs(step.transports, 1, "timed step") or "")
            assert (updates_taken(step.optimizer) == before) == bool(why)
    assert [group["capturable"] for group in step.optimizer.param_groups] == [False]


@pytest.mark.parametrize("mode", ["train", "forward"])
def test_a_step_that_is_not_captured_has_gradients_of_its_own(mode: str) -> None:
    """Behind it those of the replays are there again, at their addresses."""
    step = step_of(mode=mode)
    inputs, cotangent = step.seeded_inputs()
    step(inputs, cotangent)
    leaves = [*inputs.leaves, *step.model.parameters()]
    with replayed(step, inputs, cotangent, Observer(), graph := Rerun(step, inputs)):
        first = step(inputs, cotangent)
        places = [leaf.grad for leaf in leaves]
        with step.uncaptured():
            step.flip(inputs, cotangent)
            other = step(inputs, cotangent)
            assert other.data_ptr() != first.data_ptr()
            apart = [one is not leaf.grad for one, leaf in zip(places, leaves, strict=True)]
            assert set(apart) == {mode == "train"}
        assert all(one is leaf.grad for one, leaf in zip(places, leaves, strict=True))
        assert not torch.equal(first, other)
        assert step(inputs, cotangent).data_ptr() == first.data_ptr()
        assert torch.equal(first, other)
    graph.reset()


def test_what_is_captured_is_let_go_in_a_failure() -> None:
    """Ranks can part: no graph is left that holds transfers."""
    step, graph = step_of(), Nothing()
    with pytest.raises(ValueError), replayed(step, *step.seeded_inputs(), Observer(), graph):
        raise ValueError
    assert graph.is_reset and step.captured is None


def test_it_is_replayed_on_its_own_inputs() -> None:
    """Others would not be looked at."""
    step = step_of()
    inputs, cotangent = step.seeded_inputs()
    captured = StepGraph(step, inputs, cotangent, Nothing())
    with pytest.raises(AssertionError, match="its inputs"):
        captured.replay(step.seeded_inputs()[0], cotangent)


def capture_with(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    """Puts something else in the place of a CUDA graph."""

    def instead(step: Step, mine: Inputs, cotangent: torch.Tensor, observer: Observer) -> Any:
        graph = Nothing() if kind is Nothing else kind(step, mine)
        return replayed(step, mine, cotangent, observer, graph)

    monkeypatch.setattr(measuring, "replayed", instead)


@pytest.mark.parametrize("strategy", ["dsp", "ring", "megatron-sp"])
@pytest.mark.parametrize("settings", [{"optimizer": "adamw"}, {"mode": "forward"}])
def test_replays_are_proved_and_counted(
    monkeypatch: pytest.MonkeyPatch, strategy: str, settings: dict[str, Any]
) -> None:
    """From the gate to the last step; there is no time without communication, and a reason."""
    capture_with(monkeypatch, Rerun)
    samples = run_on_threads(shape(**settings), strategy, 2, execution="graph")
    assert complaint(samples) == ""
    for sample in samples:
        assert sample.step_ms and sample.compute_ms is None
        assert sample.compute_note == measuring.IS_CAPTURED
        assert sample.sent_by_phase == sample.predicted_by_phase
        assert sample.repeat_error is not None


@pytest.mark.parametrize("mode", ["train", "forward"])
def test_a_replay_that_does_nothing_is_found_out(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Its numbers are those of other inputs, though bytes and calls are counted as ever."""
    capture_with(monkeypatch, Nothing)
    samples = run_on_threads(shape(mode=mode), "dsp", 2, execution="graph")
    assert "wrong_result: " in complaint(samples)
    assert "in timed steps differs from the first step" in complaint(samples)
