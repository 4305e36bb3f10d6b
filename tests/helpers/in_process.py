"""The whole command line inside this process: as a user's call of it, and much faster."""

from __future__ import annotations

import io
import signal
import sys
from dataclasses import dataclass
from typing import TextIO

import pytest

from spbench.cli import main as entry


@dataclass(frozen=True)
class Said:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


def inside(*words: str, out: TextIO | None = None) -> Said:
    """Runs ``spbench WORDS``; stdout may be another stream, of which nothing is told."""
    stdout, stderr = out or io.StringIO(), io.StringIO()
    kept = {number: signal.getsignal(number) for number in entry.ENDINGS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", sys.unraisablehook)
        patch.setattr(sys, "argv", ["spbench", *words])
        patch.setattr(sys, "stdout", stdout)
        patch.setattr(sys, "stderr", stderr)
        try:
            with pytest.raises(SystemExit) as ended:
                entry.main()
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)
    said = stdout.getvalue() if isinstance(stdout, io.StringIO) else ""
    return Said(int(ended.value.code or 0), said, stderr.getvalue())
