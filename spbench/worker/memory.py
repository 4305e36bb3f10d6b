"""The memory of one step, in a pass of its own, never under the clock.

On CUDA the caching allocator's peaks, and the whole device's use by NVML (the only one that
includes NCCL's buffers). On CPU the peak of live storages: every storage that an operation
returns is counted when it appears and discounted when it dies, rounded up to 512 bytes as
the CUDA allocator would.
"""

import ctypes
import math
import weakref
from collections.abc import Callable, Iterable
from typing import Any, final

import psutil
import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from spbench.comm.compiler import graphs_run
from spbench.errors import or_none
from spbench.layers.dispatch_modes import WatchingMode

ROUND_BYTES = 512
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Parameters of glibc's mallopt, as its malloc.h numbers them."""


def keep_freed_memory() -> None:
    """Lets this process keep what a step frees for the next step, as CUDA's allocator does.

    By default glibc gives much of it back to the kernel, and the next step takes thousands of new
    pages, each with a fault. Large storages would have maps of their own, which go back however
    high a limit is set: there are none. C libraries without mallopt are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def rounded(size: int) -> int:
    """Bytes as the CUDA allocator gives them out."""
    return math.ceil(size / ROUND_BYTES) * ROUND_BYTES


def held_bytes(x: Tensor) -> int:
    """Bytes of the elements of a tensor; of a dim that is expanded, once."""
    # Stride 0 says that a dim repeats one place: (8, 1000) expanded from (1, 1000) has 1000.
    lengths = (n for n, stride in zip(x.shape, x.stride(), strict=True) if stride)
    return math.prod(lengths) * x.element_size()


@final
class LiveStorages(WatchingMode):
    """Counts the bytes of storages that are alive, and keeps their peak."""

    def __init__(self, already_there: Iterable[Tensor], resized: Iterable[Tensor] = ()) -> None:
        """``resized``: those whose memory comes and goes without an operation."""
        super().__init__()
        self.live_bytes = self.peak_bytes = 0
        self._resized = {x.untyped_storage(): 0 for x in resized}
        self._counted = {storage._cdata for storage in self._resized}
        for tensor in already_there:
            self._see(tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._look_at_resized()
        out = self.call(func, args, kwargs)
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._see(leaf)
        return out

    def _look_at_resized(self) -> None:
        for storage, before in self._resized.items():
            size = rounded(storage.nbytes())
            if size != before:
                self._resized[storage] = size
                self.live_bytes += size - before
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _see(self, tensor: Tensor) -> None:
        if is_traceable_wrapper_subclass(tensor):  # an asynchronous result: itself it holds nothing
            for name in tensor.__tensor_flatten__()[0]:
                self._see(getattr(tensor, name))
            return
        storage = tensor.untyped_storage()
        key = storage._cdata  # the address: views and aliases have the same one
        if key in self._counted:
            return
        size = rounded(storage.nbytes())
        self._counted.add(key)
        # Python tells when the last tensor of a storage is gone: no operation does.
        weakref.finalize(storage, self._forget, key, size)
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _forget(self, key: int, size: int) -> None:
        self._counted.discard(key)
        self.live_bytes -= size


NO_HOST_MEMORY = "can't allocate memory"
"""Words of torch's allocator on the host."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device, a library on it or the host had no memory left. What torch raises then is
    a RuntimeError: in another error the words may be those of a path."""
    words = ("out of memory", "ALLOC_FAILED", NO_HOST_MEMORY)
    is_known = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    is_torchs = isinstance(error, RuntimeError)
    return is_known or (is_torchs and any(word in str(error) for word in words))


def is_out_of_host_memory(error: BaseException) -> bool:
    """Whether it was the host that had none left."""
    of_torch = isinstance(error, RuntimeError) and NO_HOST_MEMORY in str(error)
    return isinstance(error, MemoryError) or of_torch


def measure(
    step: Callable[[], object],
    already_there: Iterable[Tensor],
    device: torch.device,
    resized: Iterable[Tensor] = (),
) -> dict[str, int]:
    """Runs ``step`` once; its peaks, as the fields of Sample call them: what the device tells. On a
    CPU nothing tells what compiled code allocates. ``already_there``: weights and inputs, allocated
    before the step; ``resized``: what else is, whose memory comes and goes by itself."""
    if device.type != "cuda":
        with graphs_run() as compiled, LiveStorages(already_there, resized) as tracker:
            step()
        # A compiled graph allocates without torch's dispatch: what was counted would be too little.
        peaks = {} if compiled.graphs else {"peak_allocated_bytes": tracker.peak_bytes}
    else:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        torch.cuda.synchronize(device)
        free, total = torch.cuda.mem_get_info(device)
        peaks = {
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(device),
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(device),
            "device_used_bytes": total - free,
        }
    return peaks | {"host_rss_bytes": psutil.Process().memory_info().rss}


def alloc_retries(device: torch.device) -> int | None:
    """How often the allocator has emptied its cache and tried again; None on a CPU."""
    if device.type != "cuda":
        return None
    return or_none(lambda: int(torch.cuda.memory_stats(device)["num_alloc_retries"]))
