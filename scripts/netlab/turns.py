"""Short turns for nodes that share a core.

A kernel with 250 ticks a second leaves a core with one of several busy processes for 4 ms, so that
a message to another of them waits for many times what a link takes. Here a process of ours wakes
up on each core every so often and sleeps again at once. The kernel then picks anew, and takes the
one that has waited longest, since the nodes ask for slices that are over by then. A node of three
on a core is as a machine with a third of its speed, and not as one that sleeps for 8 ms at a time.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import subprocess
import sys
import time

from system import UNFIT, Failure

SET, GET = (314, 315) if platform.machine() == "x86_64" else (274, 275)
"""Numbers of the calls sched_setattr and sched_getattr, which Python does not have."""
ATTRIBUTES = struct.Struct("IIQiIQQQ")
"""size, policy, flags, nice, priority; runtime, here the slice, deadline and period in ns."""
SLICE_NS = 100_000
"""The kernel's shortest: over by the next beat."""


class Turns:
    """A beat on each core that this process may use, until ``end``; and short slices for it and
    for all that it starts from now on. Raises Failure where the kernel gives none."""

    def __init__(self, turn_ms: float) -> None:
        asked = ATTRIBUTES.pack(ATTRIBUTES.size, os.SCHED_OTHER, 0, 0, 0, SLICE_NS, 0, 0)
        ctypes.CDLL(None).syscall(SET, 0, asked, 0)
        if slice_ns() != SLICE_NS:
            raise Failure("--turn needs slices of a process's own: Linux 6.12 has them.", UNFIT)
        self._beats = [
            subprocess.Popen([sys.executable, __file__, str(core), str(turn_ms / 1e3)])
            for core in os.sched_getaffinity(0)
        ]

    def end(self) -> None:
        for beat in self._beats:
            beat.kill()
            beat.wait()


def slice_ns() -> int:
    """This process's own slice; 0 on an older kernel."""
    got = ctypes.create_string_buffer(ATTRIBUTES.size)
    ctypes.CDLL(None).syscall(GET, 0, got, ATTRIBUTES.size, 0)
    return int(ATTRIBUTES.unpack(got.raw)[5])


def beat(core: int, seconds: float) -> None:
    """Interrupts the others on that core until the parent has ended."""
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(seconds)


if __name__ == "__main__":
    beat(int(sys.argv[1]), float(sys.argv[2]))
