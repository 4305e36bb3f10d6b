"""Baselines: runs that later ones are measured against, kept under a name.

A baseline is a folder ``baselines/NAME`` with the rows and the run.json of a run, small enough
to be committed beside the code that it judges.
"""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from spbench.errors import ResultsError
from spbench.results.lock import LOCK
from spbench.results.record import Record
from spbench.results.run_json import folder_of_run, read_run
from spbench.results.store import Store

BASELINES = Path("baselines")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def folder_of(name: str, root: Path = BASELINES) -> Path:
    """Where a baseline is, or would be. Raises ResultsError for what is no name."""
    if not NAME.fullmatch(name):
        raise ResultsError(
            f"{name!r} is no name for a baseline; use letters, digits, '.', '_' and '-'"
        )
    return root / name


def names(root: Path = BASELINES) -> list[str]:
    found = (path.parent.name for path in root.glob("*/runs.csv"))
    return sorted(name for name in found if NAME.fullmatch(name))


def keep(name: str, run: Path, records: Sequence[Record], root: Path = BASELINES) -> Path:
    """Writes ``records`` of ``run`` as the baseline of that name, in place of an earlier one.

    The new one is written beside the old one, which moves aside and goes last; of two writers at
    once the later raises OSError.
    """
    named = folder_of(name, root)
    folder = named.resolve()  # a link stays one
    own = folder.parent / f".{folder.name}.{secrets.token_hex(4)}"
    beside, aside = own.with_suffix(".new"), own.with_suffix(".old")
    try:
        with Store(beside) as store:
            facts = read_run(folder_of_run(run))
            keys = {record.case for record in records}
            facts["cases"] = [one for one in facts.get("cases", []) if one.get("key") in keys]
            store.write_run(facts)
            store.copy(records)
        (beside / LOCK).unlink(missing_ok=True)
        if folder.exists():
            folder.rename(aside)
        try:
            beside.rename(folder)
        except OSError:
            if aside.exists() and not folder.exists():
                aside.rename(folder)
            raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    shutil.rmtree(aside, ignore_errors=True)
    return named
