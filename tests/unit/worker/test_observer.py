"""Where a rank's time went, by a clock of our own."""

from __future__ import annotations

import pytest
import torch

from spbench.worker.observer import PhaseTimes

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
    ledger = PhaseTimes(lambda: time.now_s)
    with ledger.phase("gate"):
        time.passes(1.0)
        with ledger.step(CPU):
            time.passes(2.0)
    with ledger.phase("memory"):
        for seconds in (4.0, 8.0):
            with ledger.step(CPU):
                time.passes(seconds)
        time.passes(0.5)
    time.passes(64.0)
    assert list(ledger.phases_s.items()) == [("gate", 3.0), ("memory", 12.5)]
    assert ledger.steps_s == 14.0


def test_a_step_lasts_until_the_device_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA the wait for it is in the time."""
    time = FakeTime()
    waited: list[torch.device] = []

    def wait(device: torch.device) -> None:
        waited.append(device)
        time.passes(3.0)

    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    ledger = PhaseTimes(lambda: time.now_s)
    with ledger.step(torch.device("cuda", 0)):
        time.passes(1.0)
    assert (ledger.steps_s, waited) == (4.0, [torch.device("cuda", 0)])
    with ledger.step(CPU):
        time.passes(1.0)
    assert (ledger.steps_s, len(waited)) == (5.0, 1)
