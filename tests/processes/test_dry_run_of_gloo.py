"""A dry run tells what a real step on gloo processes sends, computes and holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.multiprocessing as mp
from helpers.step_on_gloo import Case, run_steps

from spbench.projection.dryrun.trace import work
from spbench.strategies.registry import load, places
from spbench.workload.mesh import NO_MESH, CaseMesh
from spbench.workload.workload import Workload

SETTINGS: list[dict[str, Any]] = [
    {"checkpointing": checkpointing, "optimizer": optimizer}
    for checkpointing in ("none", "full")
    for optimizer in ("none", "adamw")
]
SETTINGS.insert(0, {"checkpointing": "selective"})
MESHES = [
    *(f"usp:ulysses=2:across={name}" for name in ("ring", "kv-gather", "attention-2d")),
    *(f"megatron-sp:tp=2:across={name}" for name in ("ulysses", "ring")),
    "attention-2d:rows=2",
]
THREE_AXES = {
    "axes": {"time": 8, "height": 16, "width": 32},
    "block": [{"attention": axis} for axis in ("time", "height", "width")],
}
BIASED = {"block": [{"attention": "space", "pair_bias": 4}, {"attention": "time"}, {"mlp": 4}]}
"""Where torch computes the bias's gradient in products of its own, on a CPU."""
HALF = {"dtype": "bfloat16", "optimizer": "none"}
"""In 16 bits a dry run rounds AdamW's many small states up to twice their size: without them."""
BOUND = 0.002
"""How far a peak may be off, as a fraction: sizes are rounded up to 512 bytes in a dry run."""


def workload(**fields: Any) -> Workload:
    block = [{"attention": "space"}, {"attention": "time"}, {"cross_attention": 77}, {"mlp": 4}]
    plain = {"name": "w", "axes": {"time": 16, "space": 256}, "hidden": 128, "heads": 4}
    return Workload.model_validate(plain | {"depth": 2, "block": block} | fields)


def wrong(cases: list[Case], ranks: int, folder: Path) -> str:
    """Where ranks differ from their dry runs."""
    mp.get_context("forkserver").set_forkserver_preload(["spbench.launch.preload"])
    given = ranks, str(folder), cases, BOUND
    mp.start_processes(run_steps, given, ranks, start_method="forkserver")
    return "".join((folder / f"{rank}.txt").read_text() for rank in range(ranks))


def test_the_rank_with_most_bytes(tmp_path: Path) -> None:
    """Four key heads under a mask on three ranks: the peak of a dry run is that of the rank which
    held the most, within 0.2 %."""
    shape = uneven_and_causal()
    names = ("megatron-sp", "ulysses", "kv-gather")
    assert not wrong([(name, NO_MESH, shape) for name in names], 3, tmp_path)
    peaks = [map(int, (tmp_path / f"{rank}.peaks").read_text().split()) for rank in range(3)]
    for name, *of_ranks in zip(names, *peaks, strict=True):
        memory = work(shape, load(name), 3, with_memory=True, device="cpu").memory
        assert memory is not None
        assert memory.peak == pytest.approx(max(of_ranks), rel=BOUND), (name, of_ranks)


def uneven_and_causal() -> Workload:
    return Workload.model_validate(
        {
            "name": "causal-uneven",
            "axes": {"sequence": 1536},
            "hidden": 256,
            "heads": 8,
            "kv_heads": 4,
            "depth": 2,
            "block": [{"attention": "sequence", "causal": True}, {"mlp": 1}],
            "norm": "rms",
            "positions": "rotary",
        }
    )


@pytest.mark.long
def test_two_ranks(tmp_path: Path) -> None:
    """An all-to-all, rings and sums of activations."""
    cases = [(name, NO_MESH, workload()) for name in ("dsp", "megatron-tp", "rsa")]
    cases += [(name, NO_MESH, workload(**SETTINGS[-1])) for name in ("ring", "megatron-tp")]
    assert not wrong(cases, 2, tmp_path)


@pytest.mark.long
def test_every_strategy_and_mesh(tmp_path: Path) -> None:
    """Four ranks, with each checkpointing, with and without AdamW."""
    cases = [
        case
        for fields in SETTINGS
        for case in (
            *((name, NO_MESH, workload(**fields)) for name in [*places(), *MESHES]),
            ("dsp:inner=2", NO_MESH, workload(**THREE_AXES, **fields)),
            ("ulysses", CaseMesh(cfg=2), workload(guidance=2, **fields)),
            *((name, NO_MESH, workload(**BIASED, **fields)) for name in ("dsp", "ulysses")),
            ("ulysses", NO_MESH, workload(**BIASED, **fields | HALF)),
        )
    ]
    assert not wrong(cases, 4, tmp_path)


def test_stages_of_a_pipeline(tmp_path: Path) -> None:
    """Each of its ranks, with as many microbatches as are under way in its stage."""
    more = {"optimizer": "adamw", "batch": 4}
    cases = [("ulysses", CaseMesh(pp=2), workload(**more))]
    cases.append(("dsp", CaseMesh(pp=2), workload(checkpointing="full", microbatches=2, **more)))
    assert not wrong([*cases, ("ulysses", CaseMesh(pp=2, tp=2), workload(**more))], 4, tmp_path)


def test_weights_that_are_shared_out(tmp_path: Path) -> None:
    """By torch's own code in both: with AdamW, recomputed, beside groups that cut weights."""
    more = {"optimizer": "adamw", "batch": 2}
    meshed = [("ulysses", CaseMesh(dp=2), workload(zero=zero, **more)) for zero in (1, 2, 3)]
    recomputed = workload(zero=3, checkpointing="full", **more)
    assert not wrong([*meshed, ("dsp", CaseMesh(tp=2), recomputed)], 4, tmp_path)
