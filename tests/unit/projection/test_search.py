"""The search among plans ends at the fastest of all: nothing that it leaves out is faster."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest

from spbench.errors import Failure
from spbench.projection.advise.plans import RECOMPUTED, STAGES, Candidate, meshes, plans, settings
from spbench.projection.advise.project import Projection, project
from spbench.projection.advise.recommend import recommend
from spbench.projection.advise.search import Search, Searched
from spbench.projection.costmodel.cluster_file import find as find_cluster
from spbench.projection.costmodel.constants import constant
from spbench.projection.costmodel.hardware import Cluster
from spbench.projection.costmodel.step_time import Mode
from spbench.projection.dryrun.rank_work import WorkOf, works
from spbench.results.record import USABLE
from spbench.strategies.registry import places
from spbench.workload.catalogue import find, with_settings
from spbench.workload.workload import Workload

FEW = ("ulysses", "ring", "kv-gather", "megatron-sp")
SAMPLING = ("guidance=2", "mode=forward", "checkpointing=none")


def searched(
    workload: Workload, on: Cluster, ranks: int, names: Sequence[str], work_of: WorkOf
) -> tuple[list[Projection], Searched]:
    """All plans, and what the search found among them, by the same dry runs."""

    def runs(candidates: Sequence[Candidate]) -> list[Projection]:
        return [
            case
            for each in candidates
            for case in project(each.workload, on, [each.name], [ranks], Mode(), work_of)
        ]

    candidates = plans(names, workload, ranks, {}).candidates
    return runs(candidates), Search(workload, candidates, on, Mode(), ranks).run(runs)


def fastest(runs: Sequence[Projection]) -> Projection:
    fit = [x for x in runs if x.cost and (x.peak_bytes or 0) <= USABLE * x.limit_bytes]
    return min(fit, key=lambda each: each.took.step_s)


@pytest.mark.parametrize("names", [FEW, pytest.param((), marks=pytest.mark.long, id="all")])
@pytest.mark.parametrize(
    ("cluster", "ranks", "gain"),
    [("l20-pcie", 8, 1.2), ("hgx-h100", 8, 1.0), ("hgx-h100", 16, 1.1)],
)
def test_the_answer_is_the_fastest_of_all_plans(
    cluster: str, ranks: int, gain: float, names: Sequence[str]
) -> None:
    """Branches of guidance apart, which no strategy alone comes near to."""
    workload = with_settings(find("wan-2.2-ti2v-5b"), SAMPLING)
    work_of = works("cuda", with_memory=True)
    every, found = searched(workload, find_cluster(cluster), ranks, names or [*places()], work_of)
    best, answer = fastest(every), fastest(found.projected)
    assert answer.took.step_s == best.took.step_s
    assert answer.strategy.split()[1] == "cfg=2"
    assert len(found.projected) < (1 if names else 0.6) * len(every)
    alone = fastest([each for each in every if " " not in each.strategy])
    assert alone.took.step_s > gain * best.took.step_s
    ran = {each.strategy for each in found.projected}
    for each in every:
        if each.strategy not in ran:
            assert each.took.step_s >= found.at_least * best.took.step_s


TRAINING = ("mode=train", "optimizer=adamw", "batch=2", "hidden=512")


@pytest.fixture(scope="module")
def trained() -> tuple[Workload, WorkOf]:
    return with_settings(find("dsp-720m-small"), TRAINING), works("cuda", with_memory=True)


def with_memory(gigabytes: float) -> Cluster:
    cluster = find_cluster("l20-pcie")
    size = constant(gigabytes)
    return cluster.model_copy(
        update={"device": cluster.device.model_copy(update={"memory_gb": size})}
    )


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_training_gets_the_fastest_that_fits(part: float, trained: tuple[Workload, WorkOf]) -> None:
    """Where a part of all plans fits, among what ranks share out and compute again."""
    workload, work_of = trained
    every, _ = searched(workload, with_memory(48), 4, ["ulysses", "ring"], work_of)
    peaks = sorted(each.peak_bytes or 0 for each in every)
    limit = with_memory(peaks[round(part * len(peaks))] / 1e9 / USABLE * 1.0001)
    every, found = searched(workload, limit, 4, ["ulysses", "ring"], work_of)
    best = fastest(every)
    assert fastest(found.projected).took.step_s == best.took.step_s
    assert {each.workload.zero for each in every} == {*STAGES}
    if part == 0.1:
        assert found.too_large > 0
        assert best.workload.zero and best.workload.checkpointing != "none"


def test_weights_that_do_not_fit_are_shared_out() -> None:
    """A 5B model with AdamW on 48 GB, where Ulysses with whole weights holds more than that, unless
    it computes blocks again."""
    workload = with_settings(find("wan-2.2-ti2v-5b"), ["optimizer=adamw"])
    cluster, work_of = find_cluster("l20-pcie"), works("cuda", with_memory=True)

    def runs(some: Sequence[Candidate]) -> list[Projection]:
        return [
            case
            for each in some
            for case in project(each.workload, cluster, [each.name], [8], Mode(), work_of)
        ]

    fixed = {"tp": 1, "checkpointing": "none"}
    candidates = plans(["ulysses"], workload, 8, fixed).candidates
    best = fastest(Search(workload, candidates, cluster, Mode(), 8).run(runs).projected)
    assert best.workload.zero >= 2 and (best.peak_bytes or 0) <= USABLE * best.limit_bytes
    whole = [x for x in candidates if not x.workload.zero and x.name == best.strategy]
    assert all((x.peak_bytes or 0) > USABLE * x.limit_bytes for x in runs(whole))


def test_strategies_that_are_named_are_compared(trained: tuple[Workload, WorkOf]) -> None:
    """However slow."""
    workload, work_of = trained
    cluster, names = find_cluster("l20-pcie"), ["ulysses", "rsa", "megatron-tp"]
    candidates = plans(names, workload, 8, {}).candidates

    def runs(some: Sequence[Candidate]) -> list[Projection]:
        return [
            case
            for each in some
            for case in project(each.workload, cluster, [each.name], [8], Mode(), work_of)
        ]

    found = Search(workload, candidates, cluster, Mode(), 8, names).run(runs)
    assert {each.strategy.partition(" ")[0] for each in found.projected} >= {*names}


def test_what_fits_nowhere_is_told_without_dry_runs(trained: tuple[Workload, WorkOf]) -> None:
    """By its weights alone, and by how much it lacks."""
    workload, work_of = trained
    cluster = with_memory(0.001)
    _, found = searched(workload, cluster, 4, ["ulysses"], work_of)
    assert found.projected == []
    with pytest.raises(Failure, match=r"the least needs .* use more ranks$"):
        recommend(found.projected, cluster, Mode(), found)


def test_of_meshes_that_are_the_same_to_a_strategy_one_is_weighed() -> None:
    """Samples of the batch and branches of guidance are the same thing."""
    workload = with_settings(find("wan-2.2-ti2v-5b-small"), ["guidance=2", "batch=4"])
    found = [str(mesh) for mesh in meshes(workload, 4, {})]
    assert sorted(found) == [
        *("", "cfg=2", "cfg=2 pp=2", "cfg=2 tp=2", "dp=2 cfg=2", "pp=2", "pp=2 tp=2", "pp=4"),
        *("tp=2", "tp=4"),
    ]
    fixed = {"cfg": 1, "tp": 1, "pp": 1}
    assert [str(mesh) for mesh in meshes(workload, 4, fixed)] == ["", "dp=2", "dp=4"]
    assert list(meshes(workload, 4, {"tp": 3})) == []


def test_forward_has_nothing_to_share_out_or_compute_again() -> None:
    forward = with_settings(find("flux.1-dev-small"), ["mode=forward", "checkpointing=none"])
    assert settings(forward, {}) == [forward]
    training = with_settings(forward, ["mode=train"])
    ways = {(each.zero, each.checkpointing) for each in settings(training, {})}
    assert ways == {*product(STAGES, RECOMPUTED)}
    fixed = settings(training, {"zero": 1, "checkpointing": "full"})
    assert [(each.zero, each.checkpointing) for each in fixed] == [(1, "full")]


def test_a_form_that_fits_no_mesh_says_why() -> None:
    """Of weights that ranks would share out in a pipeline: by that, not by what was not asked."""
    workload = with_settings(find("dsp-720m-small"), ["batch=4"])
    found = plans(["dsp"], workload, 4, {"pp": 2, "zero": 3})
    assert not found.candidates
    assert "zero 3" in found.why_not["dsp"]
