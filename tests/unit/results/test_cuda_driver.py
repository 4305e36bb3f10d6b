"""GPUs that CUDA's driver alone shows: in a container without NVML, or slices of one."""

from __future__ import annotations

import ctypes
import json
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from spbench.results import cuda_driver
from spbench.results.cuda_driver import cuda_gpus, read_cuda


def libcuda(names: list[bytes], code: int = 0) -> SimpleNamespace:
    """A driver library that shows so many GPUs, of 10 GiB each; ``code``: of its opening."""

    def put(pointer: Any, value: int) -> int:
        pointer._obj.value = value
        return 0

    def put_name(buffer: Any, _: int, device: ctypes.c_int) -> int:
        buffer.value = names[device.value]
        return 0

    def attribute(pointer: Any, which: int, _: ctypes.c_int) -> int:
        return put(pointer, {75: 9, 76: 0}[which])

    return SimpleNamespace(
        cuInit=lambda _: code,
        cuDeviceGetCount=lambda pointer: put(pointer, len(names)),
        cuDeviceGet=put,
        cuDeviceGetName=put_name,
        cuDeviceTotalMem_v2=lambda pointer, _: put(pointer, 10 * 2**30),
        cuDeviceGetAttribute=attribute,
    )


def test_what_cuda_shows() -> None:
    """Name, memory and compute capability of each; nothing where CUDA does not open."""
    sliced = b"NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    known = read_cuda(libcuda([sliced, b"NVIDIA H200"]))
    assert [gpu["name"] for gpu in known] == [sliced.decode(), "NVIDIA H200"]
    assert known[0] == {
        "name": sliced.decode(),
        "memory_bytes": 10 * 2**30,
        "compute_capability": [9, 0],
    }
    assert read_cuda(libcuda([b"NVIDIA H200"], code=100)) == []
    assert read_cuda(libcuda([])) == []


def test_a_machine_without_the_library_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is started to ask it."""
    monkeypatch.setattr(cuda_driver, "LIBRARY", "libcuda-that-is-nowhere.so.1")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("asked in vain"))
    cuda_driver._asked.cache_clear()
    assert cuda_gpus() == []


@pytest.mark.parametrize("printed", [b"", b"a driver greets"])
def test_a_driver_that_breaks_off_shows_none(
    monkeypatch: pytest.MonkeyPatch, printed: bytes
) -> None:
    """A process that ends early, or prints something else, tells of no GPU."""
    monkeypatch.setattr(ctypes, "CDLL", lambda _: libcuda([]))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=printed))
    cuda_driver._asked.cache_clear()
    assert cuda_gpus() == []
    cuda_driver._asked.cache_clear()


def test_each_value_of_the_variable_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA applies CUDA_VISIBLE_DEVICES itself, so that another value is another question."""
    asked: list[list[str]] = []

    def run(words: list[str], **_: object) -> SimpleNamespace:
        asked.append(words)
        shown = [{"name": "H200", "compute_capability": [9, 0]}] * len(asked)
        return SimpleNamespace(stdout=json.dumps(shown).encode())

    monkeypatch.setattr(ctypes, "CDLL", lambda _: libcuda([]))
    monkeypatch.setattr(subprocess, "run", run)
    cuda_driver._asked.cache_clear()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1")
    assert [len(cuda_gpus()), len(cuda_gpus())] == [1, 1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-2")
    assert [gpu["compute_capability"] for gpu in cuda_gpus()] == [(9, 0)] * 2
    assert asked[0][-1] == cuda_driver.__file__
    cuda_driver._asked.cache_clear()
