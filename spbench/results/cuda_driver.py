"""The GPUs that CUDA's own driver shows, where NVML cannot say: without torch.

A container may have the driver's compute library and not NVML (NVIDIA_DRIVER_CAPABILITIES=compute),
and NVML knows a slice of a GPU (MIG) by another name. CUDA applies CUDA_VISIBLE_DEVICES itself.

It is asked in a process of its own, which runs this file as a script: one that has opened
CUDA can fork none that uses it.
"""

import ctypes
import functools
import json
import os
import subprocess
import sys
from typing import Any

LIBRARY = "libcuda.so.1"
ANSWERS_WITHIN_S = 30.0
"""CUDA takes a second to open eight GPUs, and longer where the driver has to be loaded first."""
NAME_BYTES = 128
MAJOR, MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of cuda.h."""


def cuda_gpus() -> list[dict[str, Any]]:
    """Name, memory and compute capability of each GPU, or slice of one, that CUDA would let a
    process see that is started here; none without a driver."""
    return list(_asked(os.environ.get("CUDA_VISIBLE_DEVICES")))


@functools.cache
def _asked(shown: str | None) -> tuple[dict[str, Any], ...]:  # noqa: ARG001 - CUDA reads it itself
    try:
        ctypes.CDLL(LIBRARY)  # which opens no GPU yet; most machines without NVML end here
        done = subprocess.run(
            [sys.executable, "-I", "-S", __file__],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=ANSWERS_WITHIN_S,
            check=True,
        )
        gpus = json.loads(done.stdout)
        # JSON has no tuples, and a capability is compared with (10, 0).
        return tuple(gpu | {"compute_capability": tuple(gpu["compute_capability"])} for gpu in gpus)
    except (OSError, subprocess.SubprocessError, ValueError):
        return ()


def read_cuda(library: Any) -> list[dict[str, Any]]:
    """The facts of each GPU; ``library``: libcuda. None where CUDA does not open, or sees none."""
    if library.cuInit(0) != 0:
        return []
    count = ctypes.c_int()
    library.cuDeviceGetCount(ctypes.byref(count))
    return [_facts(library, index) for index in range(count.value)]


def _facts(library: Any, index: int) -> dict[str, Any]:
    device, size = ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(NAME_BYTES)
    library.cuDeviceGet(ctypes.byref(device), index)
    library.cuDeviceGetName(name, NAME_BYTES, device)
    library.cuDeviceTotalMem_v2(ctypes.byref(size), device)
    capability = [ctypes.c_int(), ctypes.c_int()]
    for number, attribute in zip(capability, (MAJOR, MINOR), strict=True):
        library.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
    return {
        "name": name.value.decode(errors="replace"),
        "memory_bytes": size.value,
        "compute_capability": [number.value for number in capability],
    }


if __name__ == "__main__":
    print(json.dumps(read_cuda(ctypes.CDLL(LIBRARY))))
