"""Ranks that send each other known numbers: wrong numbers are noticed, named and survived."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.golden import Golden
from helpers.thread_group import ThreadGroup
from torch import Tensor

from spbench.comm.packing import Cut
from spbench.comm.threaded import ThreadRendezvous, ThreadTransport, run_rank_threads
from spbench.comm.transport import DONE, Handle
from spbench.doctor import rank_collectives
from spbench.doctor.machine_checks import Diagnosis
from spbench.doctor.rank_collectives import check_exchanges, try_sizes
from spbench.launch.local import LaunchResult, LocalLauncher
from spbench.results.hand_over import Sample, sample_path
from spbench.results.heartbeat import Heartbeat, heartbeat_path, read_heartbeat
from spbench.results.link_report import Exchange, Exchanged
from spbench.worker import collective_check
from spbench.worker.collective_check import EXCHANGES, Example, difference, exchange_all, rates
from spbench.worker.fault_injection import VARIABLE
from spbench.worker.observer import Observer
from spbench.workload.case import Job
from spbench.workload.traffic import OPS

WAIT_S = 10.0
RATES = {"all_reduce": 2.5e9, "all_to_all": 1e9}


def exchanged(ranks: int, heartbeats: Path | None = None) -> list[Exchanged]:
    """The result of each rank, which writes its heartbeat into the folder ``heartbeats``."""
    meetings = [ThreadRendezvous(ranks, WAIT_S) for _ in range(3)]

    def rank_main(transport: ThreadTransport) -> Exchanged:
        group = ThreadGroup(transport.rank, meetings)
        path = None if heartbeats is None else heartbeat_path(heartbeats, transport.rank)
        return exchange_all(group, Observer(heartbeat=Heartbeat(path)))

    return run_rank_threads(ranks, rank_main)


@pytest.mark.parametrize("ranks", [2, 3])
def test_right_exchanges(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Each collective runs with even and uneven shards on both groups, announced before it begins;
    then two are timed."""
    announced: list[str] = []

    def noting(run: Callable[..., Any], rank_of: Callable[[Any], int]) -> Callable[..., Any]:
        """``run``, which first notes the phase that rank 0's heartbeat shows by then."""

        def run_noted(first: Any, *rest: Any) -> Any:
            if rank_of(first) == 0:
                position = read_heartbeat(tmp_path, 0)
                announced.append("nothing" if position is None else position.phase)
            return run(first, *rest)

        return run_noted

    noted = {op: noting(run, lambda comm: comm.rank) for op, run in EXCHANGES.items()}
    monkeypatch.setattr(collective_check, "EXCHANGES", noted)
    monkeypatch.setattr(collective_check, "rates", noting(rates, lambda group: group.rank))
    results = exchanged(ranks, tmp_path)
    names = [
        f"{op} of {cut} shards ({whose} group)"
        for whose in ("strategy", "gradients")
        for cut in ("even", "uneven")
        for op in ("all_to_all", "all_gather", "reduce_scatter", "all_reduce", "p2p")
    ]
    assert announced[:-1] == names
    golden(announced[-1])
    for rank, result in enumerate(results):
        assert result.rank == rank
        assert result.exchanges == [Exchange(name=name) for name in names]
        assert result.sent_bytes_per_s.keys() == RATES.keys()
        assert min(result.sent_bytes_per_s.values()) > 0
        assert Exchanged.model_validate_json(result.model_dump_json()) == result


def test_examples_are_what_they_should_be() -> None:
    """Shards are even or uneven, sums over a thousand ranks are exact, and no two are equal."""
    for ranks, even in itertools.product((2, 3, 8), (True, False)):
        first, second = (Example.of(ranks, n, torch.device("cpu"), even=even) for n in (0, 1))
        for shard in (first.rows, first.columns):
            assert (len(set(shard.sizes)) == 1) == even
            assert min(shard.sizes) > 0
        assert first.whole.max() * 4 * 1024 < 2**24
        assert not torch.equal(first.whole, second.whole)
        assert (first.whole != second.whole).all()


