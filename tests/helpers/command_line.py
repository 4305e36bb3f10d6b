"""``spbench WORDS`` as a user calls it: in a process without torch where that must stay away."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers.builders import a_case, a_row
from helpers.in_process import inside
from helpers.without_torch import FORBIDDEN, MISSING, answer

from spbench.cli import main as entry
from spbench.results.record import Record

ROOT = Path(entry.__file__).parents[2]
"""Where the spbench under test lies, so that commands run the same one."""
CASE = a_case()


@dataclass(frozen=True)
class Done:
    """Exit code and output of a command, and the processor time that it took."""

    code: int
    out: str
    err: str
    cpu_s: float


def spbench(
    folder: Path,
    *words: str,
    torch: bool | None = False,
    fresh: bool = False,
    stdout: int | None = None,
    **environ: str,
) -> Done:
    """Runs a command in ``folder``: with ``torch`` inside this process; with False in one where
    importing torch ends it with an error, with None as where it is not installed. A process is
    started for it alone if it is to be ``fresh``, or its streams or Python's settings are to be
    others."""
    environ = {"CUDA_VISIBLE_DEVICES": ""} | environ
    is_other = stdout is not None or any(name.startswith(("PYTHON", "LC_")) for name in environ)
    trap = MISSING if torch is None else FORBIDDEN
    if fresh or is_other:
        return _started(folder, words, [ROOT] if torch else [trap, ROOT], stdout, environ)
    if torch:
        return _inside(folder, words, {"PYTHONPATH": str(ROOT)} | environ)
    return Done(**answer(trap, ROOT, folder, words, environ))


def _started(
    folder: Path,
    words: tuple[str, ...],
    places: list[Path],
    stdout: int | None,
    environ: dict[str, str],
) -> Done:
    """Runs it in a process of its own, which looks for modules in ``places``."""
    before_s = _processor_s(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "spbench", *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, places))} | environ,
        stdout=subprocess.PIPE if stdout is None else stdout,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )
    cpu_s = _processor_s(resource.RUSAGE_CHILDREN) - before_s
    out = (done.stdout or b"").decode(errors="replace")
    return Done(done.returncode, out, done.stderr.decode(errors="replace"), cpu_s)


def record(strategy: str, **more: Any) -> Record:
    """A sound row of ``strategy``, with ``more`` columns."""
    return a_row(**{"run_id": "made-up", "case": strategy, "strategy": strategy} | more)


def _inside(folder: Path, words: tuple[str, ...], environ: dict[str, str]) -> Done:
    before_s = _processor_s(resource.RUSAGE_SELF)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, value in environ.items():
            patch.setenv(name, value)
        said = inside(*words)
    return Done(said.code, said.out, said.err, _processor_s(resource.RUSAGE_SELF) - before_s)


def _processor_s(of: int) -> float:
    used = resource.getrusage(of)
    return used.ru_utime + used.ru_stime
