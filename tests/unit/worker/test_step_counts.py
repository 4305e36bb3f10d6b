"""What blocks of steps are held against: flipped inputs, bytes, calls and counted updates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.golden import Golden

from spbench.comm.fake import silent_transports
from spbench.strategies.registry import load
from spbench.worker.step import Step, adamw, updates_taken
from spbench.worker.step_proof import StepCounts
from spbench.workload.catalogue import find, with_settings

CPU = torch.device("cpu")


def step_of(**settings: Any) -> Step:
    """A rank's share of a step on two ranks."""
    work = with_settings(find("axes-2d", "verify"), [f"{k}={v}" for k, v in settings.items()])
    return Step(load("ulysses").on(work, 2), silent_transports(0, 2), CPU)


@pytest.mark.parametrize("mode", ["train", "forward"])
def test_inputs_are_flipped_in_place_and_back(mode: str) -> None:
    """Features and weights, to the last bit; weights of inference stay."""
    step = step_of(mode=mode, dtype="bfloat16")
    inputs, cotangent = step.seeded_inputs()
    tensors = [*inputs.tensors, cotangent]
    weights = list(step.model.parameters())
    before = [x.detach().clone() for x in (*tensors, *weights)]
    places = [x.data_ptr() for x in (*tensors, *weights)]
    step.flip(inputs, cotangent)
    for x, old in zip(tensors, before, strict=False):
        assert torch.equal(x, old.flip(-1)) and not torch.equal(x, old)
    sign = -1 if mode == "train" else 1
    for weight, old in zip(weights, before[len(tensors) :], strict=True):
        assert torch.equal(weight, sign * old)
    step.flip(inputs, cotangent)
    assert all(map(torch.equal, (*tensors, *weights), before))
    assert places == [x.data_ptr() for x in (*tensors, *weights)]


def test_an_optimizer_counts_its_own_updates() -> None:
    """Of the weight that had fewest and of that with most; one without a gradient has none."""
    one, other = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = adamw([one, other])
    assert updates_taken(optimizer) == (0, 0)
    one.grad = torch.ones(2)
    optimizer.step()
    assert updates_taken(optimizer) == (0, 1)
    other.grad = torch.ones(2)
    optimizer.step()
    assert updates_taken(optimizer) == (1, 2)


def test_a_block_is_held_against_one_counted_step(golden: Golden) -> None:
    """Bytes first, then calls, then updates; each names what, where and how much."""
    step = step_of(optimizer="adamw")
    inputs, cotangent = step.seeded_inputs()
    counts = StepCounts(step)
    counts.begin(step.transports)
    step(inputs, cotangent)
    counts.learn()
    counts.begin(step.transports)
    for _ in range(3):
        step(inputs, cotangent)
    assert counts.why_differs(step.transports, 3, "timed step") is None
    golden(counts.why_differs(step.transports, 4, "timed step"), "a step more")
    key = ("gradients", "all_reduce", "all")
    step.transports.gradients.sent[key] -= 4
    golden(counts.why_differs(step.transports, 3, "silent step"), "fewer bytes")
    step.transports.gradients.sent[key] += 4
    step.transports.gradients.calls[key] += 1
    golden(counts.why_differs(step.transports, 3, "timed step"), "more calls")
    step.transports.gradients.calls[key] -= 1
    assert step.optimizer is not None
    step.optimizer.step()
    golden(counts.why_differs(step.transports, 3, "timed step"), "more updates")