@pytest.mark.parametrize("broken", ["all_to_all", "all_gather", "reduce_scatter", "all_reduce"])
def test_a_rank_that_gets_wrong_numbers(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    """That rank alone reports it, and for the broken collective alone."""
    right = getattr(ThreadTransport, broken)

    def wrong(transport: ThreadTransport, received: Any, *rest: Any) -> Handle:
        right(transport, received, *rest).wait()
        if transport.rank == 1:
            first = received[0] if isinstance(received, list) else received
            target = first.tensor if isinstance(first, Cut) else first
            target.view(-1)[0] += 1
        return DONE

    monkeypatch.setattr(ThreadTransport, broken, wrong)
    good, bad = exchanged(2)
    assert not any(exchange.wrong for exchange in good.exchanges)
    wrong_ops = [exchange.name.partition(" ")[0] for exchange in bad.exchanges if exchange.wrong]
    assert wrong_ops == [broken] * 4


def test_data_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that still holds the right numbers of an earlier exchange is reported as wrong."""

    def nothing(transport: ThreadTransport, received: Cut, sent: Tensor) -> Handle:
        return transport.all_reduce(torch.zeros(1))

    monkeypatch.setattr(ThreadTransport, "_all_gather", nothing)
    for result in exchanged(2):
        wrong = [exchange.name for exchange in result.exchanges if exchange.wrong]
        assert len([name for name in wrong if name.startswith("all_gather")]) == 4


def test_differences_in_words(golden: Golden) -> None:
    """A sentence says how many numbers differ and the first of them, or which shape came."""
    wanted = torch.tensor([1.0, 2.0, 3.0])
    assert difference(wanted, wanted.clone()) == ""
    came = torch.tensor([1.0, 7.0, float("nan")])
    golden(difference(came, wanted), "of numbers")
    golden(difference(wanted[:2], wanted), "of shapes")


def test_rates_are_bytes_sent_over_the_best_time() -> None:
    """With 16 MiB on two ranks each sends 16 MiB in an all-reduce and half in an all-to-all."""

    meetings = [ThreadRendezvous(2, WAIT_S) for _ in range(3)]

    def rank_main(transport: ThreadTransport) -> dict[str, float]:
        # Of each step its begin, the return of its call and its end.
        ticks = itertools.accumulate(itertools.cycle([1.0, 1.0, 1.0, 1.0, 0.25, 0.25]))
        return rates(ThreadGroup(transport.rank, meetings), lambda: next(ticks))

    for bytes_per_s in run_rank_threads(2, rank_main):
        assert bytes_per_s == {"all_reduce": 2**24 / 0.5, "all_to_all": 2**23 / 0.5}


class ReplayLauncher:
    """Stands in for ranks: writes the files that they would leave."""

    def __init__(self, result: LaunchResult, *texts: str) -> None:
        self.result, self.texts = result, texts
        self.jobs: list[Job] = []

    def run(self, job: Job, folder: Path) -> LaunchResult:
        self.jobs.append(job)
        for rank, text in enumerate(self.texts):
            folder.mkdir(parents=True, exist_ok=True)
            if text:
                sample_path(folder, rank).write_text(text)
        return self.result

    def close(self) -> None:
        """Nothing is running."""


def written(rank: int, *wrong: str) -> str:
    exchanges = [Exchange(name=f"exchange {i}", wrong=text) for i, text in enumerate(wrong)]
    speed = {op: rate * (1 + rank) for op, rate in RATES.items()}
    return Exchanged(rank=rank, exchanges=exchanges, sent_bytes_per_s=speed).model_dump_json()


def failed(rank: int, status: Any, reason: str) -> str:
    return Sample(rank=rank, status=status, reason=reason, failed_at_s=1.0).model_dump_json()


def said(diagnosis: Diagnosis) -> str:
    """What was found, and below it what to do."""
    return f"{diagnosis.found}\n{diagnosis.remedy}"


FINE = LaunchResult(ok=True)


def test_all_is_well(tmp_path: Path, golden: Golden) -> None:
    """One line gives the rates of the slowest rank; the job asks for collectives alone."""
    played = ReplayLauncher(FINE, written(0, "", ""), written(1, "", ""))
    diagnosis = check_exchanges(2, "cpu", played, tmp_path, 7.0)
    assert (diagnosis.check, diagnosis.status, diagnosis.remedy) == ("2 ranks", "ok", "")
    golden(diagnosis.found)
    (job,) = played.jobs
    assert job == Job(ranks=2, device="cpu", collectives=True, timeout_s=7.0)
    job.write(tmp_path)
    assert Job.read(tmp_path) == job


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_wrong_numbers_are_named_by_rank(tmp_path: Path, device: Any, golden: Golden) -> None:
    """The sentence names the exchange, its ranks and the difference; at most three are listed."""
    played = ReplayLauncher(FINE, written(0, "", "off by one"), written(1, "", "off by two"))
    diagnosis = check_exchanges(2, device, played, tmp_path, 7.0)
    assert diagnosis.status == "fail"
    golden(said(diagnosis), "one exchange")
    played = ReplayLauncher(FINE, written(0, *["x"] * 5), written(1, *[""] * 5))
    diagnosis = check_exchanges(2, device, played, tmp_path, 7.0)
    golden(diagnosis.found, "five exchanges")


def test_ranks_that_hang(tmp_path: Path, golden: Golden) -> None:
    """The sentence names the rank, its exchange and the logs; the remedy starts with --timeout."""
    hung = LaunchResult(ok=False, hung="rank 2 stopped in ring", hung_ranks=[2], still_s=5.0)
    diagnosis = check_exchanges(3, "cuda", ReplayLauncher(hung), tmp_path, 7.0)
    assert diagnosis.status == "fail"
    golden(said(diagnosis))


def test_ranks_that_die(tmp_path: Path, golden: Golden) -> None:
    """The sentence gives the failure cause of the first rank, or how it ended."""
    sample = failed(1, "comm_error", "no connection to 10.0.0.5")
    result = LaunchResult(ok=False, rank=1, exitcode=1)
    diagnosis = check_exchanges(2, "cpu", ReplayLauncher(result, "", sample), tmp_path, 7.0)
    assert diagnosis.status == "fail"
    golden(said(diagnosis), "with a cause")
    result = LaunchResult(ok=False, rank=0, exitcode=-9)
    diagnosis = check_exchanges(2, "cpu", ReplayLauncher(result), tmp_path / "other", 7.0)
    golden(said(diagnosis), "by a signal")


def test_all_are_not_waited_for_where_two_fail(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    golden: Golden,
) -> None:
    """The larger start is skipped, with a reason, and is not announced; logs are kept."""
    played = ReplayLauncher(LaunchResult(ok=False, timed_out=True))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(rank_collectives, "LocalLauncher", lambda _: played)
    diagnoses = try_sizes([2, 8], "cpu", 7.0)
    assert [diagnosis.check for diagnosis in diagnoses] == ["2 ranks", "8 ranks"]
    assert [diagnosis.status for diagnosis in diagnoses] == ["fail", "skipped"]
    assert diagnoses[1].found == "2 ranks failed"
    golden(capsys.readouterr().err, "where two fail")
    assert len(list(tmp_path.iterdir())) == 1
    fine = ReplayLauncher(FINE, *[written(rank, "") for rank in range(3)])
    monkeypatch.setattr(rank_collectives, "LocalLauncher", lambda _: fine)
    diagnoses = try_sizes([2, 3], "cuda", 7.0)
    assert len(list(tmp_path.iterdir())) == 1
    assert [diagnosis.status for diagnosis in diagnoses] == ["ok", "ok"]
    assert [job.ranks for job in fine.jobs] == [2, 3]
    golden(capsys.readouterr().err, "where all are well")


def test_real_ranks_are_ended_at_the_deadline(tmp_path: Path, golden: Golden) -> None:
    """Half a second does not even start them, and one never joins: the check fails in time."""
    launcher = LocalLauncher(tmp_path / "log", {VARIABLE: "hang@rank1:init"}, grace_s=1.0)
    try:
        diagnosis = check_exchanges(2, "cpu", launcher, tmp_path / "2", 0.5)
    finally:
        launcher.close()
    assert diagnosis.status == "fail"
    golden(diagnosis.found)


def test_every_exchange_is_a_collective_of_the_model() -> None:
    """The exchanges are all operations that a strategy can call; shifts are tried as a ring."""
    assert set(EXCHANGES) == set(OPS)
