"""Baselines: runs that later ones are measured against, kept under a name.

A baseline is a folder ``baselines/NAME`` with the rows and the run.json of a run, small enough
to be committed beside the code that it judges.
"""

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
    """Folder of a baseline, whether it exists or not. Raises ResultsError for an invalid name."""
    if not NAME.fullmatch(name):
        raise ResultsError(
            f"{name!r} is not a name for a baseline; use letters, digits, '.', '_' and '-'"
        )
    return root / name


def names(root: Path = BASELINES) -> list[str]:
    folders = (path.parent.name for path in root.glob("*/runs.csv"))
    return sorted(name for name in folders if NAME.fullmatch(name))


def keep(name: str, run: Path, records: Sequence[Record], root: Path = BASELINES) -> Path:
    """Writes ``records`` of ``run`` as the baseline ``name``, in place of an earlier baseline.

    The new folder is written beside the old, which moves aside and is deleted last; if two
    processes write at once, the later raises OSError.
    """
    named = folder_of(name, root)
    folder = named.resolve()  # a link stays a link
    own = folder.parent / f".{folder.name}.{secrets.token_hex(4)}"
    beside, aside = own.with_suffix(".new"), own.with_suffix(".old")
    try:
        with Store(beside) as store:
            facts = read_run(folder_of_run(run))
            keys = {record.case for record in records}
            facts["cases"] = [case for case in facts.get("cases", []) if case.get("key") in keys]
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
