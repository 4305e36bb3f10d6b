"""The transformer written by hand, which our step's time is compared with, is the same one."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from spbench.comm.fake import silent_transports
from spbench.strategies.registry import load
from spbench.worker.step import Step
from spbench.workload.catalogue import find, with_settings

PATH = Path(__file__).parents[3] / "benchmarks" / "by_hand.py"
TINY = ["hidden=32", "heads=4", "dtype=float64"]


@pytest.fixture(scope="module")
def by_hand() -> ModuleType:
    spec = importlib.util.spec_from_file_location("by_hand", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dsp-720m-small", ["axes={time: 3, space: 10}"]),
        ("latte-1-small", ["axes={time: 4, space: 6}", "modulation=none"]),
        ("axial-weather-small", []),
    ],
)
def test_outputs_and_gradients_agree(
    by_hand: ModuleType, name: str, settings: list[str], checkpointing: str, batch: int
) -> None:
    """In float64, every gradient by name."""
    more = [f"checkpointing={checkpointing}", f"batch={batch}"]
    work = with_settings(find(name), [*TINY, *settings, *more])
    assert by_hand.why_not(work) is None
    step = Step(load("dsp").on(work, 1), silent_transports(0, 1), torch.device("cpu"))
    found = by_hand.differences(step, by_hand.with_weights_of(step), *step.seeded_inputs())
    assert set(found) == {"output", "gradient of the input"} | {
        f"gradient of {name}" for name, _ in step.model.named_parameters()
    }
    assert max(found.values()) < 1e-12


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama3-8b-small", "norm 'rms'; by hand there is only 'layer'"),
        ("hunyuan-like-small", "qk_norm True"),
        ("evoformer-pair-small", "attention other than plain or causal along one axis"),
    ],
)
def test_other_blocks_are_refused(by_hand: ModuleType, name: str, words: str) -> None:
    assert words in by_hand.why_not(find(name))


def test_attentions_alone_are_not_computed_again_by_hand(by_hand: ModuleType) -> None:
    """Without any would be another step than ours."""
    work = with_settings(find("dsp-720m-small"), ["checkpointing=selective"])
    assert "there are whole blocks, or none" in by_hand.why_not(work)


def test_times_come_in_pairs(by_hand: ModuleType) -> None:
    """Two pairs are not timed; which comes first alternates."""
    calls: list[str] = []
    times = by_hand.times_ms(
        lambda: calls.append("ours"), lambda: calls.append("hand"), 2, torch.device("cpu")
    )
    assert len(times) == 2
    assert calls == ["hand", "ours", "ours", "hand"] * 2
