"""The rules of the house that a program can hold: labels, docstrings, floors, no circles."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import spbench
from spbench.strategies.registry import BUILT_IN

PACKAGE = Path(spbench.__file__).parent
ROOT = PACKAGE.parent
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
DANGLING = re.compile(r"(Of|That|The same|Whether its)\b")
"""How a docstring begins that cannot stand alone."""


def docstrings(path: Path) -> list[tuple[int, str]]:
    """Line and text of each docstring of a file: also those below fields and constants."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Expr)]
    return [
        (node.lineno, node.value.value)
        for node in nodes
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]


def test_no_file_name_in_two_rooms() -> None:
    """Each label leads to one drawer."""
    stems = Counter(path.stem for path in FILES)
    assert [stem for stem, times in stems.items() if times > 1] == []


def test_every_docstring_stands_alone() -> None:
    """None begins as if the name above it were the first half of its sentence."""
    dangling = [
        f"{path.relative_to(ROOT)}:{line}: {text[:60]}"
        for path in FILES
        for line, text in docstrings(path)
        if DANGLING.match(text)
    ]
    assert dangling == []


def contracts_with(folder: Path, planted: dict[str, str]) -> str:
    """What import-linter says of a copy of the package to which lines were added by file."""
    ignore = shutil.ignore_patterns("__pycache__", "configs")
    shutil.copytree(PACKAGE, folder / "spbench", ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name, line in planted.items():
        path = folder / "spbench" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{path.read_text() if path.exists() else ''}\n{line}\n")
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("planted", "broken"),
    [
        ({"workload/flops.py": "import spbench.results.record"}, "floors: imports only point down"),
        ({"garage/__init__.py": "", "garage/car.py": ""}, "floors: imports only point down"),
        (
            {"text.py": "", "report/units.py": "import spbench.report.tables"},
            "no circles inside a room",
        ),
        (
            {"model/positions.py": "from spbench.strategies.ulysses import Ulysses"},
            "no file imports a strategy: the registry loads each by its name",
        ),
        (
            {"strategies/usp.py": "import spbench.strategies.ring"},
            "no file imports a strategy: the registry loads each by its name",
        ),
        (
            {"model/positions.py": "from spbench.strategies.registry import load"},
            "the model names no strategy: it knows the base of all alone",
        ),
    ],
    ids=[
        "an import that points up",
        "a room on no floor",
        "a circle inside a room",
        "a model that imports a strategy",
        "a strategy that imports another",
        "a model that loads a strategy by its name",
    ],
)
def test_planted_violations_are_found(tmp_path: Path, planted: dict[str, str], broken: str) -> None:
    """import-linter knows every room and every strategy, and follows imports inside each room."""
    said = contracts_with(tmp_path, planted)
    assert f"{broken} BROKEN" in said, said


def test_contracts_protect_every_strategy() -> None:
    """A strategy that is registered is protected from imports without anybody's thinking of it."""
    linted = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (protected,) = (rule for rule in linted["contracts"] if rule["type"] == "protected")
    modules = {where.partition(":")[0] for where in BUILT_IN.values()}
    assert {*protected["protected_modules"]} == modules
