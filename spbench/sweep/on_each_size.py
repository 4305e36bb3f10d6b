"""Checks on one number of ranks after another, by one launcher, with what is done around them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click

from spbench.errors import SOME_FAILED, Failure
from spbench.launch.launcher import Launcher
from spbench.sweep.verification import RanksFailedError
from spbench.text import counted
from spbench.workload.case import Check

T = TypeVar("T")


def on_each(
    ranks: Sequence[int],
    checks: Sequence[Check],
    make: Callable[[Path], Launcher],
    run: Callable[[int, Launcher, Path], list[T]],
) -> list[T]:
    """What ``run`` finds with each number of ranks, in a folder of its own, all in one list.

    ``make`` gives the launcher, whose log lies at the path. Raises Failure if ranks fail.
    """
    # The logs are worth keeping only if ranks fail, and then the message says where they are.
    folder = Path(tempfile.mkdtemp(prefix="spbench-verify-"))
    launcher = make(folder / "launcher.log")
    found: list[T] = []
    keep = False
    try:
        for size in ranks:
            click.echo(f"{counted(len(checks), 'check')} on {counted(size, 'rank')}", err=True)
            found += run(size, launcher, folder / f"{size}-ranks")
    except RanksFailedError as error:
        keep = True
        raise Failure(str(error), SOME_FAILED) from None
    finally:
        launcher.close()
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    return found
