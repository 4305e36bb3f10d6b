"""Whoever reads a strategy opens few files: what it imports, and what that imports, is bounded."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import spbench
from spbench.strategies.registry import BUILT_IN

PACKAGE = Path(spbench.__file__).parent
ROOMS = ("strategies", "layers")
MOST = {"spbench.strategies.dsp": 13}
"""Files of both rooms, the strategy's own among them; for all others 10."""


def imported(module: str) -> set[str]:
    """The modules of both rooms that a module imports, at its top or for its types."""
    tree = ast.parse((PACKAGE.parent / f"{module.replace('.', '/')}.py").read_text())
    lazy = {id(x) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for x in ast.walk(f)}
    names = {f"spbench.{room}.{x.stem}" for room in ROOMS for x in (PACKAGE / room).glob("*.py")}
    found: set[str] = set()
    for node in (x for x in ast.walk(tree) if id(x) not in lazy):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & names


def closure(module: str) -> set[str]:
    """The module and all that it imports, directly or not."""
    reached, ahead = {module}, [module]
    while ahead:
        new = imported(ahead.pop()) - reached
        reached |= new
        ahead += new
    return reached


@pytest.mark.parametrize("module", sorted({x.partition(":")[0] for x in BUILT_IN.values()}))
def test_a_strategy_is_read_in_few_files(module: str) -> None:
    """At most 10, DSP's at most 13."""
    files = closure(module)
    assert len(files) <= MOST.get(module, 10), sorted(files)
