"""Steps whose transfers are under way leave nothing behind, and go on after one that failed."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor

from spbench.comm.fake import silent_transports
from spbench.comm.pending import Pending
from spbench.strategies.registry import load
from spbench.worker import memory
from spbench.worker.step import Step
from spbench.workload.catalogue import find, with_settings
from spbench.workload.workload import Workload

CPU = torch.device("cpu")
CHUNKS = ("dsp:chunks=2", "ulysses:chunks=2")


def work(*settings: str) -> Workload:
    even = ["axes={time: 8, space: 32}", "heads=4", "depth=4"]
    return with_settings(find("axes-2d", "verify"), [*even, *settings])


def step_of(strategy: str, workload: Workload) -> Step:
    """One of two ranks, which computes and sends nothing."""
    plan = load(strategy).on(workload, 2)
    return Step(plan, silent_transports(0, 2), CPU)


def peaks(strategy: str, workload: Workload, steps: int = 3) -> list[int]:
    """Bytes at the peak of each step, one after the other, while nothing collects circles."""
    step = step_of(strategy, workload)
    mine, cotangent = step.seeded_inputs()
    alive = [*step.model.parameters(), *mine.tensors, cotangent]
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        return [
            memory.measure(lambda: step(mine, cotangent), alive, CPU)["peak_allocated_bytes"]
            for _ in range(steps)
        ]
    finally:
        if was_on:
            gc.enable()


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("strategy", CHUNKS)
def test_no_step_leaves_anything_behind(strategy: str, checkpointing: str) -> None:
    """Timed steps run without a collector: none has more than the first, and in blocks that are
    recomputed not much more than without chunks."""
    small = work(f"checkpointing={checkpointing}")
    first, second, third = peaks(strategy, small)
    assert second == third <= first
    if checkpointing == "full":
        whole, *_ = peaks(strategy.partition(":")[0], small)
        assert first < 1.1 * whole


@pytest.mark.parametrize("strategy", [*CHUNKS, "ulysses", "ring"])
@pytest.mark.parametrize("fails", ["backward", "before backward"])
def test_a_step_after_one_that_failed(
    strategy: str, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every gradient is what it is without, and as many bytes are summed."""
    step = step_of(strategy, work())
    mine, cotangent = step.seeded_inputs()

    def gradients() -> list[Tensor]:
        step(mine, cotangent)
        return [p.grad.clone() for p in step.model.parameters() if p.grad is not None]

    wanted = gradients()
    step.silent.reset()
    right, waits = Pending.wait, iter(range(1000))

    def raising(pending: Pending[Tensor]) -> Tensor:
        if torch._C._current_graph_task_id() >= 0 and next(waits) == 3:
            raise ConnectionError("planted")
        return right(pending)

    if fails == "backward":
        with monkeypatch.context() as planted:
            planted.setattr(Pending, "wait", raising)
            with pytest.raises(ConnectionError):
                step(mine, cotangent)
    else:
        step.model(mine)
    got = gradients()
    assert len(got) == len(wanted) and all(map(torch.equal, got, wanted))


def test_a_gradient_that_never_comes_is_an_error() -> None:
    """A sum whose buckets never left is no sum."""
    step = step_of("dsp", work())
    assert step.gradients is not None
    with pytest.raises(RuntimeError, match="buckets lack a gradient"):
        step.gradients.finish()
