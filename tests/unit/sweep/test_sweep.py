"""A sweep over a launcher that replays rank files: every outcome becomes the right row."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from helpers.golden import Golden
from helpers.stored_rows import stored, stored_latest
from helpers.sweeps import run_all, sweep_into

from spbench.launch.launcher import Deadlines, LaunchResult
from spbench.results.hand_over import Sample, sample_path
from spbench.results.record import Record
from spbench.results.runs_csv import latest, read_runs, records_of
from spbench.results.store import Store
from spbench.sweep import plan
from spbench.sweep.plan import job_of, turned
from spbench.sweep.request import Request, every
from spbench.sweep.run import still_to_do
from spbench.sweep.run_folder import launch_folder, new_folder
from spbench.workload.case import QUICK, Cell, Combination, Job, MeasurementBudget
from spbench.workload.catalogue import find

WORK = find("axes-2d", "verify")
SENT = {"forward": 10, "backward": 20, "gradients": 30}
OPS = {"all_to_all": 30, "all_gather": 0, "reduce_scatter": 0, "all_reduce": 30, "p2p": 0}
FIGURES: dict[str, Any] = {
    "step_ms": [10.0, 12.0, 11.0],
    "compute_ms": [7.0, 7.0, 7.0],
    "sent_by_phase": SENT,
    "predicted_by_phase": SENT,
    "sent_by_op": OPS,
    "output_error": 1e-8,
    "gradient_error": 1e-7,
    "tolerance": 1e-4,
    "gated_on": "axes-2d",
    "device_name": "a GPU",
    "versions": {"torch": "9.9", "nccl": "2.2"},
}


def good(rank: int, **more: Any) -> Sample:
    return Sample(rank=rank, status="ok", backend="gloo", **FIGURES | more)


def bad(rank: int, status: str, at_s: float | None = None, reason: str = "why") -> Sample:
    known = {"rank": rank, "status": status, "reason": reason, "failed_at_s": at_s}
    return Sample.model_validate(known)


@dataclass
class Replay:
    """Writes the files that ranks would have written, and says how they ended."""

    ended: LaunchResult
    files: Sequence[Sample | bytes | None]
    """For each rank a sample, other content, or no file at all."""

    def run(self, job: Job, folder: Path) -> LaunchResult:
        for rank, content in enumerate(self.files):
            if isinstance(content, Sample):
                sample_path(folder, rank).write_text(content.model_dump_json())
            elif content is not None:
                sample_path(folder, rank).write_bytes(content)
        return self.ended


OK = Replay(LaunchResult(ok=True), [good(0), good(1)])


@dataclass
class FakeLauncher:
    """Replays one outcome for each job; ``Replay`` or an exception to raise."""

    script: list[Replay | type[BaseException]]
    jobs: list[Job] = field(default_factory=list)

    def run(self, job: Job, folder: Path) -> LaunchResult:
        job.write(folder)
        self.jobs.append(job)
        outcome = self.script[len(self.jobs) - 1]
        if isinstance(outcome, Replay):
            return outcome.run(job, folder)
        raise outcome

    def close(self) -> None:
        """Nothing is running."""


def cells(*strategies: str, **more: Any) -> list[Cell]:
    combinations = every(more.pop("workload", WORK), strategies or ("dsp",), more.pop("ranks", [2]))
    known = {"device": "cpu", "budget": QUICK, "skip_invalid": True}
    return plan.cells(Request(combinations=combinations, **known | more))


def sweep(folder: Path, launcher: FakeLauncher, todo: list[Cell]) -> list[Record]:
    """Runs ``todo``; each record is on disk when it is handed out."""
    records = []
    known: dict[str, Any] = {
        "deadlines": Deadlines(launch_s=7.0),
        "git_commit": "abc",
        "peak_tflops": 1.0,
        "now": lambda: datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC),
    }
    with sweep_into(folder, launcher, **known) as run:
        for record in run_all(run, todo):
            assert stored(folder)[-1] == record
            records.append(record)
    return records


def row_of(folder: Path, ended: LaunchResult, *files: Sample | bytes | None) -> Record:
    """The row of a single case on two ranks."""
    (record,) = sweep(folder, FakeLauncher([Replay(ended, files)]), cells())
    return record


def outcome(record: Record) -> tuple[str, str]:
    return record.status, record.reason


def test_a_good_launch_is_a_row_of_figures(tmp_path: Path) -> None:
    """A row has status ok, the slowest rank's time, the bytes sent, and where it ran."""
    record = row_of(tmp_path, LaunchResult(ok=True), good(0), good(1, step_ms=[13.0, 9.0, 11.0]))
    assert outcome(record) == ("ok", "")
    assert (record.step_ms, record.compute_ms, record.exposed_comm_ms) == (12.0, 7.0, 5.0)
    assert (record.sent_bytes_backward, record.predicted_bytes_backward) == (20, 20)
    assert (record.all_to_all_bytes, record.p2p_bytes) == (30, 0)
    assert (record.torch, record.cuda, record.nccl, record.gpu) == ("9.9", "", "2.2", "a GPU")
    assert (record.run_id, record.git_commit, record.log) == ("a run", "abc", "")
    assert (record.started_utc, record.gated_on) == ("2030-01-02T03:04:05Z", "axes-2d")
    assert record.round == "a session.0"
    assert record.launch_s is not None and 0 <= record.launch_s < 5
    assert record.mfu == record.tflops_per_rank
    assert (tmp_path / "samples").is_dir()


