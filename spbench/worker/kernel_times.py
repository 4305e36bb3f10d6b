"""Products, attentions and passes over memory, each by itself against the clock.

All ranks compute the same at the same time, as in a step: ranks on one CPU share its cores and its
memory. Kernels are those that strategies call. Small steps tell what a step takes beside them,
with their messages how long ranks wait, and large ones what kernels take in company on a GPU.
"""

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import final

import torch

from spbench.comm.fake import silent_transports
from spbench.comm.group import Group
from spbench.comm.transport import Transports
from spbench.strategies.registry import in_mesh
from spbench.worker.kernel_calls import prepared
from spbench.worker.observer import Observer
from spbench.worker.sampling import typical
from spbench.worker.step import Step
from spbench.worker.timer import MOST_CALLS, Call, ProcessorSpeed, Stopwatch, seconds_of
from spbench.workload.case import GateCheck
from spbench.workload.flops import step_flops
from spbench.workload.timed import LARGE, TimedKernel

ROUNDS = 3
"""How often all kernels are timed, one after another: what disturbs the machine for a second meets
a kernel once. The median counts."""
EVERY, NEAR = 4, 3
"""Kernels from one look at the processor's speed to the next, and looks on either side of a kernel
whose median is the speed there: single ones scatter by more than it changes in a second."""
STEPS_S, SUSTAINED_S, TOGETHER_S = 0.03, 1.0, 0.15
"""Seconds of a block of steps: of small ones, of which a fit has few, of large ones, in which a GPU
comes to the clock that its power cap leaves, and of small ones with messages, which scatter."""
Timing = Callable[[], float]
LEAST = TimedKernel(kind="elementwise", shape=[1], dtype="float32")  # no time but a launch


@final
class KernelTimer:
    """Times kernels and small steps on the ranks of ``group``, side by side. A processor's speed
    changes meanwhile: on a CPU all those times are as at one speed, the middle one. ``even_s``: the
    ranks' ``even_clock``; ``sends``: whether steps are timed with their messages, too."""

    def __init__(
        self, group: Group, observer: Observer, even_s: Callable[[], float], *, sends: bool = True
    ) -> None:
        self._group, self._observer, self._sends = group, observer, sends and group.size > 1
        self._speed = None if group.device.type == "cuda" else ProcessorSpeed(group)
        self._even_s = even_s
        self.cpu_gflop_per_s: float | None = None
        """The speed of those times, the same on all ranks; None on a GPU, and until it is known."""

    def times(
        self, kernels: Sequence[TimedKernel], steps: Sequence[GateCheck]
    ) -> tuple[list[float], list[float], list[float], list[float]]:
        """Seconds of each kernel, of each step of which this rank does all, of those of which it
        does its share, with messages that are packed and not sent, and of those that all do
        together. Steps come between kernels, which they are compared with: a neighbour on the core
        slows all of them."""
        device = self._group.device
        of_kernels = [partial(self._alone, partial(prepared, each, device)) for each in kernels]
        of_steps = [call for each in steps for call in self._ways(each)]
        evenly = [at / len(part) for part in (of_kernels, of_steps) for at in range(len(part))]
        calls: list[Timing] = [*of_kernels, *of_steps]
        order = sorted(range(len(calls)), key=evenly.__getitem__)
        taken_s = dict(zip(order, self._medians([calls[at] for at in order]), strict=True))
        of_all = [taken_s[at] for at in range(len(calls))]
        kernels_s, steps_s = of_all[: len(kernels)], of_all[len(kernels) :]
        alone = min(2, self._group.size)  # one rank's share is all of it
        ways = alone + self._sends
        together_s = steps_s[alone::ways] if self._sends else []
        return kernels_s, steps_s[::ways], steps_s[alone - 1 :: ways], together_s

    def launch(self) -> float:
        """Seconds of the host for a launch."""
        with self._observer.phase("launches"):
            least = prepared(LEAST, self._group.device)
            return seconds_of(least, self._group, self._even_s, waits=False)

    def _ways(self, asked: GateCheck) -> list[Timing]:
        """A step as one rank does all of it, as this one does its share, and as all do it."""
        rank, ranks = self._group.rank, self._group.size
        block_s = SUSTAINED_S if step_flops(asked.workload) > LARGE else STEPS_S
        ways: list[Timing] = []
        for place in dict.fromkeys(((0, 1), (rank, ranks))):
            silent = partial(silent_transports, *place)
            ways.append(partial(self._alone, partial(self._step, asked, silent), block_s))
        if self._sends:
            ways.append(partial(self._together, asked))
        return ways

    def _step(self, asked: GateCheck, transports: Callable[[], Transports]) -> Call:
        strategy = in_mesh(asked.strategy, asked.mesh)
        cut, sent = strategy.flattened(asked.workload), transports()
        step = Step(strategy.on(cut, sent.strategy.size), sent, self._group.device)
        return partial(step, *step.seeded_inputs())

    def _alone(self, prepare: Callable[[], Call], block_s: float | None = None) -> float:
        return seconds_of(prepare(), self._group, self._even_s, block_s)

    def _together(self, asked: GateCheck) -> float:
        """Seconds of a step on the slowest rank, as a launch has them: of a block of steps that all
        ranks begin together."""
        step = self._step(asked, lambda: self._group.transports)
        watch = Stopwatch(group=self._group, now_s=self._observer.times.now_s)
        watch.once(step)  # what the first sets up is not its time
        (once_ms,) = self._group.largest(watch.once(step)[:1])
        count = min(MOST_CALLS, max(2, int(1e3 * TOGETHER_S / max(once_ms, 1e-3))))
        return typical(self._group.largest(watch.time(step, count)[0])) / 1e3

    def _medians(self, calls: Sequence[Timing]) -> list[float]:
        """Seconds of each call, prepared anew in each round."""
        rounds, every = [], []
        torch.set_flush_denormal(True)  # what shrinks in place ends at 0, not among slower numbers
        try:
            for _ in range(ROUNDS):
                took_s, looks = [], []
                for number, timing in enumerate(calls, start=1):
                    with self._observer.phase(f"kernel or step {number} of {len(calls)}"):
                        took_s.append(timing())
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
