"""One writer at a time: the lock of a results directory, where the file system has locks."""

import errno
import warnings
from contextlib import nullcontext
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from spbench.errors import CannotWriteError

LOCK = ".lock"
LOOK_S = 0.3
"""Longer than ``is_held`` has a lock while it looks."""
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def is_held(folder: Path) -> bool:
    """Whether a run writes to ``folder`` now."""
    try:
        with FileLock(folder / LOCK, timeout=0) if (folder / LOCK).exists() else nullcontext():
            return False
    except (NotImplementedError, OSError) as error:
        return isinstance(error, Timeout)


def check_free(folder: Path) -> None:
    """Raises CannotWriteError if another run writes to ``folder`` now."""
    if is_held(folder):
        raise _busy(folder)


def _busy(folder: Path) -> CannotWriteError:
    return CannotWriteError(
        f"{folder} is being written by another run; wait for it, or use another --out"
    )


def taken(folder: Path) -> BaseFileLock:
    """The lock of ``folder``, held. Raises CannotWriteError if another run has it, or no run can.

    Without locks in the file system, filelock may use the presence of a file as a lock. Such a
    file outlives a killed run, so it is not used.
    """
    lock = FileLock(folder / LOCK)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lock.acquire(timeout=LOOK_S, poll_interval=LOOK_S / 10)
    except Timeout:
        raise _busy(folder) from None
    except (NotImplementedError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in NO_LOCKS:
            raise CannotWriteError(f"cannot write to {folder}: {error.strerror}") from None
    if lock.is_locked and not isinstance(lock, SoftFileLock):
        return lock
    lock.release()
    raise CannotWriteError(
        f"the file system of {folder} has no locks, so two runs could write there at once; "
        f"use another --out, on a local disk"
    )
