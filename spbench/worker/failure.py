"""A failed rank's sample: the cause of its failure and the status of the row."""

from __future__ import annotations

import re
import socket
import time

import torch

from spbench.comm.group import is_broken_connection
from spbench.results.sample import RowStatus, Sample
from spbench.text import first_line
from spbench.worker.fault_injection import Fault

OUT_OF_MEMORY = re.compile(
    r"Tried to allocate ([\d.]+ \w+)|you tried to allocate (\d+) bytes", re.IGNORECASE
)
"""The size that could not be allocated, in the words of torch's CUDA and CPU allocators."""


def failure(error: BaseException, rank: int, fault: Fault | None = None) -> Sample:
    """The failure cause, as the rank that failed writes it down."""
    status = status_of(error)
    reason = f"{type(error).__name__}: {first_line(error)}"
    request = OUT_OF_MEMORY.search(str(error))
    if status in ("oom", "host_oom") and request is not None:
        size = request[1] if request[1] else f"{int(request[2]) / 2**20:,.1f} MiB"
        reason = f"out of memory when it asked for {size}"
    return Sample(
        rank=rank,
        status=status,
        reason=reason,
        host=socket.gethostname(),
        failed_at_s=time.time(),
        environment={} if fault is None else fault.environment,
    )


def status_of(error: BaseException) -> RowStatus:
    """The row's status after a rank raised ``error``."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "oom"
    text = str(error)
    if "out of memory" in text or "ALLOC_FAILED" in text:
        return "oom"
    if isinstance(error, MemoryError) or "can't allocate memory" in text:
        return "host_oom"
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        return "interrupted"
    return "comm_error" if is_broken_connection(error) else "crash"
