"""run.json: the command of a run, its cases and its machine; a resumed run adds to it.

The file may be damaged, or be JSON of another shape. What a resumed run cannot use is dropped, so
that reading never raises and all that is left can be used.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from spbench.workload.case import Case, MeasurementBudget

BESIDE = ("key", "why_not")
"""What an entry of ``cases`` has besides the fields of its case."""
DEEPEST = 20
"""Levels of brackets: run.json has fewer, and far more could not be written again."""
NESTED = (dict, list)
"""Types of JSON's values that hold others."""
FULL = MeasurementBudget().model_dump(mode="json")


def folder_of_run(run: Path) -> Path:
    """Folder of a run that is named by its folder or its runs.csv. Another file is its own folder:
    what lies beside it belongs to another run."""
    return run.parent if run.name == "runs.csv" else run


def read_run(folder: Path) -> dict[str, Any]:
    """The facts of a run, or nothing where the file is missing or damaged.

    ``cases`` are objects with at least their key and launch, ``history`` is a list of command
    lines, ``argv`` one of them, and ``reference`` a name; each may be missing.
    """
    file = folder / "run.json"
    try:
        stat = file.stat()
        version = stat.st_ino, stat.st_size, stat.st_mtime_ns
        return dict(_facts_of(file.resolve(), version))
    except (OSError, ValueError, RecursionError):
        return {}


def is_damaged(folder: Path) -> bool:
    """Whether there is a run.json of which something cannot be used."""
    try:
        facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except OSError:
        return False
    except (ValueError, RecursionError):
        return True
    return bool(facts != read_run(folder))


@lru_cache(maxsize=1)
def _facts_of(file: Path, _version: tuple[int, int, int]) -> dict[str, Any]:
    """The facts in a file, which a command asks for several times and reads once.

    ``_version`` differs after each writing, since a run replaces the file: inode, size and time.
    """
    facts = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(facts, dict):
        return {}
    return {name: _sound(name, value) for name, value in facts.items() if _fits(name, value)}


def had_changes(facts: Mapping[str, Any]) -> bool:
    """Whether the work tree of a run differed from its commit."""
    git = facts.get("git")
    return isinstance(git, dict) and bool(git.get("dirty"))


def case_of(entry: Mapping[str, Any]) -> Case:
    """The case of an entry of ``cases``. Raises ValueError for what this version cannot run."""
    return Case.model_validate({name: entry[name] for name in entry if name not in BESIDE})


def merged_cases(
    earlier: Sequence[dict[str, Any]], later: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Each launch once, as it was asked for last; a full one does not become a quick one."""
    merged = {(case["key"], case["launch"]): case for case in earlier}
    for case in later:
        before = merged.get((case["key"], case["launch"]), {})
        if before.get("effort") != FULL or case.get("effort") == FULL:
            merged[case["key"], case["launch"]] = case
    return list(merged.values())


def _fits(name: str, value: Any) -> bool:
    if name in ("cases", "history"):
        return isinstance(value, list)
    if name == "argv":
        return _is_command(value)
    if name == "reference":
        return value is None or isinstance(value, str)
    return _is_shallow(value, DEEPEST)


def _sound(name: str, value: Any) -> Any:
    """The value without entries that are not cases or commands."""
    if name == "cases":
        is_shallow = _is_shallow(value, 1 + DEEPEST)  # mostly all are, which is looked at once
        return [
            case for case in value if _is_case(case) and (is_shallow or _is_shallow(case, DEEPEST))
        ]
    return [command for command in value if _is_command(command)] if name == "history" else value


def _is_shallow(value: Any, levels: int) -> bool:
    """Whether brackets lie in brackets at most so many levels deep; a level at a time, since a call
    for each bracket would take a tenth of ``compare`` on 10,000 rows."""
    level = [value] if type(value) in NESTED else []
    for _ in range(levels):
        within = (outer.values() if type(outer) is dict else outer for outer in level)
        level = [inner for values in within for inner in values if type(inner) in NESTED]
    return not level


def _is_case(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("key"), str)
        and type(value.get("launch")) is int
    )


def _is_command(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)
