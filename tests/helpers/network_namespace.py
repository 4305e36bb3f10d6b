"""benchmarks/wire.py as a module, and the words that start a command in a network namespace."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "wire.py"
SPEC = importlib.util.spec_from_file_location("wire", PATH)
assert SPEC is not None and SPEC.loader is not None
wire = importlib.util.module_from_spec(SPEC)
sys.modules["wire"] = wire  # its dataclasses look themselves up
SPEC.loader.exec_module(wire)


def _entered() -> tuple[list[str], str]:
    """The words, or why there are none."""
    try:
        return wire.namespace_command(), ""
    except PermissionError as error:
        return [], str(error)


ENTER, REFUSED = _entered()
needs_namespace = pytest.mark.skipif(bool(REFUSED), reason=REFUSED)
