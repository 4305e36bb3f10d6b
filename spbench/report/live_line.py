"""The last line of a run on a terminal: the launch, its phase, and about how much time is left."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar, final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from spbench.report import tables, units
from spbench.results.heartbeat import find_heartbeats, read_heartbeat
from spbench.text import counted
from spbench.workload.case import Case
from spbench.workload.predicted import Estimate

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
        estimates: Mapping[str, Estimate] | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``estimates``: of the cases, by their keys; without the seconds of all of them the time
        left is told once a launch has shown how long launches take."""
        self.live = is_live(console)
        known = [(estimates or {}).get(case.key) for case in cases]
        seconds = [each.launch_s for each in known if each and each.launch_s]
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


def watched(items: Iterable[T], names: Sequence[str], what: str) -> Iterator[T]:
    """Yields ``items``, which take a while, and says so on stderr: on a terminal which of
    ``names``, one for each, is under way; elsewhere once how many there are."""
    console = tables.console(sys.stderr)
    if not is_live(console):
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