def test_variables_of_all_ranks_are_in_the_row(tmp_path: Path) -> None:
    """A rank alone may report a variable, or have another value of it."""
    one_rank = row_of(
        tmp_path / "a", LaunchResult(ok=True), good(0), good(1, environment={"A": "1"})
    )
    assert one_rank.environment == "A=1"
    files = [good(0, environment={"A": "1", "B": "2"}), good(1, environment={"B": "2", "A": "3"})]
    assert row_of(tmp_path / "b", LaunchResult(ok=True), *files).environment == "A=1 B=2 A=3"


FAULTS: dict[str, tuple[Replay, str, str]] = {
    "killed": (
        Replay(LaunchResult(ok=False, rank=1, exitcode=-9), [good(0), None]),
        "crash",
        "rank 1 was ended by SIGKILL",
    ),
    "segfault": (
        Replay(LaunchResult(ok=False, rank=0, exitcode=-11), [None, None]),
        "crash",
        "rank 0 was ended by SIGSEGV",
    ),
    "a signal without a name": (
        Replay(LaunchResult(ok=False, rank=0, exitcode=-40), [None, None]),
        "crash",
        "rank 0 was ended by signal 40",
    ),
    "an exit code": (
        Replay(LaunchResult(ok=False, rank=1, exitcode=7), [None, None]),
        "crash",
        "rank 1 ended with exit code 7 and left no result",
    ),
    "the launcher itself": (
        Replay(LaunchResult(ok=False, exitcode=-9), [None, None]),
        "crash",
        "the launcher was ended by SIGKILL",
    ),
    "died after its result": (
        Replay(LaunchResult(ok=False, rank=1, exitcode=-6), [good(0), good(1)]),
        "crash",
        "rank 1 was ended by SIGABRT",
    ),
    "no file": (Replay(LaunchResult(ok=True), [good(0), None]), "crash", "rank 1 left no result"),
    "half a file": (
        Replay(LaunchResult(ok=True), [good(0).model_dump_json()[:40].encode(), good(1)]),
        "crash",
        "rank 0 left no result",
    ),
    "a file of noise": (
        Replay(LaunchResult(ok=True), [good(0), b"\xff\xfe\x00{"]),
        "crash",
        "rank 1 left no result",
    ),
    "out of memory": (
        Replay(LaunchResult(ok=False, rank=1, exitcode=1), [None, bad(1, "oom", 5.0, "no 3 GiB")]),
        "oom",
        "rank 1: no 3 GiB",
    ),
    "out of memory, and its echo": (
        Replay(
            LaunchResult(ok=False, rank=0, exitcode=1),
            [bad(0, "comm_error", 1.0, "connection closed"), bad(1, "oom", 2.0)],
        ),
        "oom",
        "rank 1: why",
    ),
    "the first of two": (
        Replay(
            LaunchResult(ok=False, rank=0, exitcode=1),
            [bad(0, "crash", 9.0, "late"), bad(1, "oom", 8.0)],
        ),
        "oom",
        "rank 1: why",
    ),
    "one that knows no time": (
        Replay(
            LaunchResult(ok=False, rank=0, exitcode=1),
            [bad(0, "wrong_result", None, "another's"), bad(1, "wrong_result", 8.0, "its own")],
        ),
        "wrong_result",
        "rank 1: its own",
    ),
    "killed, and its echo": (
        Replay(LaunchResult(ok=False, rank=1, exitcode=-9), [bad(0, "comm_error", 1.0), None]),
        "crash",
        "rank 1 was ended by SIGKILL",
    ),
    "nothing but a broken connection": (
        Replay(
            LaunchResult(ok=False, rank=0, exitcode=1),
            [bad(0, "comm_error", 2.0), bad(1, "comm_error", 1.0, "reset")],
        ),
        "comm_error",
        "rank 1: reset",
    ),
    "too slow": (
        Replay(LaunchResult(ok=False, timed_out=True), [None, None]),
        "timeout",
        "not done after 7 s; --timeout sets the deadline",
    ),
    "too slow, and broken when ended": (
        Replay(LaunchResult(ok=False, timed_out=True), [bad(0, "comm_error", 9.0), None]),
        "timeout",
        "not done after 7 s; --timeout sets the deadline",
    ),
    "hung": (
        Replay(
            LaunchResult(ok=False, hung="rank 1 stopped in joining", hung_ranks=[1], still_s=200),
            [],
        ),
        "hang",
        "rank 1 stopped in joining; nothing moved for 200 s (--hang-after sets the limit). Their "
        "stacks are in their logs",
    ),
    "hung when it was done": (
        Replay(
            LaunchResult(ok=False, hung="rank 0 stopped in leaving", still_s=4), [good(0), good(1)]
        ),
        "hang",
        "rank 0 stopped in leaving; nothing moved for 4 s (--timeout sets the limit). Their "
        "stacks are in their logs",
    ),
    "out of memory, and then the others hung": (
        Replay(LaunchResult(ok=False, hung="rank 0 stopped"), [None, bad(1, "oom", 5.0)]),
        "oom",
        "rank 1: why",
    ),
    "a node that is lost": (
        Replay(
            LaunchResult(ok=False, lost=True, why="node 1 (b) is gone"),
            [bad(0, "comm_error"), None],
        ),
        "comm_error",
        "node 1 (b) is gone",
    ),
    "on several nodes": (
        Replay(
            LaunchResult(ok=False, rank=1, exitcode=-9, hosts={0: "a", 1: "b"}), [good(0), None]
        ),
        "crash",
        "rank 1 (b) was ended by SIGKILL",
    ),
    "killed by the kernel": (
        Replay(LaunchResult(ok=False, rank=1, exitcode=-9, starved=True), [good(0), None]),
        "host_oom",
        "rank 1 was killed by the kernel, which was out of memory",
    ),
    "its launcher killed": (
        Replay(LaunchResult(ok=False, culprit="the launcher", exitcode=-9), [good(0), None]),
        "crash",
        "the launcher was ended by SIGKILL",
    ),
    "its fork server killed": (
        Replay(
            LaunchResult(ok=False, culprit="the fork server", exitcode=-9),
            [bad(0, "comm_error", 1.0), None],
        ),
        "crash",
        "the fork server was ended by SIGKILL",
    ),
    "its launcher stopped": (
        Replay(
            LaunchResult(ok=False, culprit="the launcher", hung="it was stopped", still_s=200),
            [good(0), None],
        ),
        "hang",
        "it was stopped; nothing moved for 200 s (--hang-after sets the limit)",
    ),
    "its launcher stopped before any rank began": (
        Replay(
            LaunchResult(ok=False, culprit="the launcher", why="it was stopped", timed_out=True),
            [None, None],
        ),
        "timeout",
        "it was stopped; not done after 7 s; --timeout sets the deadline",
    ),
    "never started": (
        Replay(LaunchResult(ok=False, why="OSError: no more processes"), [None, None]),
        "crash",
        "the ranks could not be started: OSError: no more processes",
    ),
    "out of memory while the others waited": (
        Replay(LaunchResult(ok=False, timed_out=True), [None, bad(1, "oom", 5.0)]),
        "oom",
        "rank 1: why",
    ),
    "a group that an earlier case broke": (
        Replay(LaunchResult(ok=False, group_lost=True), [None, None]),
        "skipped",
        "an earlier case broke the process group that was joined",
    ),
    "more bytes than predicted": (
        Replay(LaunchResult(ok=True), [good(0), good(1, sent_by_phase={**SENT, "forward": 11})]),
        "wrong_result",
        "rank 1 sent {'forward': 11, 'backward': 20, 'gradients': 30}, predicted "
        "{'forward': 10, 'backward': 20, 'gradients': 30}",
    ),
    "nothing sent at all": (
        Replay(LaunchResult(ok=True), [good(0, sent_by_phase=dict.fromkeys(SENT, 0)), good(1)]),
        "wrong_result",
        "rank 0 sent {'forward': 0, 'backward': 0, 'gradients': 0}, predicted "
        "{'forward': 10, 'backward': 20, 'gradients': 30}",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_a_row_that_says_why(tmp_path: Path, name: str) -> None:
    """Each has its status, names the rank that failed first, leaves figures blank and a log."""
    replay, status, reason = FAULTS[name]
    record = row_of(tmp_path, replay.ended, *replay.files)
    assert outcome(record) == (status, reason)
    assert (record.step_ms, record.tokens_per_s, record.peak_allocated_bytes) == (None, None, None)
    # What was sent is known where it was counted, and was wrong.
    assert (record.sent_bytes_forward is not None) == (
        status == "wrong_result" and "sent" in reason
    )
    where = f"logs/{launch_folder(cells()[0].case)}/logs"
    assert record.log == ("" if replay.ended.group_lost else where)
    assert stored(tmp_path) == [record]


@pytest.mark.parametrize(
    "how", [{"exitcode": -9}, {"hung": "stopped", "still_s": 200.0}, {"timed_out": True}]
)
def test_ranks_that_had_finished_are_measured(tmp_path: Path, how: dict[str, Any]) -> None:
    """Whatever becomes of the launcher or the fork server after that."""
    ended = LaunchResult(ok=False, culprit="the fork server", **how)
    assert outcome(row_of(tmp_path, ended, good(0), good(1))) == ("ok", "")
    assert outcome(row_of(tmp_path / "other", ended, good(0), None))[0] != "ok"


def test_a_wrong_result_keeps_its_proof(tmp_path: Path, golden: Golden) -> None:
    """The errors of the gate are in the row, the largest over the ranks; times are not."""
    wrong = {"status": "wrong_result", "reason": "q.weight differs", "failed_at_s": 1.0}
    proof = {"output_error": 0.25, "gradient_error": 0.5, "tolerance": 1e-4}
    files = [
        Sample(rank=0, status="wrong_result", reason="another rank", **proof | {"output_error": 0}),
        Sample.model_validate({"rank": 1} | wrong | proof),
    ]
    record = row_of(tmp_path, LaunchResult(ok=True), *files)
    status, reason = outcome(record)
    assert status == "wrong_result"
    golden(reason)
    assert (record.output_error, record.gradient_error, record.tolerance) == (0.25, 0.5, 1e-4)
    assert record.step_ms is None


def printed(sign: float) -> Replay:
    """A launch with a fingerprint, as of a workload that no one device could run."""
    fingerprint = {"output": [8.0, 4.0, sign, -2.0 * sign, 3.0 * sign, 0.5]}
    return Replay(LaunchResult(ok=True), [good(0, fingerprint=fingerprint), good(1)])


def test_of_two_that_disagree_neither_is_timed_until_a_third_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    """The wrong one came first here, and stayed ok where only the later one was blamed."""
    seen = []
    for strategy, sign in (("dsp", -1.0), ("ulysses", 1.0), ("ring", 1.0)):
        with sweep_into(tmp_path, FakeLauncher([printed(sign)])) as run:
            [_] = run_all(run, cells(strategy))
        rows = stored_latest(tmp_path)
        seen.append([(row.strategy, row.status, row.step_ms) for row in rows])
    assert seen == [
        [("dsp", "ok", 11.0)],
        [("dsp", "wrong_result", None), ("ulysses", "wrong_result", None)],
        [("dsp", "wrong_result", None), ("ulysses", "ok", 11.0), ("ring", "ok", 11.0)],
    ]
    golden(capsys.readouterr().err)


def test_a_sweep_goes_on_after_a_fault(tmp_path: Path) -> None:
    """Rows come in the order of the cells."""
    crash, _, _ = FAULTS["killed"]
    todo = cells("dsp", "ulysses", "rsa")
    records = sweep(tmp_path, FakeLauncher([OK, crash, OK]), todo)
    assert [(r.strategy, r.status) for r in records] == [
        ("dsp", "ok"),
        ("ulysses", "crash"),
        ("rsa", "ok"),
    ]
    assert stored(tmp_path) == records


def test_what_cannot_run_is_skipped_without_a_start(tmp_path: Path, golden: Golden) -> None:
    """The strategy's own reason is in the row, and nothing is launched."""
    launcher = FakeLauncher([])
    (record,) = sweep(tmp_path, launcher, cells("ulysses", ranks=[16]))
    assert record.status == "skipped"
    golden(record.reason)
    assert (launcher.jobs, record.log) == ([], "")


def test_a_round_is_a_launch_of_a_session(tmp_path: Path) -> None:
    """Rows of one launch number of a session share a round, whatever their status."""
    crash, _, _ = FAULTS["killed"]
    todo = cells("dsp", "rsa", launches=2)
    records = sweep(tmp_path, FakeLauncher([OK, crash, OK, OK]), todo)
    assert [record.round for record in records] == [
        f"a session.{launch}" for launch in (0, 0, 1, 1)
    ]


def test_it_is_told_where_the_time_went(tmp_path: Path) -> None:
    """Seconds of each phase come with the record, as rank 0 saw them; none of a crash."""
    phases = {"gate": 1.0, "memory": 0.5}
    timed = good(0, began_s=time.time() + 0.25, phases_s=phases, steps_s=1.25)
    crash, _, _ = FAULTS["killed"]
    launcher = FakeLauncher([Replay(LaunchResult(ok=True), [timed, good(1)]), crash, OK])
    with sweep_into(tmp_path, launcher) as run:
        done = [run.run(cell) for cell in cells("dsp", "rsa", "ulysses")]
    records, went = zip(*(row for row in done if row is not None), strict=True)
    assert [record.steps_s for record in records] == [1.25, None, None]
    assert all(record.launch_s is not None for record in records)
    assert sum(went[0].values()) == pytest.approx(records[0].launch_s)
    assert list(went[0]) == ["start", "gate", "memory", "end"]
    assert went[0] | phases == went[0]
    assert went[0]["start"] == pytest.approx(0.25, abs=0.2)
    assert went[1:] == ({}, {})


def test_a_share_is_one_process(tmp_path: Path) -> None:
    """A share writes one file, whatever group it claims; sent bytes stay blank."""
    silent = {"step_ms": None, "sent_by_phase": None, "sent_by_op": None}
    launcher = FakeLauncher([Replay(LaunchResult(ok=True), [good(0, **silent)])])
    (record,) = sweep(tmp_path, launcher, cells("dsp", ranks=[8], kind="one_gpu_share"))
    assert outcome(record) == ("ok", "")
    assert (record.world_size, launcher.jobs[0].processes) == (8, 1)
    assert (record.step_ms, record.compute_ms, record.sent_bytes_forward) == (None, 7.0, None)
    assert record.predicted_bytes_forward == 10


def test_an_interrupt_is_a_row_and_goes_on_up(tmp_path: Path) -> None:
    """Finished rows stay, the case under way is 'interrupted', and nothing later starts."""
    launcher = FakeLauncher([OK, KeyboardInterrupt, OK])
    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path, launcher, cells("dsp", "ulysses", "rsa"))
    assert len(launcher.jobs) == 2
    statuses = [(r.strategy, r.status) for r in stored(tmp_path)]
    assert statuses == [("dsp", "ok"), ("ulysses", "interrupted")]


def test_a_second_interrupt_waits_for_the_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C again while a row is written: the row is there, and then the interrupt counts."""
    right = Store.append

    def interrupted(self: Store, *row: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        right(self, *row)

    monkeypatch.setattr(Store, "append", interrupted)
    for outcome, status in ((KeyboardInterrupt, "interrupted"), (OK, "ok")):
        with pytest.raises(KeyboardInterrupt):
            sweep(tmp_path / status, FakeLauncher([outcome]), cells())
        assert [row.status for row in stored(tmp_path / status)] == [status]


def test_a_defect_of_our_own_is_not_hidden(tmp_path: Path) -> None:
    """An exception that is not an interrupt leaves no row and is raised unchanged."""
    with pytest.raises(ZeroDivisionError):
        sweep(tmp_path, FakeLauncher([ZeroDivisionError]), cells())
    assert not (tmp_path / "runs.csv").exists()


def test_a_resumed_run_redoes_only_what_is_not_ok(tmp_path: Path) -> None:
    """ok rows are skipped; failed, interrupted and missing ones run, and their last row counts."""
    crash, _, _ = FAULTS["killed"]
    todo = cells("dsp", "ulysses", "rsa", "megatron-sp")
    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path, FakeLauncher([OK, crash, KeyboardInterrupt]), todo)
    rest = still_to_do(todo, stored(tmp_path))
    assert [cell.case.strategy for cell in rest] == ["ulysses", "rsa", "megatron-sp"]
    sweep(tmp_path, FakeLauncher([OK, OK, OK]), rest)
    latest = stored_latest(tmp_path)
    assert [r.status for r in latest] == ["ok"] * 4
    assert len(stored(tmp_path)) == 6
    assert still_to_do(todo, stored(tmp_path)) == []


def test_a_quick_row_is_done_for_a_quick_run_alone(tmp_path: Path) -> None:
    """A full run measures it again; a quick run takes any row, also of an older version."""
    quick, full = cells(budget=QUICK), cells(budget=MeasurementBudget())
    sweep(tmp_path, FakeLauncher([OK]), quick)
    done = stored_latest(tmp_path)
    assert (still_to_do(quick, done), still_to_do(full, done)) == ([], full)
    sweep(tmp_path, FakeLauncher([OK]), full)
    done = stored_latest(tmp_path)
    assert [row.effort for row in done] == ["full"]
    assert (still_to_do(quick, done), still_to_do(full, done)) == ([], [])
    of_before = [replace(row, effort="") for row in done]
    assert (still_to_do(quick, of_before), still_to_do(full, of_before)) == ([], [])


def test_a_quick_launch_more_does_not_hide_a_full_run(tmp_path: Path) -> None:
    """After an interruption finished launches are still shown, and none is repeated."""
    full = cells(launches=3, budget=MeasurementBudget())
    sweep(tmp_path, FakeLauncher([OK] * 3), full)
    before = stored_latest(tmp_path)
    quick = cells(launches=4, budget=QUICK)
    rest = still_to_do(quick, stored(tmp_path))
    assert [cell.case.launch for cell in rest] == [3]
    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path, FakeLauncher([KeyboardInterrupt]), rest)
    rows = read_runs(tmp_path)
    assert records_of(latest(rows)) == before
    assert [row.effort for row in before] == ["full"] * 3
    assert still_to_do(full, records_of(rows)) == []
    assert still_to_do(quick, records_of(rows)) == rest


def test_another_length_does_not_redo_a_case(tmp_path: Path) -> None:
    """Another budget keeps the case's key; another launch or shape does not."""
    sweep(tmp_path, FakeLauncher([OK]), cells(budget=MeasurementBudget()))
    done = stored_latest(tmp_path)
    slower = QUICK.model_copy(update={"seconds": 9.0})
    assert still_to_do(cells(budget=slower), done) == []
    assert [cell.case.launch for cell in still_to_do(cells(launches=3), done)] == [1, 2]
    assert len(still_to_do(cells(workload=WORK.model_copy(update={"batch": 2})), done)) == 1


def test_a_job_asks_for_what_the_case_needs(tmp_path: Path) -> None:
    """Ranks, deadline and case arrive in job.json; variables are set on CUDA alone."""
    launcher = FakeLauncher([OK])
    (cell,) = cells()
    sweep(tmp_path, launcher, [cell])
    written = Job.read(tmp_path / "logs" / launch_folder(cell.case))
    assert written == launcher.jobs[0]
    assert (written.ranks, written.timeout_s, written.case) == (2, 7.0, cell.case)
    assert job_of(cell.case, Deadlines()).environment == {}
    on_cuda = cell.case.model_copy(update={"strategy": "megatron-sp", "device": "cuda"})
    assert job_of(on_cuda, Deadlines()).environment == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def test_names_of_folders(tmp_path: Path) -> None:
    """Names are safe for files and differ by case and launch; a taken name gets a number."""
    odd = cells("rsa:reduce-scatter")[0].case
    assert launch_folder(odd).startswith("rsa-reduce-scatter-2-")
    assert launch_folder(odd).endswith("-launch0")
    other = odd.model_copy(update={"seed": 1})
    assert len({launch_folder(case) for case in (odd, other)}) == 2
    for expected in ("run", "run-2", "run-3"):
        folder = new_folder(tmp_path, "run")
        assert folder == tmp_path / expected
        folder.mkdir()


def test_launches_are_interleaved() -> None:
    """All strategies run once, in the order given, before any of them runs again."""
    order = [
        (c.case.launch, c.case.ranks, c.case.strategy) for c in cells("dsp", "rsa", launches=3)
    ]
    assert order[:2] == [(0, 2, "dsp"), (0, 2, "rsa")]
    assert [launch for launch, _, _ in order] == [0, 0, 1, 1, 2, 2]
    assert all({s for _, _, s in order[i : i + 2]} == {"dsp", "rsa"} for i in (0, 2, 4))


def test_the_seed_decides_the_order_of_later_launches() -> None:
    """One seed gives one order; which strategy begins a later round depends on it."""
    names = ("dsp", "ulysses", "rsa")

    def orders(seed: int) -> list[str]:
        return [cell.case.strategy for cell in cells(*names, launches=4, seed=seed)]

    assert orders(1) == orders(1)
    assert {orders(seed)[3] for seed in range(20)} == {"ulysses", "rsa"}
    assert {orders(seed)[9] for seed in range(20)} == set(names)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_each_case_has_each_place_equally_often(count: int) -> None:
    """In as many rounds as there are cases; and turned, each precedes each other equally often."""
    names = "ABCDE"[:count]
    for seed in range(5):
        rounds = [turned(names, launch, seed) for launch in range(2 * count)]
        assert rounds[0] == list(names)
        for cycle in (rounds[:count], rounds[count:]):
            assert all(sorted(place) == list(names) for place in zip(*cycle, strict=True))
        before = Counter(pair for order in rounds for pair in combinations(order, 2))
        assert set(before.values()) <= {count}


def test_fewer_rounds_than_cases_are_not_balanced() -> None:
    """In three launches of four strategies each strategy leaves one place out."""
    places = zip(*[turned("ABCD", launch, 0) for launch in range(3)], strict=True)
    assert [len(set(place)) for place in places] == [3] * 4


def test_two_cases_take_the_first_place_in_turn() -> None:
    """Two strategies alternate: A B, then B A."""
    assert {"".join(turned("AB", launch, 0)) for launch in (0, 1)} == {"AB", "BA"}


def test_each_workload_and_number_of_ranks_stays_together() -> None:
    """Launch by launch; in each, strategies of one place follow each other, however asked for."""
    other = WORK.model_copy(update={"batch": 7})
    combinations = [*every(WORK, ["dsp", "rsa"], [2, 3]), *every(other, ["dsp", "rsa"], [2])]
    late = Combination(workload=WORK, strategy="ulysses", ranks=2)
    planned = plan.cells(
        Request(combinations=[*combinations, late], device="cpu", budget=QUICK, launches=3)
    )
    cases = [cell.case for cell in planned]
    assert [case.launch for case in cases] == [0] * 7 + [1] * 7 + [2] * 7
    places = [(case.workload.batch, case.ranks) for case in cases]
    assert places == ([(WORK.batch, 2)] * 3 + [(WORK.batch, 3)] * 2 + [(7, 2)] * 2) * 3
    first = [case.strategy for case in cases[:7]]
    assert first == ["dsp", "rsa", "ulysses", "dsp", "rsa", "dsp", "rsa"]


def test_what_a_gpu_can_do_depends_on_the_case(tmp_path: Path) -> None:
    """Each dtype of a sweep has a peak rate of its own."""
    combinations = [
        Combination(workload=WORK.model_copy(update={"dtype": d}), strategy="dsp", ranks=2)
        for d in ("float32", "bfloat16")
    ]
    todo = plan.cells(Request(combinations=combinations, device="cpu", budget=QUICK))
    with sweep_into(tmp_path, FakeLauncher([OK, OK]), gpus=[{"name": "NVIDIA H200"}]) as run:
        records = list(run_all(run, todo))
    assert [record.mfu is None for record in records] == [True, False]


OOM = Replay(LaunchResult(ok=False, rank=1, exitcode=1), [None, bad(1, "oom", 5.0)])


def larger(**sizes: Any) -> list[Cell]:
    return cells("dsp", workload=WORK.model_copy(update=sizes))


def test_what_is_larger_than_an_oom_case_is_not_tried(tmp_path: Path, golden: Golden) -> None:
    """Its further launches are skipped too, and more ranks of a CPU, whose memory they share; fewer
    ranks and other strategies run."""
    first = cells("dsp", launches=2)
    todo = [
        first[0],
        *larger(batch=WORK.batch + 1),
        *larger(depth=WORK.depth + 1, batch=WORK.batch + 1),
        *cells("dsp", ranks=[4]),
        *cells("dsp", ranks=[1]),
        *cells("ulysses"),
        *larger(hidden=WORK.hidden * 2, batch=WORK.batch + 1),
        first[1],
    ]
    launcher = FakeLauncher([OOM, OK, OK, OK])
    records = sweep(tmp_path, launcher, todo)
    assert [record.status for record in records] == [
        "oom", "skipped", "skipped", "skipped", "ok", "ok", "ok", "skipped",
    ]  # fmt: skip
    golden(records[1].reason, "a larger case")
    golden(records[7].reason, "another launch")
    assert len(launcher.jobs) == 4


def test_a_case_that_can_never_run_is_skipped_once(tmp_path: Path) -> None:
    """A resumed run does not repeat the row; another reason gives another row."""
    (cell,) = cells("dsp")
    declined = Cell(case=cell.case, why_not="no axis is left")
    done = sweep(tmp_path, FakeLauncher([]), [declined])
    assert still_to_do([declined], done) == []
    assert still_to_do([cell], done) == [cell]
    other = Cell(case=cell.case, why_not="another reason")
    assert still_to_do([other], done) == [other]


def test_the_time_of_all_launches(tmp_path: Path, golden: Golden) -> None:
    """No launch begins when it is up; each gets no more than what is left, and one that it ends
    is 'interrupted'."""
    now = [100.0]

    class Slow(FakeLauncher):
        def run(self, job: Job, folder: Path) -> LaunchResult:
            now[0] += 40.0
            return super().run(job, folder)

    launcher = Slow([OK, Replay(LaunchResult(ok=False, timed_out=True), [None, None])])
    clock = {"monotonic_s": lambda: now[0], "began_s": now[0]}
    deadlines = Deadlines(launch_s=50.0, sweep_s=70.0)
    with sweep_into(tmp_path, launcher, deadlines=deadlines, **clock) as run:
        records = list(run_all(run, cells(launches=3)))
    assert [record.status for record in records] == ["ok", "interrupted"]
    assert records[0].reason == ""
    golden(records[1].reason)
    assert [job.timeout_s for job in launcher.jobs] == [50.0, 30.0]


def test_a_hang_is_one_also_when_time_is_short(tmp_path: Path) -> None:
    """It would have been given up whatever was left: a resumed run need not find it again."""
    hung = LaunchResult(ok=False, hung="rank 1 stopped in its start", hung_ranks=[1], still_s=9.0)
    launcher = FakeLauncher([Replay(hung, [None, None])])
    deadlines = Deadlines(launch_s=50.0, hang_s=8.0, sweep_s=30.0)
    with sweep_into(tmp_path, launcher, deadlines=deadlines) as run:
        (record,) = run_all(run, cells())
    assert (record.status, record.reason[:13]) == ("hang", "rank 1 stoppe")
