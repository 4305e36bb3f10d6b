"""The largest batch, or the longest axis, of which a step fits into a rank's memory.

Peak memory is asked for size by size: of a dry run, or of ranks that try. It grows with size, and
nearly as a polynomial, so that a line through the two nearest sizes finds the limit in a few tries.
The answer was tried, and so was the next size, which does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import product
from math import gcd
from pathlib import Path
from typing import Any, final

from spbench.errors import Failure
from spbench.launch.launcher import Deadlines, Launcher, status_and_cause
from spbench.launch.local import LocalLauncher, read_samples
from spbench.projection.dryrun.meta_ops import TooManyOperationsError
from spbench.projection.dryrun.trace import work
from spbench.report import tables, units
from spbench.report.fit_width import Grid, fewer
from spbench.results.capacities import BATCH, COLUMNS
from spbench.results.machine import git_state, package_version
from spbench.results.record import axes_text, columns_of_case
from spbench.results.temporary import temporary_folder
from spbench.strategies.registry import in_mesh
from spbench.sweep.devices import least_capability, visible_gpus
from spbench.sweep.plan import job_of
from spbench.text import counted
from spbench.workload.case import COUNTED, Case, Device
from spbench.workload.catalogue import with_settings
from spbench.workload.mesh import NO_MESH, CaseMesh
from spbench.workload.workload import Workload

MOST = 2**24
"""Sizes beyond are not asked for: their indices would not fit into 32 bits."""
FIRST_TRIES = 64
"""Steps of the smallest size, at most, that may not run before one does."""
LEAP = 16
"""The largest ratio of one try to the one before it, while everything fits."""


@final
@dataclass(frozen=True, kw_only=True)
class Peak:
    """A step of one size: the bytes of its busiest rank; None, and why not, where none can run."""

    held_bytes: int | None
    why_not: str = ""
    is_starved: bool = False
    """Whether it ran out of memory, so that its bytes are not known."""
    is_end: bool = False
    """Whether no larger size can run either."""

    @property
    def has_run(self) -> bool:
        """Whether a step ran, if not to its end: other sizes are refused at once."""
        return self.held_bytes is not None or self.is_starved or self.is_end


@final
@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What a strategy holds on some ranks within a budget."""

    strategy: str
    ranks: int
    grows: str
    """``batch``, or the name of an axis."""
    largest: int | None
    """None: not even the smallest fits, or it cannot run at all."""
    peak_bytes: int | None
    """At the largest size; of the smallest one where that does not fit."""
    next_bytes: int | None
    """At the next size, which does not fit; None where sizes end before memory does."""
    why_not: str = ""
    """Why it is no larger: blank where the next size, or the smallest, does not fit."""
    tries: int = 0
    """Sizes of which a step ran."""


PeakOf = Callable[[int], Peak]


def capacity_of(peak_of: PeakOf, budget_bytes: float, *, step: int, **asked: Any) -> Capacity:
    """The largest multiple of ``step`` that runs and fits, by tries of ``peak_of``; ``asked``: of
    which strategy, ranks and size."""
    search = _Search(peak_of, budget_bytes, step)
    largest, at, why_not = search.run()
    after = None if largest is None else search.tried.get(largest + step)
    return Capacity(
        **asked,
        largest=largest,
        peak_bytes=at.held_bytes,
        next_bytes=None if after is None else after.held_bytes,
        why_not=why_not,
        tries=sum(peak.has_run for peak in search.tried.values()),
    )


