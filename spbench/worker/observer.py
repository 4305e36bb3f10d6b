"""The one observer of a rank: it learns of phases, steps and the gate's output as they come.

    phase    heartbeat, phase times
    step     heartbeat, the planted fault that strikes as a step begins
    output   the planted fault that makes the gate's output wrong
    timed    the planted fault that makes steps slow

Transfers and meetings go to the heartbeat from where they begin (``comm/transport.py``).
Instruments never share a pass with the clock: in a timed step the heartbeat is written into mapped
memory, which is no system call, and no clock is read.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from spbench.comm.group import Group
from spbench.results.heartbeat import Heartbeat
from spbench.worker.fault_injection import Fault


@final
class PhaseTimes:
    """Seconds of each phase, and how many of them were inside steps. What a launch costs beyond its
    steps is what spbench itself costs."""

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self.now_s = now_s
        self.phases_s: dict[str, float] = {}
        self.steps_s = 0.0
        """Seconds inside all steps: of the gate and its reference on one device, of the memory pass
        (which watches each storage, so that its steps are longer than others), of warm-up, timed
        and silent blocks. What ranks wait for each other between steps is not in it."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = self.now_s()
        yield
        self.phases_s[name] = self.now_s() - start

    @contextmanager
    def step(self, device: torch.device) -> Iterator[None]:
        """One step, until the device is done. Not for steps under a ``Stopwatch``."""
        start = self.now_s()
        yield
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        self.steps_s += self.now_s() - start


@final
@dataclass(frozen=True, kw_only=True)
class Observer:
    """A rank's instruments, and what is planted in it."""

    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    times: PhaseTimes = field(default_factory=PhaseTimes)
    group: Group | None = None
    """The ranks among which a planted fault strikes; None: nowhere."""
    fault: Fault | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.heartbeat.phase(name)
        with self.times.phase(name):
            yield

    def step(self) -> None:
        """A step begins."""
        self.heartbeat.step()
        if self.fault is not None and self.group is not None:
            # The heartbeat has counted this step already: the first is step0.
            self.fault.strike(self.group.rank, f"step{self.heartbeat.steps - 1}")

    def output(self, output: Tensor) -> Tensor:
        """The gate's output as this rank hands it out."""
        if self.fault is None or self.group is None:
            return output
        return self.fault.tampered(self.group.rank, output)

    def timed(self, step: Callable[[], None]) -> Callable[[], None]:
        """``step`` as it is run under the clock."""
        if self.fault is None or self.group is None:
            return step
        return self.fault.slowed(self.group.rank, step, self.group.synchronise)
