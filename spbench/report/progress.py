"""The progress of a run on stderr: live in a terminal, plain lines elsewhere.

On a terminal the last line names the launch, its phase, and about how much time is left.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Self, TypeVar, final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from spbench.errors import Failure
from spbench.report import tables, units
from spbench.results.find_run import command_again
from spbench.results.heartbeat import find_heartbeats, read_heartbeat
from spbench.results.machine import package_version
from spbench.results.record import Record
from spbench.text import counted, quoted
from spbench.workload.case import Case
from spbench.workload.traffic import PHASES
from spbench.workload.workload import Workload

T = TypeVar("T")
LOADING, DRY_RUNS = "loading torch", "dry runs"


@final
class Asked(ProgressColumn):
    """A text that is asked for whenever the line is drawn."""

    def __init__(self, text: Callable[[], str]) -> None:
        super().__init__()
        self.text = text

    def render(self, task: Task) -> Text:
        return Text(self.text())


@final
class LiveLine:
    """The line of launches that run one after another; nothing where there is no terminal."""

    def __init__(
        self,
        console: Console,
        cases: Sequence[Case],
        launch_s: Mapping[str, float] | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``launch_s``: about the seconds of a launch, by the keys of cases; without those of all
        cases the time left is told once a launch has shown how long launches take."""
        self.live = is_live(console)
        known_s = launch_s or {}
        seconds = [known_s[case.key] for case in cases if case.key in known_s]
        self.pace = 1.0 if len(seconds) == len(cases) else None
        self.left_s = seconds if self.pace else [1.0] * len(cases)
        self.done_s, self.now_s = 0.0, now_s
        self.began_s = self.since_s = now_s()
        self.logs: Path | None = None
        self.progress = Progress(
            TextColumn("{task.description}"),
            Asked(self.phase),
            BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total}"),
            TimeElapsedColumn(),
            Asked(self.time_left),
            console=console,
            transient=True,
            disable=not self.live,
        )
        self.task = self.progress.add_task("starting", total=len(cases))

    def more(self, launches: int) -> None:
        """Further launches follow, each expected to take as long as those before."""
        done = self.progress.tasks[0].completed
        self.left_s += [self.done_s / max(done, 1)] * launches
        self.progress.update(self.task, total=done + launches)

    def started(self, case: Case, logs: Path | None) -> None:
        """``logs``: the folder of the launch, where its heartbeats are named."""
        self.logs = logs
        self.progress.update(self.task, description=f"{case.label}:")

    def finished(self) -> None:
        self.since_s = self.now_s()
        self.done_s += self.left_s.pop(0)
        self.pace = (self.since_s - self.began_s) / self.done_s
        self.progress.update(self.task, advance=1)

    def phase(self) -> str:
        """The phase of the first rank; before ranks have a heartbeat, what they wait for."""
        if self.logs is None:
            return ""
        heartbeats = find_heartbeats(self.logs)
        position = None if heartbeats is None else read_heartbeat(heartbeats, 0)
        if position is not None:
            return position.phase
        return "starting" if self.done_s else LOADING

    def time_left(self) -> str:
        """What launches were expected to take, at the pace of those that are done."""
        if self.pace is None or not self.left_s:
            return ""
        this_s, *others_s = (self.pace * seconds for seconds in self.left_s)
        this_s = max(0.0, this_s - (self.now_s() - self.since_s))
        return f"about {units.roughly(this_s + sum(others_s))} left"


def is_live(console: Console) -> bool:
    """Whether a line can be drawn again and again."""
    return console.is_terminal and not console.is_dumb_terminal


