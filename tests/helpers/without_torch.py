"""Processes in which torch cannot be imported, and that run one command line after another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from helpers.in_process import inside

HELPERS = Path(__file__).parent
FORBIDDEN, MISSING = HELPERS / "torch_is_forbidden", HELPERS / "torch_is_missing"
"""Places to look for modules first, whose torch is not to be imported, or not there."""


def answer(
    trap: Path, root: Path, folder: Path, words: tuple[str, ...], environ: dict[str, str]
) -> dict[str, Any]:
    """Exit code, output and processor seconds of ``spbench WORDS``, called in ``folder``."""
    server = _server(trap, root)
    assert server.stdin is not None and server.stdout is not None
    known = os.environ | {"PYTHONPATH": _paths(trap, root)}
    request = {"folder": str(folder), "words": words, "environ": known | environ}
    server.stdin.write(f"{json.dumps(request)}\n")
    server.stdin.flush()
    line = server.stdout.readline()
    assert line, f"the process has ended: {server.poll()}"
    found: dict[str, Any] = json.loads(line)
    return found


@cache
def _server(trap: Path, root: Path) -> subprocess.Popen[str]:
    """One for all tests of this process; it ends with its input, and so with this process."""
    return subprocess.Popen(
        [sys.executable, "-m", "helpers.without_torch"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": _paths(trap, root, HELPERS.parent)},
    )


def _paths(*places: Path) -> str:
    return os.pathsep.join(map(str, places))


def main() -> None:
    answers = sys.stdout
    for line in sys.stdin:
        request = json.loads(line)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environ"])
        before_s = time.process_time()
        said = inside(*request["words"])
        found = asdict(said) | {"cpu_s": time.process_time() - before_s}
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
