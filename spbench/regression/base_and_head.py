"""Opens what base and head need while a check measures: their rows, launchers and seats."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click

from spbench.launch.gpu_memory import GpuMemory
from spbench.launch.launcher import Deadlines
from spbench.launch.local import LocalLauncher
from spbench.launch.turn_seat import Seat
from spbench.regression.alternate import Runner
from spbench.regression.turn_server import TurnServer
from spbench.results.environment import environment
from spbench.results.store import Store
from spbench.sweep.run_folder import as_in_run_json, new_session
from spbench.sweep.sweep import Sweep
from spbench.workload.case import COUNTED, Cell


@dataclass(frozen=True, kw_only=True)
class Code:
    """The code that base or head runs: that of this process, unless ``variables`` say otherwise."""

    name: str
    """``base`` or ``now``, which also names the folder of its rows."""
    variables: Mapping[str, str | None] = field(default_factory=dict)
    """Variables with which ranks run another tree's code."""
    commit: str = ""
    is_base: bool = False
    """Whether it is exactly its commit, whose own strategies say which cases they decline."""


@contextmanager
def open_runners(
    folder: Path, codes: Sequence[Code], cells: Sequence[Cell], deadlines: Deadlines
) -> Iterator[list[Runner]]:
    """Opens a runner for each code. Raises Failure where rows cannot be written, or the memory of a
    GPU is not released."""
    session, facts = new_session(), environment()
    cases = [cell.case for cell in cells]
    planned = [as_in_run_json(cell) for cell in cells]
    timed = any(case.budget != COUNTED for case in cases)
    take_turns = len(codes) > 1 and all(case.device == "cpu" for case in cases)
    with ExitStack() as stack:
        runners: list[Runner] = []
        seats = _seats(stack) if take_turns else [None] * len(codes)
        gpu_memory = GpuMemory.of(cases)
        for code, seat in zip(codes, seats, strict=True):
            store = stack.enter_context(Store(folder / code.name))
            git = {"commit": code.commit, "dirty": False} if code.is_base else facts["git"]
            store.write_run({"argv": sys.argv, "cases": planned, **facts, "git": git})
            log = store.folder / "logs" / "launcher.log"
            launcher = LocalLauncher(log, code.variables, gpu_memory=gpu_memory, seat=seat)
            stack.callback(launcher.close)
            sweep = Sweep(
                store=store,
                launcher=launcher,
                run_id=folder.resolve().name,
                session=session,
                deadlines=deadlines,
                git_commit=code.commit or facts["git"].get("commit", ""),
                gpus=facts["gpus"],
            )
            runners.append(
                Runner(
                    name=code.name,
                    sweep=sweep,
                    seat=seat,
                    tries_all=code.is_base,
                    renews_launcher=timed,
                )
            )
        yield runners
        folders = [str(runner.sweep.store.folder) for runner in runners]
        command = shlex.join(["spbench", "compare", *folders])
        click.echo(f"show the rows of this check with: {command}", err=True)


def _seats(stack: ExitStack) -> Sequence[Seat | None]:
    """The seats of base and head; none where the system has no Unix sockets."""
    try:
        return stack.enter_context(TurnServer()).seats
    except OSError as error:
        click.echo(
            f"no socket can be made in {tempfile.gettempdir()} ({error.strerror or error}): "
            f"launches of base and head run one after the other, without alternating steps; set "
            f"TMPDIR to another folder",
            err=True,
        )
        return [None, None]
