"""Names: of results folders, of invocations, of cells in run.json."""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime
from pathlib import Path

from spbench.cli.exits import Failure
from spbench.launch.plan import Cell
from spbench.launch.sweep import new_folder


def new_session() -> str:
    """Different for any two invocations, wherever they run."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def results_folder(out: Path | None, title: str, *, fresh: bool) -> Path:
    """Where to write: ``--out`` (resumed if it is there), beside it, or a new one by date."""
    if out is None:
        safe = re.sub(r"[^A-Za-z0-9.-]+", "-", title)
        return new_folder(Path("results"), f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{safe}")
    if fresh:
        return new_folder(out.parent, out.name)
    if out.exists() and not out.is_dir():
        raise Failure(f"--out {out} is a file; name a folder that may be new")
    if out.is_dir() and any(out.iterdir()) and not (out / "run.json").exists():
        raise Failure(f"--out {out} holds other things than a run; name a new folder, or --fresh")
    return out


def resolved(cell: Cell) -> dict[str, object]:
    """A cell as run.json keeps it."""
    return {
        "key": cell.case.key,
        "why_not": cell.why_not,
        **cell.case.model_dump(mode="json", by_alias=True),
    }
