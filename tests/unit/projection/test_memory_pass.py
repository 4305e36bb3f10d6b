"""Peak memory of a dry run is that of a real step on a CPU, byte by byte."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.examples import ALL
from helpers.variants import suited

from spbench.comm.transport import Transports
from spbench.projection.dryrun import depths, dry_step, recorder
from spbench.projection.dryrun.dry_step import UnsentGloo, UnsentNccl, UnsentTransport
from spbench.projection.dryrun.recorder import Recorder
from spbench.projection.dryrun.trace import work
from spbench.projection.dryrun.work import Memory
from spbench.strategies.registry import load, places
from spbench.worker import memory
from spbench.worker.step import Step, state_tensors
from spbench.workload.case import Device
from spbench.workload.workload import Workload


def workload(**fields: Any) -> Workload:
    block = [{"attention": "space"}, {"attention": "time"}, {"cross_attention": 5}, {"mlp": 2}]
    plain = {"name": "w", "axes": {"time": 10, "space": 96}, "hidden": 32, "heads": 4}
    more = {"depth": 2, "modulation": "per_sample", "block": block}
    return Workload.model_validate(plain | more | fields)


def real_peak(shape: Workload, strategy: str, ranks: int, pack: type[UnsentTransport]) -> int:
    """Peak of the storages of rank 0's step on a CPU, whose messages are packed and not sent."""
    strategy_own, gradients = (pack(0, ranks, Recorder()) for _ in range(2))
    transports = Transports(strategy=strategy_own, gradients=gradients)
    step = Step(load(strategy).on(shape, ranks), transports, torch.device("cpu"))
    inputs, cotangent = step.seeded_inputs()
    step(inputs, cotangent)  # the first makes the optimizer's state
    step.model.zero_grad(set_to_none=True)
    inputs.forget_gradients()
    kept = state_tensors(step.optimizer)
    there = [*step.model.parameters(), *inputs.tensors, cotangent, *kept]
    return memory.measure(lambda: step(inputs, cotangent), there, step.device)[
        "peak_allocated_bytes"
    ]


def dry(shape: Workload, strategy: str, ranks: int, device: Device = "cuda") -> Memory:
    held = work(shape, load(strategy), ranks, 0, with_memory=True, device=device).memory
    assert held is not None
    return held


@pytest.mark.parametrize("strategy", places())
@pytest.mark.parametrize("pack", [UnsentGloo, UnsentNccl])
def test_the_peak_is_a_real_steps(
    pack: type[UnsentTransport], strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain, and with checkpointing and AdamW; but for what kernels take inside. In a short run
    each strategy has one of the three with gloo's packing, another with NCCL's."""
    monkeypatch.setattr(recorder, "workspace_bytes", lambda *_: 0)
    monkeypatch.setattr(dry_step, "UnsentGloo", pack)
    forms: list[dict[str, Any]] = [{}, {"checkpointing": "full", "optimizer": "adamw"}]
    forms += [{"checkpointing": "selective"}]
    turn = ([*places()].index(strategy) + (pack is UnsentNccl)) % 3
    for fields in forms if ALL else [forms[turn]]:
        shape = suited(strategy, workload(**fields))
        assert dry(shape, strategy, 4, "cpu").peak == real_peak(shape, strategy, 4, pack)


@pytest.mark.parametrize(
    "fields", [{}, {"checkpointing": "full"}, {"checkpointing": "selective"}, {"mode": "forward"}]
)
def test_few_blocks_tell_the_peak_of_all(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By part, where activations are most of it."""
    shape = workload(depth=9, batch=4, **fields)
    whole = dry(shape, "dsp", 4)
    monkeypatch.setattr(depths, "WHOLE_LAUNCHES", 0)
    few = dry(shape, "dsp", 4)
    assert few.peak == pytest.approx(whole.peak, rel=0.005)
    assert few.activations == pytest.approx(whole.activations, rel=0.02)


def test_parts_of_the_peak() -> None:
    """The optimizer keeps two moments of each weight; cut weights are a part of all."""
    plain, adamw = (dry(workload(optimizer=name), "dsp", 4) for name in ("none", "adamw"))
    assert plain.optimizer == 0
    assert 2 * adamw.parameters < adamw.optimizer < 4 * adamw.parameters
    assert adamw.peak - adamw.optimizer == plain.peak
    assert dry(workload(), "megatron-sp", 4).parameters < plain.parameters
