"""Samples on groups of ranks: any strategy, with its own messages alone."""

from __future__ import annotations

import pytest
from helpers.golden import Golden
from helpers.run_on_threads import complaint, run_on_threads, verify_on_threads
from helpers.variants import suited

from spbench.projection.dryrun import trace
from spbench.strategies.registry import in_mesh, load, places
from spbench.worker import step
from spbench.workload.catalogue import find, with_settings
from spbench.workload.mesh import CFG, DP, CaseMesh
from spbench.workload.traffic import by_busiest, by_op, count
from spbench.workload.workload import Workload

TWO, LONG = CaseMesh(cfg=2), pytest.mark.long


def guided(*settings: str, shape: str = "axes-2d") -> Workload:
    return with_settings(find(shape, "verify"), ["guidance=2", "dtype=float64", *settings])


@pytest.mark.parametrize("strategy", places())
def test_every_strategy_equals_one_device(strategy: str) -> None:
    """Two groups of two ranks: values, gradients and bytes by axis."""
    assert verify_on_threads(suited(strategy, guided("depth=1")), strategy, 4, TWO) == ""


@pytest.mark.parametrize("strategy", ["ulysses", pytest.param("megatron-sp", marks=LONG)])
def test_text_goes_with_its_branch(strategy: str) -> None:
    """Text, in blocks with weights of its own."""
    assert verify_on_threads(guided(shape="streams"), strategy, 4, TWO) == ""


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["usp:ulysses=2", "attention-2d", "megatron-tp"])
def test_groups_within_groups(strategy: str) -> None:
    """Two groups of four ranks, whose strategy has groups of its own."""
    assert verify_on_threads(guided(), strategy, 8, TWO) == ""


@pytest.mark.parametrize("strategy", ["dsp", "ulysses", "megatron-sp"])
@pytest.mark.parametrize("mesh", [CaseMesh(dp=2, cfg=2), CaseMesh(cfg=2, dp=2)], ids=str)
def test_batch_and_branches_together(mesh: CaseMesh, strategy: str) -> None:
    """Each group has half of the batch of one branch, in either order; with an optimizer."""
    work = guided("batch=2", "depth=1", "optimizer=adamw")
    assert verify_on_threads(work, strategy, 8, mesh) == ""


@pytest.mark.parametrize(("guidance", "cfg", "ranks"), [(4, 2, 2), (4, 4, 4), (3, 3, 6)])
def test_parts_of_several_branches(guidance: int, cfg: int, ranks: int) -> None:
    """A group may have several branches, and may be a single rank."""
    work = guided(f"guidance={guidance}", "depth=1", "checkpointing=full")
    assert verify_on_threads(work, "ulysses", ranks, CaseMesh(cfg=cfg)) == ""


def test_what_is_timed_is_what_was_proved() -> None:
    """Memory, silent and timed steps in groups; the sample has bytes by axis."""
    work = with_settings(find("axes-2d", "verify"), ["guidance=2", "depth=1"])
    samples = run_on_threads(work, "megatron-sp", 4, mesh=TWO)
    assert complaint(samples) == ""
    sent = samples[0].sent_by_axis
    assert sent is not None
    assert sent == samples[0].predicted_by_axis
    assert [*samples[0].mesh] == [CFG, "sequence"] and {*sent} == {CFG, "all", "sequence"}


@pytest.mark.parametrize("strategy", places())
def test_forward_sends_what_the_strategy_sends(strategy: str) -> None:
    """In forward a rank sends what it does where half of the branches are all of the workload."""
    works = guided("mode=forward"), guided("mode=forward", "guidance=1")
    work, alone = (suited(strategy, each) for each in works)
    sent = in_mesh(strategy, TWO).on(work, 8).traffic
    assert by_busiest(sent) == by_busiest(load(strategy).on(alone, 4).traffic)
    assert CFG not in {transfer.axis for transfer in sent}


@pytest.mark.parametrize("strategy", ["ulysses", "megatron-sp"])
def test_gradients_are_summed_over_all_ranks(strategy: str) -> None:
    """A weight that is cut inside of each group is summed over cfg, others over all ranks."""
    work = guided()
    sums = {
        x.axis: float(x.most)
        for x in in_mesh(strategy, TWO).on(work, 4).traffic
        if x.phase == "gradients"
    }
    assert [*sums] == (["all"] if strategy == "ulysses" else ["all", CFG])
    inside = count(load(strategy).on(work, 2).traffic, 0)
    assert by_op(inside)["all_reduce"] < sum(sums.values())


@pytest.mark.parametrize("axis", [CFG, DP])
def test_the_gate_misses_no_group(axis: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum that leaves an axis out has half of the gradients, and is caught."""
    monkeypatch.setattr(step, "summed_over", lambda _, mesh, holds_whole: mesh.without(axis))
    mesh = CaseMesh.model_validate({axis: 2})
    assert "gradient" in verify_on_threads(guided("batch=2", "depth=1"), "ulysses", 4, mesh)


@pytest.mark.parametrize("strategy", ["ulysses", "megatron-sp"])
def test_a_step_without_data_sends_as_much(strategy: str) -> None:
    """Kernels and messages of a rank come from its group's model, gradients from all ranks."""
    meshed = in_mesh(strategy, TWO)
    traced = trace.work(guided("depth=1"), meshed, 4)
    assert [axis for axis, _ in traced.mesh] == [CFG, "sequence"]
    assert traced.sent_bytes == sum(by_busiest(meshed.on(guided("depth=1"), 4).traffic).values())


def test_groups_are_outermost(golden: Golden) -> None:
    """The ranks of a group are neighbours; the strategy's own groups lie inside of it."""
    mesh = in_mesh("usp:ulysses=2", TWO).on(guided(), 8).mesh
    golden(str(mesh))
    assert mesh.groups("ring", "heads") == ((0, 1, 2, 3), (4, 5, 6, 7))


@pytest.mark.parametrize(
    ("guidance", "cfg", "ranks", "why"),
    [
        (2, 3, 6, "2 branches of guidance cannot make 3 equal parts; cfg may be 1 or 2"),
        (4, 3, 6, "4 branches of guidance cannot make 3 equal parts; cfg may be 1 or 2 or 4"),
        (1, 2, 4, "cfg=2 needs branches of guidance, as with guidance=2"),
        (2, 2, 3, "3 ranks do not make 2 groups for cfg; use a multiple of 2 ranks"),
        (2, 2, 40, "in each of 2 groups: 8 heads cannot be split over 20 ranks; use 1 to 8 ranks"),
    ],
)
def test_what_cannot_be_is_declined(guidance: int, cfg: int, ranks: int, why: str) -> None:
    """In a sentence with values that would work."""
    work, strategy = guided(f"guidance={guidance}"), in_mesh("ulysses", CaseMesh(cfg=cfg))
    assert (strategy.misfit(work) or strategy.why_not(work, ranks)) == why


def test_a_batch_that_does_not_divide_is_declined() -> None:
    """With the sizes that would work."""
    unfit = in_mesh("ulysses", CaseMesh(dp=4)).misfit(guided("batch=6"))
    may_be = "dp may be 1 or 2 or 3 or 6, or the batch a multiple of 4"
    assert unfit == f"6 samples in a batch cannot make 4 equal parts; {may_be}"
