"""Where a rank's time went, by a clock of our own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.golden import Golden

from spbench.comm.group import ShareOfGroup
from spbench.results.heartbeat import Heartbeat, heartbeat_path, read_heartbeat
from spbench.worker.fault_injection import Fault
from spbench.worker.observer import Observer, PhaseTimes

CPU = torch.device("cpu")


class FakeTime:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def passes(self, seconds: float) -> None:
        self.now_s += seconds


def test_phases_have_their_seconds_and_steps_are_added_up() -> None:
    """In order; a phase is as long as all that is in it, and steps are so much of that."""
    time = FakeTime()
    times = PhaseTimes(lambda: time.now_s)
    with times.phase("gate"):
        time.passes(1.0)
        with times.step(CPU):
            time.passes(2.0)
    with times.phase("memory"):
        for seconds in (4.0, 8.0):
            with times.step(CPU):
                time.passes(seconds)
        time.passes(0.5)
    time.passes(64.0)
    assert list(times.phases_s.items()) == [("gate", 3.0), ("memory", 12.5)]
    assert times.steps_s == 14.0


def test_a_step_lasts_until_the_device_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA the wait for the device is part of a step's time."""
    time = FakeTime()
    waited: list[torch.device] = []

    def wait(device: torch.device) -> None:
        waited.append(device)
        time.passes(3.0)

    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    times = PhaseTimes(lambda: time.now_s)
    with times.step(torch.device("cuda", 0)):
        time.passes(1.0)
    assert (times.steps_s, waited) == (4.0, [torch.device("cuda", 0)])
    with times.step(CPU):
        time.passes(1.0)
    assert (times.steps_s, len(waited)) == (5.0, 1)


def test_a_rank_shows_where_it_is_before_it_goes_on(tmp_path: Path, golden: Golden) -> None:
    """Phases and steps as they begin; transfers of both groups and meetings from where they do."""
    heartbeat = Heartbeat(heartbeat_path(tmp_path, 0))
    observer = Observer(heartbeat=heartbeat)
    group = ShareOfGroup(CPU, 2, heartbeat)
    seen = []

    def look() -> None:
        seen.append(str(read_heartbeat(tmp_path, 0)))

    with observer.phase("gate"):
        look()
        observer.step()
        look()
        group.transports.strategy.all_reduce(torch.ones(1))
        group.transports.gradients.all_reduce(torch.ones(1))
        look()
        group.barrier()
        look()
    golden("\n".join(seen))
    assert list(observer.times.phases_s) == ["gate"]


def test_a_planted_fault_strikes_as_its_step_begins(golden: Golden) -> None:
    """Steps are numbered as this rank begins them; the heartbeat has counted the step already."""
    observer = Observer(group=ShareOfGroup(CPU, 2), fault=Fault.parse("raise@rank0:step1"))
    observer.step()
    with pytest.raises(RuntimeError) as refused:
        observer.step()
    golden(refused.value)
    assert observer.heartbeat.steps == 2
