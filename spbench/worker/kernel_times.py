"""Products, attentions and passes over memory, each by itself against the clock.

All ranks compute the same at the same time, as in a step: ranks on one CPU share its cores and its
memory. Kernels are those that strategies call. Small steps tell what a step takes beside them, and
large ones what kernels take in company on a GPU.
"""

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import final

import torch

from spbench.comm.fake import silent_transports
from spbench.comm.group import Group
from spbench.strategies.registry import in_mesh
from spbench.worker.kernel_calls import prepared
from spbench.worker.observer import Observer
from spbench.worker.step import Step
from spbench.worker.timer import BLOCK_S, Call, ProcessorSpeed, seconds_of
from spbench.workload.case import GateCheck
from spbench.workload.flops import step_flops
from spbench.workload.timed import LARGE, TimedKernel

ROUNDS = 3
"""How often all kernels are timed, one after another: what disturbs the machine for a second meets
a kernel once. The median counts."""
EVERY, NEAR = 4, 3
"""Kernels from one look at the processor's speed to the next, and looks on either side of a kernel
whose median is the speed there: single ones scatter by more than it changes in a second."""
STEPS_S, SUSTAINED_S = 0.03, 1.0
"""Seconds of a block of steps: of small ones, of which a fit has few, and of large ones, in which a
GPU comes to the clock that its power cap leaves."""
LEAST = TimedKernel(kind="elementwise", shape=[1], dtype="float32")  # no time but a launch


@final
class KernelTimer:
    """Times kernels and small steps on the ranks of ``group``, side by side. A processor's speed
    changes meanwhile: on a CPU all those times are as at one speed, the middle one. ``even_s``: the
    ranks' ``even_clock``."""

    def __init__(self, group: Group, observer: Observer, even_s: Callable[[], float]) -> None:
        self._group, self._observer = group, observer
        self._speed = None if group.device.type == "cuda" else ProcessorSpeed(group)
        self._even_s = even_s
        self.cpu_gflop_per_s: float | None = None
        """The speed of those times, the same on all ranks; None on a GPU, and until it is known."""

    def times(
        self, kernels: Sequence[TimedKernel], steps: Sequence[GateCheck]
    ) -> tuple[list[float], list[float], list[float]]:
        """Seconds of each kernel, of each step of which this rank does all, and of those of
        which it does its share, with messages that are packed and not sent. Steps come between
        kernels, which they are compared with: a neighbour on the core slows all of them."""
        places = [*dict.fromkeys(((0, 1), (self._group.rank, self._group.size)))]
        both = [partial(self._step, each, *place) for each in steps for place in places]
        device, block_s = self._group.device, BLOCK_S[self._group.device.type]
        calls = [(partial(prepared, each, device), block_s) for each in kernels]
        large = [step_flops(step.workload) > LARGE for step in steps for _ in places]
        calls += zip(both, (SUSTAINED_S if each else STEPS_S for each in large), strict=True)
        evenly = [at / len(part) for part in (kernels, both) for at in range(len(part))]
        order = sorted(range(len(calls)), key=evenly.__getitem__)
        taken_s = dict(zip(order, self._medians([calls[at] for at in order]), strict=True))
        of_all = [taken_s[at] for at in range(len(calls))]
        of_steps = of_all[len(kernels) :]
        count = len(places)  # one rank's share is all of it
        return of_all[: len(kernels)], of_steps[::count], of_steps[count - 1 :: count]

    def launch(self) -> float:
        """Seconds of the host for a launch."""
        with self._observer.phase("launches"):
            least = prepared(LEAST, self._group.device)
            return seconds_of(least, self._group, self._even_s, waits=False)

    def _step(self, asked: GateCheck, rank: int, ranks: int) -> Callable[[], object]:
        strategy, transports = in_mesh(asked.strategy, asked.mesh), silent_transports(rank, ranks)
        step = Step(asked.workload, strategy, transports, self._group.device)
        return partial(step, *step.seeded_inputs())

    def _medians(self, calls: Sequence[tuple[Callable[[], Call], float]]) -> list[float]:
        """Seconds of each call, prepared anew in each round, over a block of so many seconds."""
        rounds, every = [], []
        torch.set_flush_denormal(True)  # what shrinks in place ends at 0, not among slower numbers
        try:
            for _ in range(ROUNDS):
                took_s, looks = [], []
                for number, (prepare, block_s) in enumerate(calls, start=1):
                    with self._observer.phase(f"kernel or step {number} of {len(calls)}"):
                        took_s.append(seconds_of(prepare(), self._group, self._even_s, block_s))
                    if number % EVERY == 1:
                        looks.append(self._speed.look() if self._speed is not None else 0.0)
                every += looks
                around = (looks[max(0, at - NEAR) : at + NEAR + 1] for at in range(len(looks)))
                speeds = [statistics.median(each) or 1.0 for each in around]
                rounds.append([took * speeds[at // EVERY] for at, took in enumerate(took_s)])
        finally:
            torch.set_flush_denormal(False)
        if every:
            of_ranks = map(float, self._group.gather_text(str(statistics.median(every))))
            self.cpu_gflop_per_s = statistics.median(of_ranks) or None
        middle_s = map(statistics.median, zip(*rounds, strict=True))
        return [each / (self.cpu_gflop_per_s or 1.0) for each in middle_s]
