"""The parent's side: one launcher process on this machine, watched through files.

The parent trusts files and exit codes, and reads no pipe. The launcher lives in a session of
its own, so a Ctrl-C reaches the parent alone, which ends the rest in order: SIGTERM, a grace
period, then SIGKILL to every process of the tree as it was before.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol, final

import psutil
from pydantic import BaseModel

from spbench.results.sample import Sample, sample_path
from spbench.workload.job import Job

POLL_S = 0.02
GRACE_S = 5.0


class Ended(BaseModel):
    """How a launch ended, apart from what its ranks wrote."""

    ok: bool
    rank: int | None = None
    exitcode: int | None = None
    timed_out: bool = False
    group_lost: bool = False
    """An earlier job broke the process group that this one would have needed."""


class Launcher(Protocol):
    """Starts the ranks of one job after another."""

    def announce(self, jobs: Sequence[Job]) -> None:
        """Which jobs will be run, in this order, before the first of them."""

    def run(self, job: Job, folder: Path) -> Ended:
        """Returns when every rank has ended; their files are then in ``folder``."""

    def close(self) -> None:
        """Ends whatever is still running."""


@final
class LocalLauncher:
    """Ranks on this machine, through torch elastic in a process beside this one.

    ``environment``: variables that it and its ranks have, or with None do not have, while this
    process may think otherwise.
    """

    def __init__(self, log: Path, environment: Mapping[str, str | None] | None = None) -> None:
        self._log_path = log
        self._environment = environment or {}
        self._log: IO[bytes] | None = None
        self._agent: subprocess.Popen[bytes] | None = None
        self._idle = True

    def announce(self, jobs: Sequence[Job]) -> None:
        """Nothing to prepare."""

    def run(self, job: Job, folder: Path) -> Ended:
        job.write(folder)
        for stale in (folder / "exit.json", *(sample_path(folder, r) for r in range(job.ranks))):
            stale.unlink(missing_ok=True)
        agent = self._running_agent()
        assert agent.stdin is not None
        agent.stdin.write(f"{folder.resolve()}\n".encode())
        agent.stdin.flush()
        self._idle = False
        ended = self._watch(agent, folder / "exit.json", job.timeout_s)
        self._idle = True
        return ended

    def close(self) -> None:
        if self._agent is not None:
            if self._idle and self._agent.stdin is not None:
                with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                    self._agent.stdin.close()  # the end of its input is its end
                    self._agent.wait(GRACE_S)
            end_tree(self._agent)
            self._agent = None
        if self._log is not None:
            self._log.close()
            self._log = None

    def _running_agent(self) -> subprocess.Popen[bytes]:
        if self._agent is not None and self._agent.poll() is not None:
            self.close()  # it died between two jobs
        if self._agent is None:
            self._log_path.parent.mkdir(parents=True, exist_ok=True)
            self._log = self._log_path.open("ab")
            self._agent = subprocess.Popen(
                [sys.executable, "-m", "spbench.launch.agent"],
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
                env=self._variables(),
            )
        return self._agent

    def _variables(self) -> dict[str, str]:
        wanted = {**os.environ, "PYTHONUNBUFFERED": "1", **self._environment}
        return {name: value for name, value in wanted.items() if value is not None}

    def _watch(self, agent: subprocess.Popen[bytes], ended: Path, timeout_s: float) -> Ended:
        deadline = time.monotonic() + timeout_s
        while not ended.exists():
            if agent.poll() is not None:
                self.close()
                return Ended(ok=False, exitcode=agent.returncode)
            if time.monotonic() > deadline:
                self.close()
                return Ended(ok=False, timed_out=True)
            time.sleep(POLL_S)
        return Ended.model_validate(json.loads(ended.read_text(encoding="utf-8")))


def end_tree(process: subprocess.Popen[bytes], grace_s: float = GRACE_S) -> None:
    """Ends a process and all that it started, and waits until they are gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        tree = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
        process.kill()
        for child in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(tree, timeout=grace_s)
    process.wait()


def read_samples(job: Job, folder: Path) -> list[Sample]:
    """What the ranks wrote; a missing or unreadable file is left out."""
    samples = []
    for rank in range(job.processes):
        with contextlib.suppress(OSError, ValueError):
            text = sample_path(folder, rank).read_text(encoding="utf-8")
            samples.append(Sample.model_validate_json(text))
    return samples
