"""Names: of results folders, of invocations, of cells in run.json."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from spbench.errors import Failure
from spbench.results.lock import LOCK
from spbench.sweep.sweep import new_folder
from spbench.workload.case import Cell

BEGUN = {LOCK, "logs"}
"""What a run makes before it writes run.json: a folder that holds nothing else may be a run's."""


def new_session() -> str:
    """Different for any two invocations, wherever they run."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


@dataclass(frozen=True)
class Destination:
    """Where to write: ``--out`` (resumed if it is there), beside it, or a new folder by date.

    Nothing is looked at before ``folder`` is asked for, and only the process that writes asks:
    other nodes and ranks may see the same disk, where it has begun already.
    """

    out: Path | None
    title: str
    fresh: bool = False

    def check(self) -> None:
        """Raises Failure as ``folder`` would."""
        assert self.folder

    @cached_property
    def folder(self) -> Path:
        """Raises Failure for what cannot be a run's."""
        out = self.out
        if out is None:
            safe = re.sub(r"[^A-Za-z0-9.-]+", "-", self.title)
            return new_folder(Path("results"), f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{safe}")
        if self.fresh:
            return new_folder(out.parent, out.name)
        if out.exists() and not out.is_dir():
            raise Failure(f"--out {out} is a file; name a folder that may be new")
        held = {path.name for path in out.iterdir()} if out.is_dir() else set()
        if "run.json" not in held and held - BEGUN:
            raise Failure(
                f"--out {out} holds other things than a run; name a new folder, or --fresh"
            )
        return out


def resolved(cell: Cell) -> dict[str, object]:
    """A cell as run.json keeps it."""
    return {
        "key": cell.case.key,
        "why_not": cell.why_not,
        **cell.case.model_dump(mode="json", by_alias=True),
    }
