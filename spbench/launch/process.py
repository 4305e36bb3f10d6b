"""The launcher process of this machine, from outside: started when needed, ended with its ranks."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, final

from spbench.launch.shutdown import GRACE_S, end_tree


@final
class AgentProcess:
    """``python -m spbench.launch.agent``, in a session of its own, writing into ``log``."""

    def __init__(
        self,
        log: Path,
        environment: Mapping[str, str | None],
        words: Sequence[str] = (),
    ) -> None:
        """``words``: arguments of the launcher."""
        self.log = log
        self._environment = environment
        self._words = ["-m", "spbench.launch.agent", str(os.getpid()), *words]
        self._file: IO[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def exitcode(self) -> int | None:
        """None while it runs, or has not been started."""
        return None if self._process is None else self._process.poll()

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """If it does not run."""
        if self.runs:
            return
        self.end(now=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.log.open("ab")
        variables = {**os.environ, "PYTHONUNBUFFERED": "1", **self._environment}
        self._process = subprocess.Popen(
            [sys.executable, *self._words],
            stdin=subprocess.PIPE,
            stdout=self._file,
            stderr=self._file,
            start_new_session=True,
            env={name: value for name, value in variables.items() if value is not None},
        )

    def say(self, line: str) -> None:
        """A line on its input. If it died just now, nothing: whoever waits for it will see that."""
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()

    def wait(self) -> int:
        """Until it ends by itself; its exit code."""
        assert self._process is not None
        return self._process.wait()

    def end(self, *, now: bool) -> None:
        """``now``: whatever it does. Else it may first come to its own end."""
        if self._process is not None:
            if not now and self._process.stdin is not None:
                with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                    self._process.stdin.close()  # the end of its input is its end
                    self._process.wait(GRACE_S)
            end_tree(self._process)
            self._process = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def last_words(self) -> str:
        """The last line of its log."""
        with contextlib.suppress(OSError):
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
            return next((line for line in reversed(lines) if line.strip()), "it said nothing")
        return "it said nothing"
