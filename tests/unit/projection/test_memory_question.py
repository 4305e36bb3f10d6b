"""Which workloads are asked about, and what a launch that tries one tells."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.golden import Golden

from spbench.errors import Failure
from spbench.launch.launcher import Deadlines, LaunchResult
from spbench.projection.advise import capacity
from spbench.projection.advise.capacity import OUT_OF_MEMORY, MemoryQuestion, Peak
from spbench.projection.dryrun import meta_ops
from spbench.results.hand_over import RowStatus, Sample, sample_path, write_atomically
from spbench.workload.case import Job
from spbench.workload.catalogue import find, with_settings
from spbench.workload.mesh import NO_MESH, CaseMesh

SMALL = find("dsp-720m-small")


def asked(grows: str, strategy: str = "dsp", ranks: int = 2) -> MemoryQuestion:
    return MemoryQuestion(workload=SMALL, strategy=strategy, ranks=ranks, grows=grows)


def test_a_batch_or_an_axis_takes_the_size() -> None:
    assert asked("batch").grown(5).batch == 5
    axis = next(iter(SMALL.axes))
    assert asked(axis).grown(48).axes == {**SMALL.axes, axis: 48}


@pytest.mark.parametrize(
    ("grows", "mesh", "microbatches", "step"),
    [
        ("batch", "", 0, 1),
        ("batch", "dp=2,tp=2", 0, 2),
        ("batch", "dp=2,pp=2", 6, 12),
        ("batch", "tp=2", 6, 1),
        ("space", "", 0, 8),
        ("space", "dp=2,tp=2", 0, 4),
        ("space", "pp=4", 4, 2),
    ],
)
def test_sizes_grow_by_what_fills_the_mesh(
    grows: str, mesh: str, microbatches: int, step: int
) -> None:
    question = MemoryQuestion(
        workload=with_settings(SMALL, [f"microbatches={microbatches}"]),
        strategy="dsp",
        ranks=8,
        grows=grows,
        mesh=CaseMesh.parse(mesh) if mesh else NO_MESH,
    )
    assert question.step == step


def test_what_cannot_run_says_why_and_is_not_asked_about() -> None:
    def never(_: object) -> Peak:
        raise AssertionError

    refused = asked("batch", ranks=3 * 2**20).answer(1, never)
    assert refused.held_bytes is None and refused.why_not
    too_large = asked(next(iter(SMALL.axes))).answer(2**31, never)
    assert too_large.held_bytes is None and too_large.why_not


class Launcher:
    """Ends as it is told, with a file of each rank."""

    def __init__(self, status: RowStatus) -> None:
        self.status = status
        self.jobs: list[Job] = []

    def close(self) -> None:
        """Nothing is left running."""

    def run(self, job: Job, folder: Path) -> LaunchResult:
        self.jobs.append(job)
        folder.mkdir(parents=True)
        for rank in range(job.ranks):
            sample = Sample(
                rank=rank, status=self.status, reason="why", peak_allocated_bytes=100 + rank
            )
            write_atomically(sample_path(folder, rank), sample.model_dump_json())
        return LaunchResult(ok=self.status == "ok")


@pytest.mark.parametrize(
    ("status", "peak"),
    [
        ("ok", Peak(held_bytes=101)),
        ("oom", Peak(held_bytes=None, why_not=OUT_OF_MEMORY, is_starved=True)),
    ],
)
def test_a_try_gives_the_busiest_ranks_peak_or_is_out_of_memory(
    tmp_path: Path, status: RowStatus, peak: Peak
) -> None:
    launcher = Launcher(status)
    assert asked("batch").tried(launcher, tmp_path, "cpu", Deadlines(), 3) == peak  # type: ignore[arg-type]
    (job,) = launcher.jobs
    assert job.case is not None and job.case.workload.batch == 3


def test_ranks_that_cannot_hold_the_smallest_size_try_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = Launcher("oom")
    monkeypatch.setattr(capacity, "LocalLauncher", lambda _: launcher)
    (found,) = capacity.tried([asked("batch")], 1e9, "cpu", Deadlines())
    assert (found.largest, found.why_not, found.tries) == (None, "", 1)
    assert len(launcher.jobs) == 1


def test_a_dry_run_of_too_many_operations_says_so_once(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr(meta_ops, "MOST_OPERATIONS", 10)
    (found,) = capacity.foreseen([asked("batch")], 1e9, "cpu")
    assert (found.largest, found.tries) == (None, 1)
    golden(found.why_not)


def test_a_try_that_fails_otherwise_is_an_error(tmp_path: Path, golden: Golden) -> None:
    launcher = Launcher("wrong_result")
    with pytest.raises(Failure) as refused:
        asked("batch").tried(launcher, tmp_path, "cpu", Deadlines(), 3)  # type: ignore[arg-type]
    golden(refused.value)