@final
class _Search:
    """Brackets the limit from below and above, and narrows the bracket."""

    def __init__(self, peak_of: PeakOf, budget_bytes: float, step: int) -> None:
        self._peak_of, self._budget, self._step = peak_of, budget_bytes, step
        self.tried: dict[int, Peak] = {}

    def run(self) -> tuple[int | None, Peak, str]:
        """The largest size that fits, its peak, and why it is no larger where memory is not why."""
        low = self._first()
        if low is None:
            last = self.tried[max(self.tried)]
            why = last if last.is_end else self.tried[self._step]
            return None, last, "" if last.is_starved else why.why_not
        if not self._fits(low):
            return None, self.tried[low], ""
        high = self._above(low)
        low = max(size for size in self.tried if self._fits(size) and size < high)
        while high - low > self._step:
            size = self._between(low, high)
            low, high = (size, high) if self._fits(size) else (low, size)
        return low, self.tried[low], self.tried[high].why_not

    def _first(self) -> int | None:
        """The smallest size that can run; None where none of the first can, or memory ends."""
        for n in range(1, FIRST_TRIES + 1):
            peak = self._try(self._step * n)
            if peak.held_bytes is not None:
                return self._step * n
            if peak.is_starved or peak.is_end:
                return None
        return None

    def _above(self, low: int) -> int:
        """A size that does not fit, or that cannot run."""
        size, last = low, MOST // self._step * self._step
        while self._fits(size):
            size = min(self._guess(low, size), last if size < last else last + self._step)
        return size

    def _guess(self, low: int, size: int) -> int:
        """Where a line through two sizes that fit reaches the budget, and a little further."""
        known = sorted(each for each in self.tried if low <= each <= size and self._fits(each))
        if len(known) < 2:
            return 2 * size
        limit = self._crossing(*known[-2:])
        return self._rounded(min(LEAP * size, max(size + self._step, limit + self._step)))

    def _between(self, low: int, high: int) -> int:
        """A size inside the bracket: on the line where both peaks are known, else the middle. The
        line is not trusted twice for the same end: every second try is the middle."""
        middle = self._rounded((low + high) / 2)
        is_known = self.tried[high].held_bytes is not None
        size = self._rounded(self._crossing(low, high)) if is_known else middle
        if len(self.tried) % 3 == 0:
            size = middle
        return min(high - self._step, max(low + self._step, size))

    def _crossing(self, low: int, high: int) -> float:
        held, more = (float(self.tried[size].held_bytes or 0) for size in (low, high))
        if more <= held:
            return float(LEAP * high)
        return low + (self._budget - held) * (high - low) / (more - held)

    def _rounded(self, size: float) -> int:
        return max(self._step, int(size // self._step) * self._step)

    def _fits(self, size: int) -> bool:
        held = self._try(size).held_bytes
        return held is not None and held <= self._budget

    def _try(self, size: int) -> Peak:
        if size not in self.tried:
            end = Peak(held_bytes=None, why_not=f"sizes end at {MOST:,}")
            self.tried[size] = end if size > MOST else self._peak_of(size)
        return self.tried[size]


# Asks for the memory of a step, of a workload whose batch or one of whose axes takes a size.
#
# A dry run answers for any number of ranks; ranks that try answer for this machine.

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
    mesh: CaseMesh = NO_MESH

    @property
    def name(self) -> str:
        """The strategy and the mesh around it, as in the column ``strategy``."""
        return self.mesh.beside(self.strategy)

    @property
    def label(self) -> str:
        """The question as a line on the terminal has it, such as 'dsp on 8, space'."""
        return f"{self.name} on {self.ranks}, {self.grows}"

    @property
    def step(self) -> int:
        """What the size grows by: an axis by the ranks that share it, so that shards are even; a
        batch by what fills all groups, and in each the microbatches."""
        if self.grows != BATCH:
            return max(1, self.ranks // (self.mesh.groups * self.mesh.pp))
        branches = max(1, self.workload.guidance // self.mesh.cfg)
        microbatches = self.workload.microbatches if self.mesh.pp > 1 else 0
        return self.mesh.dp * (microbatches // gcd(microbatches, branches) or 1)

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
        why_not = in_mesh(self.strategy, self.mesh).declines(grown, self.ranks)
        return held_bytes(grown) if why_not is None else Peak(held_bytes=None, why_not=why_not)

    def foreseen(self, device: Device, size: int) -> Peak:
        """The peak at ``size`` by a dry run of the busiest rank on such a device."""

        def held(grown: Workload) -> Peak:
            strategy = in_mesh(self.strategy, self.mesh)
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
                mesh=self.mesh,
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
                where = f"{self.name} on {self.ranks} ranks, {self.grows} {size}"
                raise Failure(f"{where}: {status}: {cause}")
            return Peak(held_bytes=max(sample.peak_allocated_bytes or 0 for sample in samples))

        return self.answer(size, held)


def questions(
    workload: Workload,
    strategies: Sequence[str],
    ranks: Sequence[int],
    grows: Sequence[str],
    meshes: Sequence[CaseMesh] = (NO_MESH,),
) -> list[MemoryQuestion]:
    """What may grow, then ranks, then meshes and strategies in the order given."""
    return [
        MemoryQuestion(workload=workload, strategy=name, ranks=count, grows=what, mesh=mesh)
        for what, count, mesh, name in product(grows, ranks, meshes, strategies)
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
    what = {"strategy": asked.name, "ranks": asked.ranks, "grows": asked.grows}
    return capacity_of(peak_of, budget_bytes, step=asked.step, **what)


# The largest batch and the longest axis that fit: as a table, and as lines of capacity.csv.

NO_OPTIMIZER = (
    "warning: no optimizer is counted, and training has one: AdamW keeps two more tensors of each "
    "weight's size; count them with --set optimizer=adamw"
)


def rows_of(
    capacities: Sequence[Capacity], workload: Workload, budget_bytes: float, tried_on: str | None
) -> list[dict[str, Any]]:
    """A line for each; ``tried_on``: the device of ranks that tried, None for dry runs."""
    case = Case(workload=workload, strategy=capacities[0].strategy, ranks=1, device="cpu")
    known = {
        **columns_of_case(case),
        "budget_bytes": round(budget_bytes),
        "kind": "dry_run" if tried_on is None else "measured",
        "gpu": tried_on or "",
        "torch": package_version("torch"),
        "git_commit": git_state().get("commit", ""),
        "started_utc": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
    }
    rows = [{**known, **asdict(each)} for each in capacities]
    for row in rows:
        if row["grows"] == BATCH:
            row["batch"] = None
        else:
            fixed = {axis: n for axis, n in workload.axes.items() if axis != row["grows"]}
            row["axes"] = axes_text(fixed)
    return [{name: row[name] for name in COLUMNS} for row in rows]


def show_capacities(
    capacities: Sequence[Capacity], work: Workload, budget_bytes: float, how: str
) -> None:
    """What is held, a line for each, and a sentence where something other than memory limits it."""
    out, unit = tables.console(), units.size_unit(budget_bytes)
    tables.say(out, f"{_held(work)},")
    tables.say(out, f"within {units.size_in(unit, budget_bytes)} {unit} of a rank, {how}")
    after = f"{unit} of the next"
    columns = ("strategy", "ranks", "grows", "largest", unit, after, "tries")
    rows = [_row(each, unit) for each in capacities]
    tables.show_fitting(
        out, fewer(Grid(columns=columns, rows=rows, words=(0, 2)), ("tries", after))
    )
    tables.say(out, *filter(None, map(_limit, capacities)))
    if work.mode == "train" and work.optimizer == "none":
        tables.say(out, NO_OPTIMIZER)


def _held(work: Workload) -> str:
    """What counts towards memory, besides the size that grows."""
    again = "no" if work.checkpointing == "none" else work.checkpointing
    how = f"a step of {work.name}: {work.mode}, {again} checkpointing, {work.dtype}"
    if work.mode == "forward":
        return how
    return f"{how}, {'no optimizer' if work.optimizer == 'none' else work.optimizer}"


def _row(each: Capacity, unit: str) -> list[str]:
    largest = units.BLANK if each.largest is None else f"{each.largest:,}"
    peaks = (each.peak_bytes, each.next_bytes)
    sizes = [units.BLANK if peak is None else units.size_in(unit, peak) for peak in peaks]
    return [each.strategy, str(each.ranks), each.grows, largest, *sizes, str(each.tries)]


def _limit(each: Capacity) -> str:
    where = f"{each.strategy} on {counted(each.ranks, 'rank')}, {each.grows}"
    if each.largest is None and not each.why_not:
        return f"{where}: {'batch 1' if each.grows == BATCH else 'the smallest size'} does not fit"
    return f"{where}: {each.why_not}" if each.why_not else ""
