"""Asks for the memory of a step, of a workload whose batch or one of whose axes takes a size.

A dry run answers for any number of ranks; ranks that try answer for this machine.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import final

from spbench.errors import Failure
from spbench.launch.launcher import Deadlines, Launcher, status_and_cause
from spbench.launch.local import LocalLauncher, read_samples
from spbench.projection.capacity import Capacity, Peak, PeakOf, capacity_of
from spbench.projection.dataless import TooManyOperationsError
from spbench.projection.trace import work
from spbench.results.capacities import BATCH
from spbench.results.temporary import temporary_folder
from spbench.strategies.registry import load
from spbench.sweep.devices import least_capability, visible_gpus
from spbench.sweep.plan import job_of
from spbench.workload.case import COUNTED, Case, Device
from spbench.workload.catalogue import with_settings
from spbench.workload.workload import Workload

STARVED = ("oom", "host_oom")
OUT_OF_MEMORY = "out of memory"


@final
@dataclass(frozen=True, kw_only=True)
class MemoryQuestion:
    """A strategy on some ranks, and what may grow."""

    workload: Workload
    strategy: str
    ranks: int
    grows: str
    """``batch``, or the name of an axis."""

    @property
    def label(self) -> str:
        """The question as a line on the terminal has it, such as 'dsp on 8, space'."""
        return f"{self.strategy} on {self.ranks}, {self.grows}"

    def grown(self, size: int) -> Workload:
        """The workload of this size. Raises Failure where there is none."""
        key = BATCH if self.grows == BATCH else f"axes.{self.grows}"
        return with_settings(self.workload, [f"{key}={size}"])

    def answer(self, size: int, held_bytes: Callable[[Workload], Peak]) -> Peak:
        """The peak at ``size``, by ``held_bytes`` of a workload that can run."""
        try:
            grown = self.grown(size)
        except Failure as error:
            return Peak(held_bytes=None, why_not=str(error))
        why_not = load(self.strategy).declines(grown, self.ranks)
        return held_bytes(grown) if why_not is None else Peak(held_bytes=None, why_not=why_not)

    def foreseen(self, device: Device, size: int) -> Peak:
        """The peak at ``size`` by a dry run of the busiest rank on such a device."""

        def held(grown: Workload) -> Peak:
            strategy = load(self.strategy)
            try:
                done = work(grown, strategy, self.ranks, with_memory=True, device=device)
            except TooManyOperationsError as error:  # no fewer for a larger size
                return Peak(held_bytes=None, why_not=str(error), is_end=True)
            assert done.memory is not None
            return Peak(held_bytes=done.memory.peak)

        return self.answer(size, held)

    def tried(
        self, launcher: Launcher, folder: Path, device: Device, deadlines: Deadlines, size: int
    ) -> Peak:
        """The peak at ``size`` of ranks that try: one counted step behind the gate. Raises Failure
        where a launch fails for want of something other than memory."""

        def held(grown: Workload) -> Peak:
            case = Case(
                workload=grown,
                strategy=self.strategy,
                ranks=self.ranks,
                device=device,
                budget=COUNTED,
            )
            job = job_of(case, deadlines, least_capability(visible_gpus()))
            launched = launcher.run(job, folder / case.key)
            samples = read_samples(job, folder / case.key)
            status, cause = status_and_cause(launched, samples, job)
            if status in STARVED:
                return Peak(held_bytes=None, why_not=OUT_OF_MEMORY, is_starved=True)
            if status != "ok":
                where = f"{self.strategy} on {self.ranks} ranks, {self.grows} {size}"
                raise Failure(f"{where}: {status}: {cause}")
            return Peak(held_bytes=max(sample.peak_allocated_bytes or 0 for sample in samples))

        return self.answer(size, held)


def questions(
    workload: Workload, strategies: Sequence[str], ranks: Sequence[int], grows: Sequence[str]
) -> list[MemoryQuestion]:
    """What may grow, then ranks, then strategies in the order given."""
    return [
        MemoryQuestion(workload=workload, strategy=name, ranks=count, grows=what)
        for what, count, name in product(grows, ranks, strategies)
    ]


def foreseen(
    asked: Sequence[MemoryQuestion], budget_bytes: float, device: Device
) -> Iterator[Capacity]:
    """Capacities by dry runs."""
    return (_capacity(each, partial(each.foreseen, device), budget_bytes) for each in asked)


def tried(
    asked: Sequence[MemoryQuestion], budget_bytes: float, device: Device, deadlines: Deadlines
) -> Iterator[Capacity]:
    """Capacities by launches on this machine. Raises Failure where one fails otherwise."""
    with temporary_folder("spbench-capacity-") as folder:
        launcher = LocalLauncher(folder / "launcher.log")
        with closing(launcher):
            for each in asked:
                peak_of = partial(each.tried, launcher, folder, device, deadlines)
                yield _capacity(each, peak_of, budget_bytes)


def _capacity(asked: MemoryQuestion, peak_of: PeakOf, budget_bytes: float) -> Capacity:
    """An axis grows by the number of ranks, so that shards are even; a batch by 1."""
    step = 1 if asked.grows == BATCH else asked.ranks
    what = {"strategy": asked.strategy, "ranks": asked.ranks, "grows": asked.grows}
    return capacity_of(peak_of, budget_bytes, step=step, **what)
