"""Any strategy across groups that cut the weights equals one device, byte for byte."""

from __future__ import annotations

import pytest
from helpers.complaints import DIFFERS
from helpers.run_on_threads import complaint, run_on_threads, verify_on_threads

from spbench.projection.dryrun import trace
from spbench.strategies.registry import in_mesh, load, places
from spbench.workload.catalogue import find, with_settings
from spbench.workload.mesh import TP, CaseMesh
from spbench.workload.sharding import Shard
from spbench.workload.traffic import by_busiest, by_op, count
from spbench.workload.workload import Workload

TWO, LONG = CaseMesh(tp=2), pytest.mark.long
CUT = ("megatron-sp", "megatron-tp")
"""Those that cut the weights themselves."""


def shape(name: str = "axes-2d", *settings: str) -> Workload:
    return with_settings(find(name, "verify"), ["dtype=float64", *settings])


@pytest.mark.parametrize("strategy", [name for name in places() if name not in CUT])
def test_every_strategy_equals_one_device(strategy: str) -> None:
    """Two groups of two ranks: values, gradients and bytes by axis."""
    assert verify_on_threads(shape("axes-2d", "depth=1"), strategy, 4, TWO) == ""


@pytest.mark.parametrize(
    ("name", "strategy", "ranks", "tp"),
    [
        ("axes-3d-uneven", "dsp", 6, 3),
        ("axes-3d-uneven", "dsp", 8, 2),
        ("streams", "ulysses", 4, 2),
        ("causal", "ring", 4, 2),
        ("causal", "kv-gather", 6, 2),
        pytest.param("axes-2d", "usp:ulysses=2", 8, 2, marks=LONG),
        pytest.param("axes-2d", "rsa:reduce-scatter", 8, 4, marks=LONG),
        pytest.param("streams", "attention-2d", 8, 2, marks=LONG),
    ],
)
def test_shapes_and_sizes(name: str, strategy: str, ranks: int, tp: int) -> None:
    """Three axes in rotation, text, masks; recomputed, with an optimizer."""
    work = shape(name, "checkpointing=full", "optimizer=adamw")
    assert verify_on_threads(work, strategy, ranks, CaseMesh(tp=tp)) == ""


@pytest.mark.parametrize("strategy", ["dsp", "ulysses"])
def test_inside_of_groups_of_samples(strategy: str) -> None:
    """Half of the batch, and in it two groups that cut the weights; what is timed was proved."""
    mesh = CaseMesh(dp=2, tp=2)
    samples = run_on_threads(shape("axes-2d", "batch=2", "depth=1"), strategy, 8, mesh=mesh)
    assert complaint(samples) == ""
    assert [*samples[0].mesh] == ["dp", "sequence", TP]
    assert samples[0].sent_by_axis == samples[0].predicted_by_axis


def test_it_is_what_megatron_has_as_an_option() -> None:
    """The same bytes, operation by operation."""
    work = find("llama3-8b")
    option, mesh = load("megatron-sp:tp=4").on(work, 16), in_mesh("ulysses", CaseMesh(tp=4))
    assert by_op(count(mesh.on(work, 16).traffic, 3)) == by_op(count(option.traffic, 3))


@pytest.mark.parametrize("strategy", ["dsp", "ring"])
def test_a_step_without_data_sends_as_much(strategy: str) -> None:
    """The dry run's messages are those that are predicted."""
    work, meshed = shape("axes-2d", "depth=1"), in_mesh(strategy, TWO)
    sent = sum(by_busiest(meshed.on(work, 4).traffic).values())
    assert trace.work(work, meshed, 4).sent_bytes == sent


@pytest.mark.parametrize(
    ("strategy", "tp", "ranks", "why"),
    [
        ("ulysses", 3, 8, "use a multiple of 3 ranks"),
        ("ulysses", 16, 16, "8 heads cannot be split over 16 ranks of tp=16; use 1 to 8 ranks"),
        ("ulysses", 2, 16, "with each group of tp=2 as one rank, 4 heads cannot be split over 8"),
        ("megatron-sp", 2, 4, "it cuts the weights itself, and does not go across groups of tp=2"),
        ("dsp", 2, 16, "8 positions of time cannot be split over 16 ranks; use 1 to 8 ranks"),
    ],
)
def test_what_cannot_be_is_declined(strategy: str, tp: int, ranks: int, why: str) -> None:
    """In a sentence with values that would work."""
    assert why in (in_mesh(strategy, CaseMesh(tp=tp)).declines(shape(), ranks) or "")


def test_the_gate_misses_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group whose ranks take each other's parts of the sequence is caught."""
    split = Shard.split

    def swapped(shard: Shard, parts: int) -> Shard:
        whole = split(shard, parts)
        return whole.among([rank ^ 1 for rank in range(len(whole.runs))])

    monkeypatch.setattr(Shard, "split", swapped)
    assert DIFFERS in verify_on_threads(shape("axes-2d", "depth=1"), "dsp", 4, TWO)
