"""The launcher process of this machine, from outside: started when needed, ended with its ranks.

It lives in a session of its own, so a Ctrl-C reaches the parent alone, which ends the rest in
order. A file ``stop`` in a launch's folder ends that launch alone; it holds the seconds of grace.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import final

import psutil

import spbench
from spbench.errors import or_none
from spbench.results.temporary import sweep

GRACE_S = 5.0
"""How long a process may take to end by itself after SIGTERM."""
LAUNCHER, FORK_SERVER = "the launcher", "the fork server"
STACKS_S = 0.5
"""How long a rank may take to write its stacks; a stopped process never will."""


@final
class AgentProcess:
    """``python -m spbench.launch.agent``, which writes into ``log``."""

    def __init__(
        self,
        log: Path,
        environment: Mapping[str, str | None],
        words: Sequence[str] = (),
        grace_s: float = GRACE_S,
    ) -> None:
        """Starts nothing yet.

        Parameters
        ----------
        log:
            The file for its output.
        environment:
            Its variables beside those of this process; None takes one away.
        words:
            Its arguments: the cluster and the folder of results, where it is one node of several.
        grace_s:
            Seconds that it may take to end by itself.
        """
        self._log = log
        self._environment, self._grace_s = environment, grace_s
        self._words = ["-m", "spbench.launch.agent", str(os.getpid()), *words]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def exitcode(self) -> int | None:
        """None while it runs, or has not been started."""
        return None if self._process is None else self._process.poll()

    @property
    def runs(self) -> bool:
        return self._process is not None and self.exitcode is None

    def start(self) -> None:
        """Does nothing if it runs. Else it also removes what killed processes have left."""
        if self.runs:
            return
        self.end(now=True)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        variables = {**os.environ, "PYTHONUNBUFFERED": "1", **safe_path(), **self._environment}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self._words],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={name: value for name, value in variables.items() if value is not None},
            )
        sweep()

    def stopped(self) -> str:
        """The launcher or its fork server, if a signal has stopped it; blank if none is."""
        if self._process is None:
            return ""
        pid = self._process.pid
        if _is_stopped(pid):
            return LAUNCHER
        children = or_none(lambda: psutil.Process(pid).children()) or []
        return FORK_SERVER if any(_is_stopped(child.pid) for child in children) else ""

    def send_line(self, line: str) -> None:
        """Writes to its standard input. If it has just died, whoever waits for it will see that."""
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()

    def wait(self) -> int:
        """The exit code, when it has ended by itself."""
        assert self._process is not None
        return self._process.wait()

    def end(self, *, now: bool) -> None:
        """Ends it with all that it started; not ``now``: it may first come to its own end."""
        if self._process is None:
            return
        if not now and self._process.stdin is not None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self._process.stdin.close()  # the end of its input is its end
                self._process.wait(self._grace_s)
        _end_tree(self._process, self._grace_s)
        self._process = None

    def last_line(self) -> str:
        """The last line of its log."""
        text = or_none(lambda: self._log.read_text(encoding="utf-8", errors="replace")) or ""
        lines = [line for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else "its log is empty"


def safe_path() -> dict[str, str]:
    """Variables with which Python does not look for modules in the current folder, where a user's
    own statistics.py would hide Python's. It stays on the path if this process has it there, as
    ``python -m spbench`` does, and spbench itself or the metadata of a plug-in lies in it.
    """
    variables = {"PYTHONSAFEPATH": "1"}
    here = or_none(os.getcwd)
    if here is None or here not in sys.path:
        return variables
    # Run from a checkout, spbench itself is found by the current folder.
    is_ours = Path(spbench.__file__).parents[1] == Path(here)
    if is_ours or next(iter(distributions(path=[here])), None) is not None:
        earlier = os.environ.get("PYTHONPATH")
        variables["PYTHONPATH"] = os.pathsep.join([*([earlier] if earlier else []), here])
    return variables


def ask_to_stop(folder: Path, grace_s: float) -> None:
    """Has the launcher process end the ranks of the launch in ``folder``."""
    (folder / "stop").write_text(f"{grace_s}", encoding="ascii")


def stop_grace_s(folder: Path) -> float | None:
    """The grace of a launch that is to end; None while it may go on."""
    try:
        return float((folder / "stop").read_text(encoding="ascii") or GRACE_S)
    except FileNotFoundError:
        return None


def _end_tree(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """Ends a process and all that it started, and waits until they are gone."""
    if process.poll() is not None:
        return
    tree = family(process.pid)[1:]
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace_s)
    process.kill()
    # Python's resource tracker ends by itself when it has removed what the others left.
    commands = {child: " ".join(or_none(child.cmdline) or []) for child in tree}
    others = [child for child, command in commands.items() if "resource_tracker" not in command]
    send_signal(others, signal.SIGKILL)
    # Killed processes take a moment to go; whoever is still there, as the resource tracker, is
    # killed now.
    _, left = psutil.wait_procs(tree, timeout=grace_s)
    send_signal(left, signal.SIGKILL)
    psutil.wait_procs(left, timeout=grace_s)
    process.wait()


def _is_stopped(pid: int) -> bool:
    return or_none(lambda: psutil.Process(pid).status()) == psutil.STATUS_STOPPED


def family(pid: int) -> list[psutil.Process]:
    """A process and all that it started. Once it is dead, nothing tells what it started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def send_signal(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    """Signals the processes that still exist."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.send_signal(number)
