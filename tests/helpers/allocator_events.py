"""What torch's CPU allocator gives out and takes back, by its own events.

Private parts of torch: the types of a profiler's events, and a flag of its C++ library.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile


def count_on_every_thread() -> None:
    """From now on the allocator counts what it gives out and takes back, whoever asks.

    Else it counts on threads that a profiler watches alone. Gloo's own thread may be the last to
    let go of a tensor: its bytes would never be taken off.
    """
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    ctypes.c_bool.in_dll(library, "FLAGS_caffe2_report_cpu_memory_usage").value = True


def allocations(run: Callable[[], object]) -> list[Any]:
    """Events of this thread in order, with ``alloc_size``, below 0 for what is taken back, and
    ``total_allocated``, of all threads."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run()
    events = list(seen.profiler.kineto_results.experimental_event_tree())
    for event in events:
        events += event.children
    found = [each for each in events if each.tag == _EventType.Allocation]
    return [each.extra_fields for each in sorted(found, key=lambda each: each.start_time_ns)]


def growth(run: Callable[[], object]) -> int:
    """Most bytes that are given out at once beyond those before."""
    first, *_ = events = allocations(run)
    return max(each.total_allocated for each in events) - first.total_allocated + first.alloc_size
