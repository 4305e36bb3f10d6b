"""Weights that ranks share out by torch's fully_shard: equal to one device, every byte counted."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.complaints import DIFFERS
from helpers.run_on_threads import complaint, run_on_threads, verify_on_threads
from torch.distributed.tensor import DTensor

from spbench.comm import sharded_weights
from spbench.strategies.registry import in_mesh
from spbench.worker import step
from spbench.workload.catalogue import find, with_settings
from spbench.workload.mesh import NO_MESH, CaseMesh
from spbench.workload.weights import FSDP
from spbench.workload.workload import Workload

LONG = pytest.mark.long


def shape(name: str = "axes-2d", *settings: str) -> Workload:
    common = ["dtype=float64", "batch=2", "optimizer=adamw"]
    return with_settings(find(name, "verify"), [*common, *settings])


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("strategy", ["dsp", "ulysses", "ring"])
def test_half_of_the_batch(strategy: str, zero: int) -> None:
    """Over the joined axes of data and sequence: gradients, and weights after two updates."""
    work = shape("axes-2d", f"zero={zero}")
    assert verify_on_threads(work, strategy, 4, CaseMesh(dp=2)) == ""


@pytest.mark.parametrize(
    ("name", "strategy", "ranks", "mesh", "zero"),
    [
        ("streams", "ulysses", 3, NO_MESH, 3),
        ("causal", "ring", 4, CaseMesh(tp=2), 3),
        ("causal", "dsp", 4, CaseMesh(tp=2), 2),
        ("axes-2d-uneven", "ulysses", 3, NO_MESH, 3),
        ("mixed", "kv-gather", 4, NO_MESH, 2),
        ("wide-heads", "kv-gather", 3, NO_MESH, 3),
        ("axes-2d", "megatron-sp", 4, CaseMesh(dp=2), 3),
        ("axes-2d", "megatron-tp", 4, CaseMesh(dp=2), 1),
        ("axes-2d", "megatron-sp", 2, NO_MESH, 3),
        ("checkpointed", "ulysses", 4, CaseMesh(dp=2), 3),
        ("selective", "ulysses", 2, NO_MESH, 3),
        ("stacks", "ulysses", 3, NO_MESH, 2),
        ("guided", "dsp", 4, CaseMesh(cfg=2), 3),
    ],
)
def test_shapes_and_meshes(name: str, strategy: str, ranks: int, mesh: CaseMesh, zero: int) -> None:
    """Text, uneven rows, few key heads, biases; beside ranks that cut weights; recomputed."""
    work = shape(name, f"zero={zero}")
    why = in_mesh(strategy, mesh).declines(work, ranks)
    if why:
        pytest.skip(why)
    assert verify_on_threads(work, strategy, ranks, mesh) == ""


def test_what_is_timed_is_what_was_proved() -> None:
    """Memory, silent and timed steps; bytes by axis, and moments of a rank's part alone."""
    kept: list[Any] = []
    for zero in (0, 2):
        samples = run_on_threads(
            shape("axes-2d", f"zero={zero}"), "ulysses", 4, mesh=CaseMesh(dp=2)
        )
        assert complaint(samples) == ""
        assert samples[0].sent_by_axis == samples[0].predicted_by_axis
        kept.append(samples[0].optimizer_bytes)
    assert samples[0].sent_by_axis is not None and samples[0].sent_by_axis[FSDP] > 0
    assert kept[1] < 0.3 * kept[0]


def test_gradients_of_one_group_alone_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum that leaves the other half of the batch out."""
    monkeypatch.setattr(step, "sharing_axes", lambda mesh, _: mesh.without("dp"))
    said = verify_on_threads(shape("axes-2d", "zero=2"), "ulysses", 4, CaseMesh(dp=2))
    assert DIFFERS in said or "sent" in said


def test_a_mean_in_place_of_the_sum_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A division of what each rank sends by the number of ranks."""
    right = sharded_weights._Scatters.__call__

    def mean(scatters: Any, output_tensor: Any, input_tensor: Any, group: Any, op: Any) -> None:
        right(scatters, output_tensor, input_tensor.div_(group.size()), group, op)

    monkeypatch.setattr(sharded_weights._Scatters, "__call__", mean)
    assert DIFFERS in verify_on_threads(shape("axes-2d", "zero=3"), "ulysses", 2)


def test_a_part_that_is_not_updated_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moments of some weights of a part, which stay as they were."""
    right = step.adamw

    def fewer(parameters: Any) -> Any:
        weights = [*parameters]  # one device has all of them
        return right(weights[:-4] if isinstance(weights[0], DTensor) else weights)

    monkeypatch.setattr(step, "adamw", fewer)
    assert DIFFERS in verify_on_threads(shape("axes-2d", "zero=2"), "ulysses", 2)
