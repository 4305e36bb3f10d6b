"""The sides of a check: rows and ranks of each, in one folder, for as long as it measures."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click

from spbench.errors import UNFIT, Failure, ResultsError
from spbench.launch.gpu_memory import GpuMemory
from spbench.launch.launcher import Deadlines, LauncherError
from spbench.launch.local import LocalLauncher
from spbench.launch.turn_seat import Seat
from spbench.regression.alternate import Runner
from spbench.regression.turn_server import TurnServer
from spbench.results.environment import environment
from spbench.results.store import Store
from spbench.sweep.output_folder import as_in_run_json, new_session
from spbench.sweep.sweep import Sweep
from spbench.workload.case import COUNTED, Cell


@dataclass(frozen=True, kw_only=True)
class Code:
    """What a side runs: the code of this process, unless told otherwise."""

    name: str
    """Of the side, and of its folder."""
    variables: Mapping[str, str | None] = field(default_factory=dict)
    """With which another tree's code is run."""
    commit: str = ""
    is_base: bool = False
    """Nothing is edited in it, and it alone knows what its strategies decline."""


@contextmanager
def open_runners(
    folder: Path, codes: Sequence[Code], cells: Sequence[Cell], deadlines: Deadlines
) -> Iterator[list[Runner]]:
    """A side for each; all share their rounds. Where times of two are judged their launchers are
    renewed (see ``regression/alternate.py``). Raises Failure where rows cannot be written, or
    memory of a GPU does not come back."""
    session, facts = new_session(), environment()
    cases = [cell.case for cell in cells]
    planned = [as_in_run_json(cell) for cell in cells]
    with ExitStack() as stack:
        sides = []
        try:
            timed = any(case.budget != COUNTED for case in cases)
            take_turns = len(codes) > 1 and all(case.device == "cpu" for case in cases)
            seats = _seats(stack) if take_turns else [None] * len(codes)
            memory = GpuMemory.of(cases)
            for code, seat in zip(codes, seats, strict=True):
                store = stack.enter_context(Store(folder / code.name))
                git = {"commit": code.commit, "dirty": False} if code.is_base else facts["git"]
                store.write_run({"argv": sys.argv, "cases": planned, **facts, "git": git})
                log = store.folder / "logs" / "launcher.log"
                launcher = LocalLauncher(log, code.variables, gpu_memory=memory, seat=seat)
                stack.callback(launcher.close)
                sweep = Sweep(
                    store=store,
                    launcher=launcher,
                    run_id=folder.resolve().name,
                    session=session,
                    deadlines=deadlines,
                    git_commit=code.commit or facts["git"].get("commit", ""),
                )
                sides.append(
                    Runner(
                        name=code.name,
                        sweep=sweep,
                        seat=seat,
                        tries_all=code.is_base,
                        renews_launcher=timed,
                    )
                )
            yield sides
            click.echo(f"the rows of this check: {_shown_by(sides)}", err=True)
        except (ResultsError, LauncherError) as error:
            raise Failure(str(error), UNFIT) from None


def _shown_by(sides: Sequence[Runner]) -> str:
    """The command that shows them."""
    return shlex.join(["spbench", "compare", *(str(side.sweep.store.folder) for side in sides)])


def _seats(stack: ExitStack) -> Sequence[Seat | None]:
    """Where both sides' launches take turns; none where the system has no such sockets."""
    try:
        return stack.enter_context(TurnServer()).seats
    except OSError as error:
        click.echo(
            f"no socket in {tempfile.gettempdir()} ({error.strerror or error}): the two sides' "
            f"launches follow each other and take no turns; TMPDIR names another folder",
            err=True,
        )
        return [None, None]
