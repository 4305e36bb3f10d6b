"""``spbench WORDS`` as a user calls it: in a process of its own where torch must stay away."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from helpers.in_process import inside

from spbench.cli import main as entry
from spbench.results.record import Record
from spbench.workload.case import Case
from spbench.workload.catalogue import find

ROOT = Path(entry.__file__).parents[2]
"""Where the spbench under test lies, so that commands run the same one."""
TRAP = "raise ImportError('torch was imported')\n"
MISSING = "raise ModuleNotFoundError('no torch', name='torch')\n"
CASE = Case(workload=find("axes-2d", "verify"), strategy="dsp", ranks=2, device="cpu")


@dataclass(frozen=True)
class Done:
    """Exit code and output of a command, and the processor time that it took."""

    code: int
    out: str
    err: str
    cpu_s: float


def spbench(
    folder: Path, *words: str, torch: bool | None = False, stdout: int | None = None, **environ: str
) -> Done:
    """Runs a command in ``folder``: with ``torch`` inside this process, unless its streams or paths
    are to be others; with False importing torch ends it with an error, with None as where it is
    not installed."""
    if torch and stdout is None and not any(name.startswith("PYTHON") for name in environ):
        return _inside(folder, words, {"PYTHONPATH": str(ROOT)} | environ)
    trap = folder / "trap" / "torch"
    trap.mkdir(parents=True, exist_ok=True)
    (trap / "__init__.py").write_text(MISSING if torch is None else TRAP)
    paths = [str(ROOT)] if torch else [str(trap.parent), str(ROOT)]
    env = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(paths)} | environ
    before_s = _processor_s(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "spbench", *words],
        cwd=folder,
        env=env,
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
    known = {"run_id": "made-up", "started_utc": "2030-01-01T00:00:00Z", "status": "ok"}
    return replace(Record.of_case(CASE, **known), case=strategy, strategy=strategy, **more)


def _inside(folder: Path, words: tuple[str, ...], environ: dict[str, str]) -> Done:
    before_s = _processor_s(resource.RUSAGE_SELF)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, value in ({"CUDA_VISIBLE_DEVICES": ""} | environ).items():
            patch.setenv(name, value)
        said = inside(*words)
    return Done(said.code, said.out, said.err, _processor_s(resource.RUSAGE_SELF) - before_s)


def _processor_s(of: int) -> float:
    used = resource.getrusage(of)
    return used.ru_utime + used.ru_stime
