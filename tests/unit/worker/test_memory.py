"""The tracker of live storages against allocations that are known."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest
import torch

from spbench.worker.memory import LiveStorages, measure

MIB = 2**20


def test_peak_of_known_allocations() -> None:
    """Two of three megabytes live at once, then one: the peak is two."""
    with LiveStorages([]) as tracker:
        first = torch.empty(MIB, dtype=torch.uint8)
        second = torch.empty(MIB, dtype=torch.uint8)
        del first
        third = torch.empty(MIB, dtype=torch.uint8)
        del second, third
    assert tracker.peak_bytes == 2 * MIB
    assert tracker.live_bytes == 0


def test_views_share_a_storage() -> None:
    """A view allocates nothing; small storages are rounded up to 512 bytes."""
    with LiveStorages([]) as tracker:
        x = torch.empty(100, dtype=torch.uint8)
        views = [x[:50], x.view(10, 10), x.t()]
    assert len(views) == 3
    assert tracker.peak_bytes == 512


def test_backward_is_seen() -> None:
    """Gradients, what autograd keeps, and tensors from before the step all count."""
    weight = torch.nn.Parameter(torch.ones(256, 256))
    x = torch.ones(256, 256)
    size = 256 * 256 * 4

    def step() -> None:
        weight.grad = None
        (x @ weight).relu().sum().backward()

    peaks = measure(step, [weight, x], torch.device("cpu"))
    assert 4 * size < peaks["peak_allocated_bytes"] < 7 * size
    assert peaks.keys() == {"peak_allocated_bytes", "host_rss_bytes"}
    assert peaks["host_rss_bytes"] > 0


PAGES_OF_LATER_STEPS = """
import ctypes
import resource
import sys

from spbench.worker.memory import keep_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
if sys.argv[1] == "keep":
    keep_freed_memory()


def step(size=40 * 2**20):
    held = [libc.malloc(size) for _ in range(3)]
    for each in held:
        libc.memset(each, 1, size)
        libc.free(each)


def pages():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


step()
step()
before = pages()
step()
print(pages() - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="a C library without mallopt")
def test_memory_that_is_kept_needs_no_new_pages() -> None:
    """A step of 120 MiB, 30,720 pages: glibc gives them back and takes new ones, unless told."""
    taken = {
        how: int(subprocess.check_output([sys.executable, "-c", PAGES_OF_LATER_STEPS, how]))
        for how in ("default", "keep")
    }
    assert taken["keep"] < 1000 < taken["default"], taken