def stamped(text: str) -> str:
    """A line of a log: with the time."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {text}"


def watched(
    items: Iterable[T], names: Sequence[str], what: str, *, is_one_of_many: bool = False
) -> Iterator[T]:
    """Yields ``items``, which take a while, and says so on stderr: on a terminal which of
    ``names``, one for each, is under way; elsewhere once how many there are, unless further ones
    follow."""
    console = tables.console(sys.stderr)
    if not is_live(console):
        if not is_one_of_many:
            click.echo(stamped(f"{what}: {counted(len(names), 'case')}"), err=True)
        yield from items
        return
    done = BarColumn(bar_width=24), TextColumn("{task.completed}/{task.total}")
    columns = TextColumn("{task.description}"), *done, TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(f"{what}: {names[0]}", total=len(names))
        for number, item in enumerate(items, start=1):
            name = names[min(number, len(names) - 1)]
            progress.update(task, advance=1, description=f"{what}: {name}")
            yield item


@contextmanager
def loading_torch(*, verbose: bool = False) -> Iterator[None]:
    """Says on stderr that torch is loaded inside, which takes seconds: on a terminal until it is
    done, elsewhere only if ``verbose``."""
    console = tables.console(sys.stderr)
    if "torch" in sys.modules:
        yield
    elif is_live(console):
        with console.status(LOADING):
            yield
    else:
        if verbose:
            click.echo(stamped(LOADING), err=True)
        yield


class Screen:
    """The launch that runs, and a line for each that has finished."""

    def __init__(
        self,
        folder: Path,
        cases: Sequence[Case],
        *,
        resumed: int = 0,
        verbose: bool = False,
        goes_on: bool = False,
        placed: Sequence[str] = (),
        foreseen: Sequence[str] = (),
        launch_s: Mapping[str, float] | None = None,
    ) -> None:
        """``goes_on``: the command has more passes after this one.
        ``placed``: ranks of each machine, where there are several machines.
        ``foreseen``: sentences on what the launches will take.
        ``launch_s``: about the seconds of a launch, by the keys of cases."""
        self.folder, self.cases, self.placed, self.foreseen = folder, cases, placed, foreseen
        self.resumed, self.verbose, self.goes_on = resumed, verbose, goes_on
        self.done, self.measured, self.interrupted, self.noisy = 0, resumed, 0, 0
        self.said: set[str] = set()
        """Kinds of doubts about a launch that were said in full."""
        self.several = len({in_a_line(case.workload) for case in cases}) > 1
        self.launches = 1 + max((case.launch for case in cases), default=0)
        self.is_estimated = bool(launch_s)
        self.console = tables.console(sys.stderr)
        self.line = LiveLine(self.console, cases, launch_s)
        self.started_s = time.monotonic()

    def __enter__(self) -> Self:
        if self.resumed:
            are = counted(self.resumed, "launch") + (" is" if self.resumed == 1 else " are")
            self._say(f"{are} in {self.folder} already; {len(self.cases)} left to do")
        is_first = any(case.launch == 0 for case in self.cases)
        for sentence in header(self.cases) if is_first or not self.goes_on else []:
            self._say(sentence)
        for sentence in self.placed:
            self._say(f"  ranks: {sentence}")
        for sentence in self.foreseen:
            self._say(sentence)
        self.line.progress.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.line.progress.stop()
        if isinstance(error, KeyboardInterrupt):
            self._say(f"stopped; what was finished is kept in {self.folder}")
        if isinstance(error, (KeyboardInterrupt, Failure)) and not self.goes_on:
            self._say(self._resume)
        elif error is None and not self.goes_on:
            took = units.seconds(time.monotonic() - self.started_s)
            self._say(
                f"{counted(self.done, 'launch')} in {took}; rows in {self.folder / 'runs.csv'}"
            )
            if self.noisy > 1:
                self._say(f"{self.noisy} of {counted(self.done, 'launch')} were noisy")
            if left := len(self.cases) - self.done + self.interrupted:
                self._say(f"--max-time reached; {counted(left, 'launch')} left")
                self._say(self._resume)
            if self.measured:
                for verb in ("compare", "plot"):
                    self._say(f"next: {quoted('spbench', verb, self.folder)}")

    @property
    def _resume(self) -> str:
        again = command_again(self.folder) or f"the same command and {quoted('--out', self.folder)}"
        return f"resume with: {again}"

    def more(self, cases: Sequence[Case]) -> None:
        """Announces a further round, since too few launches were quiet."""
        self.cases = [*self.cases, *cases]
        self.launches = 1 + max(case.launch for case in self.cases)
        self.line.more(len(cases))
        self._say(f"too few launches were undisturbed: {counted(len(cases), 'more launch')}")

    def started(self, case: Case, logs: Path | None = None) -> None:
        """``logs``: the folder of the launch; None where nobody knows a single one."""
        self.line.started(case, logs)

    def finished(
        self, record: Record, side: str = "", phases_s: Mapping[str, float] | None = None
    ) -> None:
        """Prints a launch. ``side``: base or head, where a check launches both; ``phases_s``:
        the seconds of each of its phases."""
        self.done += 1
        self.measured += record.status == "ok"
        self.interrupted += record.status == "interrupted"
        self.line.finished()
        launch = f" launch {record.launch + 1}" if self.launches > 1 else ""
        prefix = f"{side}: " if side else ""
        if self.several:
            # This loads pandas, which is not wanted before ranks start.
            from spbench.analysis.comparable import panel_title

            prefix += f"{panel_title(asdict(record))}, "
        self.noisy += bool(record.noisy)
        unseen = record.unseen_operators
        doubts = {
            "noisy": record.noisy,
            "exposed time is not known": record.compute_note,
            "not looked into": f"{unseen}; see benchmarks/wire.py" if unseen else "",
        }
        again = [what for what, why in doubts.items() if why and what in self.said]
        outcome = _figures(record) if record.status == "ok" else f"{record.status}: {record.reason}"
        outcome = ", ".join([outcome, *again])
        self._say(f"{prefix}{record.strategy} on {record.world_size}{launch}: {outcome}")
        if record.log:
            self._say(f"  log: {self.folder / record.log}")
        for what, why in doubts.items():
            if why and what not in self.said:
                self.said.add(what)
                self._say(f"  {what}: {why}")
        if self.verbose and record.launch_s is not None:
            self._say(f"  {in_seconds(record, phases_s or {})}")
        # A terminal shows the time left all along; a log corrects the estimate once.
        if self.is_estimated and self.done == 1 and not self.line.live and self.line.time_left():
            self._say(f"  {self.line.time_left()}, by the first launch")

    def _say(self, text: str) -> None:
        is_live = self.line.live
        self.console.print(text if is_live else stamped(text), soft_wrap=not is_live)


def _figures(record: Record) -> str:
    """Time, bytes sent, peak of memory and gate error of a launch; no time of counted steps."""
    what = "step" if record.step_ms is not None else "compute"
    counts = [getattr(record, f"sent_bytes_{phase}") for phase in PHASES]
    sent = [count for count in counts if count is not None]
    time = f"{what} {units.milliseconds(getattr(record, f'{what}_ms'))} ms"
    parts = [] if record.effort == "counted" else [time]
    parts += [f"sent {units.mebibytes(sum(sent))} MiB"] if sent else []
    parts += [f"peak {units.mebibytes(record.peak_allocated_bytes)} MiB"]
    on = f" on {record.gated_on}" if record.is_gate_reduced else ""
    parts += [f"gate {units.error(record.gate_error)}{on}"] if record.gate_error is not None else []
    return ", ".join(parts)


def in_seconds(record: Record, phases_s: Mapping[str, float]) -> str:
    """Seconds of each phase of a launch, and its overhead: the time outside steps."""
    text = f"took {record.launch_s:.2f} s"
    if phases_s:
        text += ": " + ", ".join(f"{name} {value:.2f}" for name, value in phases_s.items())
    if record.launch_s is not None and record.steps_s is not None:
        text += f"; overhead {record.launch_s - record.steps_s:.2f} s"
    return text


def header(cases: Sequence[Case]) -> list[str]:
    """The workloads, launches, ranks, device and libraries of a run."""
    lines = list(dict.fromkeys(in_a_line(case.workload) for case in cases))
    if cases:
        *others, last = dict.fromkeys(case.ranks for case in cases)
        ranks = ", ".join([*map(str, others), counted(last, "rank")])
        backend = {"cuda": "nccl", "cpu": "gloo"}[cases[0].device]
        if all(case.kind == "one_gpu_share" for case in cases):
            ranks, backend = f"one rank's share of {ranks}", "nothing is sent"
        of_cases = counted(len({case.key for case in cases}), "case")
        how = "" if cases[0].is_eager else f", {cases[0].execution}"
        where = f"{ranks}; {cases[0].device}{how}, {backend}, torch {package_version('torch')}"
        lines.append(f"{counted(len(cases), 'launch')} of {of_cases} on {where}")
    return lines


def in_a_line(work: Workload) -> str:
    """A workload by what distinguishes it in a sweep."""
    axes = " x ".join(f"{name} {length}" for name, length in work.axes.items())
    size = f"hidden {work.hidden}, {work.heads} heads, depth {work.depth_in_words}"
    how = f"{work.dtype}, {work.mode}"
    batch = f"batch {work.batch}" + (f" x {work.guidance}" if work.guidance > 1 else "")
    again = {"none": "", "full": ", checkpointed", "selective": ", attention recomputed"}
    update = f", {work.optimizer}" if work.optimizer != "none" else ""
    return f"{work.name}: {axes}, {size}, {batch}, {how}{again[work.checkpointing]}{update}"
