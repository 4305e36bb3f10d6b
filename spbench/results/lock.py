"""One writer at a time: the lock of a results directory, where the file system has locks."""

from __future__ import annotations

import errno
import warnings
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from spbench.errors import CannotWriteError

LOCK = ".lock"
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def taken(folder: Path) -> BaseFileLock:
    """The lock of ``folder``, held. Raises CannotWriteError if another run has it, or no run can.

    Without locks in the file system, filelock may use the presence of a file as a lock. Such a
    file outlives a killed run, so it is not used.
    """
    lock = FileLock(folder / LOCK)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lock.acquire(timeout=0)
    except Timeout:
        raise CannotWriteError(
            f"{folder} is being written by another run; wait for it, or use another --out"
        ) from None
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
