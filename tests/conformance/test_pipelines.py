"""Stages of a pipeline by torch's schedule: equal to one device, every byte counted."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.complaints import DIFFERS
from helpers.run_on_threads import complaint, run_on_threads, verify_on_threads

from spbench.comm.gradient_buckets import Bucket
from spbench.strategies import pipeline
from spbench.strategies.registry import in_mesh, meshed
from spbench.worker.stage_step import StageStep
from spbench.workload.catalogue import find, with_settings
from spbench.workload.mesh import PP, CaseMesh
from spbench.workload.stages import Stage, Stages
from spbench.workload.traffic import count
from spbench.workload.workload import Workload

TWO = CaseMesh(pp=2)


def shape(name: str = "axes-2d", *settings: str) -> Workload:
    common = ["dtype=float64", "batch=2", "optimizer=adamw"]
    return with_settings(find(name, "verify"), [*common, *settings])


@pytest.mark.parametrize(
    "strategy", ["dsp", "ulysses", "ring", "megatron-sp", "megatron-tp", "kv-gather", "rsa"]
)
def test_two_stages_of_two_ranks(strategy: str) -> None:
    """Output, gradients, weights after two updates; bytes of every kind."""
    assert verify_on_threads(shape(), strategy, 4, TWO) == ""


@pytest.mark.parametrize(
    ("name", "strategy", "ranks", "mesh", "settings"),
    [
        ("axes-2d", "ulysses", 8, {"pp": 2, "tp": 2}, []),
        ("causal", "ring", 8, {"pp": 2, "tp": 2}, []),
        ("axes-2d", "dsp", 8, {"dp": 2, "pp": 2}, ["batch=4"]),
        ("axes-2d", "ulysses", 8, {"pp": 2, "dp": 2}, ["batch=4"]),
        ("guided", "dsp", 8, {"pp": 2, "cfg": 2}, ["depth=2"]),
        ("axes-2d", "ulysses", 2, {"pp": 2}, []),
        ("axes-2d", "ring", 4, {"pp": 4}, ["batch=5", "depth=6"]),
        ("streams", "ulysses", 4, {"pp": 2}, []),
        ("pair-bias", "ulysses", 4, {"pp": 2}, ["depth=2"]),
        ("stacks", "ulysses", 4, {"pp": 2}, []),
        ("checkpointed", "dsp", 4, {"pp": 2}, ["depth=3"]),
        ("axes-2d-uneven", "dsp", 6, {"pp": 2}, ["batch=4", "microbatches=2", "depth=2"]),
        ("axes-2d", "usp", 8, {"pp": 2}, []),
        ("axes-2d", "ulysses", 4, {"pp": 2}, ["mode=forward", "optimizer=none"]),
        ("axes-2d", "ulysses", 4, {"pp": 2}, ["dtype=bfloat16"]),
    ],
)
def test_shapes_and_meshes(
    name: str, strategy: str, ranks: int, mesh: dict[str, int], settings: list[str]
) -> None:
    """Text, pairs, a mask, other axes around and inside, more microbatches than stages."""
    work, around = shape(name, *settings), CaseMesh.model_validate(mesh)
    assert in_mesh(strategy, around).declines(work, ranks) is None
    assert verify_on_threads(work, strategy, ranks, around) == ""


def test_what_is_timed_is_what_was_proved() -> None:
    """Memory, silent and timed steps; a stage keeps half of the weights, and waits as it says."""
    whole, half = (
        run_on_threads(shape("axes-2d", "batch=4"), "ulysses", 4, mesh=mesh)
        for mesh in (CaseMesh(dp=2), TWO)
    )
    assert complaint(half) == ""
    assert half[0].sent_by_axis == half[0].predicted_by_axis
    assert half[0].sent_by_axis is not None and half[0].sent_by_axis[PP] > 0
    assert half[0].optimizer_bytes is not None and whole[0].optimizer_bytes is not None
    assert half[0].optimizer_bytes < 0.7 * whole[0].optimizer_bytes
    assert half[0].bubble == 0.25  # (2 stages - 1) / 4 microbatches


@pytest.mark.parametrize(
    ("mesh", "settings", "said"),
    [
        ({"pp": 3}, [], "1 to 2"),
        ({"pp": 2}, ["batch=1"], "2 samples or more"),
        ({"pp": 2}, ["batch=4", "microbatches=1"], "2 or 4"),
        ({"pp": 2}, ["zero=2"], "zero 0"),
    ],
)
def test_what_works_is_said(mesh: dict[str, int], settings: list[str], said: str) -> None:
    """Too many stages, too few samples, microbatches that fill none, weights shared out."""
    why = in_mesh("ulysses", CaseMesh.model_validate(mesh)).declines(shape("axes-2d", *settings), 6)
    assert why is not None and said in why


def test_ranks_that_make_no_stages() -> None:
    """An odd number on two stages."""
    assert "a multiple of 2" in str(meshed("ulysses pp=2").declines(shape(), 3))


def test_a_pipeline_sends_activations_alone_between_stages() -> None:
    """Once there and once back for each microbatch, of each rank what it holds."""
    work = shape("axes-2d", "batch=4")
    traffic = meshed("ulysses pp=2").on(work, 4).traffic
    part = work.activation_bytes // 2
    assert count(traffic, 0)["forward", "p2p", PP] == part
    assert count(traffic, 2)["backward", "p2p", PP] == part
    assert ("backward", "p2p", PP) not in count(traffic, 0)


def test_a_stage_boundary_that_is_swapped_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages that hold one another's blocks."""
    right = Stages.of

    def swapped(workload: Workload, stages: int, microbatches: int) -> Stages:
        first, last = right(workload, stages, microbatches).parts
        parts = Stage(last.blocks, is_last=False), Stage(first.blocks, is_first=False)
        return Stages(parts, microbatches)

    monkeypatch.setattr(pipeline.Stages, "of", swapped)
    assert DIFFERS in verify_on_threads(shape(), "ulysses", 4, TWO)


def test_microbatches_in_another_order_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last stage's gradients of the output, of other samples than it has."""
    right = StageStep._part

    def reversed_(step: StageStep, x: Any, number: int) -> Any:
        is_cotangent = x is step._cotangent
        return right(step, x, step.microbatches - 1 - number if is_cotangent else number)

    monkeypatch.setattr(StageStep, "_part", reversed_)
    assert DIFFERS in verify_on_threads(shape(), "ulysses", 4, TWO)


def test_gradients_of_the_last_microbatch_alone_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each backward begins anew, as it would without accumulation."""
    right = StageStep.backward

    def anew(step: StageStep, number: int) -> None:
        step.model.zero_grad(set_to_none=True)
        right(step, number)

    monkeypatch.setattr(StageStep, "backward", anew)
    assert DIFFERS in verify_on_threads(shape(), "ulysses", 4, TWO)


def test_the_condition_summed_in_its_stage_alone_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum over one axis too few, of what all stages have."""
    monkeypatch.setattr("spbench.model.transformer.mark_of_all_stages", lambda *_: None)
    work = shape("axes-2d", "modulation=per_sample")
    said = verify_on_threads(work, "ulysses", 4, TWO)
    assert DIFFERS in said or "sent" in said


def test_what_all_stages_have_is_summed_last() -> None:
    """While one stage is done, another waits for its gradients."""
    assert Bucket((PP, "sequence"), []).is_late
    assert not Bucket(("sequence",), []).is_late
