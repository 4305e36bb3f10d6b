"""The folder that a run writes into, and the names that it gives to what lies in it."""

from __future__ import annotations

import itertools
import re
import secrets
from datetime import UTC, datetime
from pathlib import Path

from spbench.errors import Failure
from spbench.results.lock import LOCK
from spbench.workload.case import Case, Cell

BEGUN = {LOCK, "logs"}
"""What a run makes before it writes run.json: a folder that holds nothing else may be a run's."""


def output_folder(out: Path | None, title: str, *, fresh: bool = False) -> Path:
    """``out`` (a run there is resumed), a new folder beside it, or one named by date and title.

    Creates nothing. Only the process that writes may call it: other nodes and ranks may see the
    same disk, where that process has begun already. Raises Failure for what cannot be a run's.
    """
    if out is None:
        safe = re.sub(r"[^A-Za-z0-9.-]+", "-", title)
        return new_folder(Path("results"), f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{safe}")
    if fresh:
        return new_folder(out.parent, out.name)
    if out.exists() and not out.is_dir():
        raise Failure(f"--out {out} is a file; name a folder that may be new")
    held = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if "run.json" not in held and held - BEGUN:
        raise Failure(f"--out {out} holds other things than a run; name a new folder, or --fresh")
    return out


def new_folder(parent: Path, name: str) -> Path:
    """``parent/name``, or with a number behind it that is not taken."""
    names = itertools.chain([name], (f"{name}-{count}" for count in itertools.count(2)))
    return next(parent / free for free in names if not (parent / free).exists())


def launch_folder(case: Case) -> str:
    """Readable, safe in any file system, and different for different cases and launches."""
    strategy = re.sub(r"[^A-Za-z0-9.-]+", "-", case.name)
    return f"{strategy}-{case.ranks}-{case.key[:8]}-launch{case.launch}"


def new_session() -> str:
    """A name that differs for any two invocations, wherever they run."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def as_in_run_json(cell: Cell) -> dict[str, object]:
    """A cell with all its fields, as run.json keeps it."""
    return {
        "key": cell.case.key,
        "why_not": cell.why_not,
        **cell.case.model_dump(mode="json", by_alias=True),
    }
