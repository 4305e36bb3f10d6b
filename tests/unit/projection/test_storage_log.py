"""What attention on a CPU takes inside its kernel is told byte by byte."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers.allocator_events import allocations

from spbench.projection.dryrun.meta_ops import CPU_FLASH
from spbench.projection.dryrun.storage_log import workspace_bytes


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Each thread has rooms of its own."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def without_onednn() -> Iterator[None]:
    """On a CPU that multiplies bfloat16 itself oneDNN's products have small rooms of their own."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    yield
    torch._C._set_mkldnn_enabled(before)


def taken(name: str, *given: Any) -> int:
    """Bytes that an operation of torch takes and gives back."""
    kept = []
    events = allocations(lambda: kept.append(getattr(torch.ops.aten, name)(*given)))
    return -sum(min(0, each.alloc_size) for each in events)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("queries", "keys"), [(5, 700), (64, 64), (200, 300), (800, 600)])
def test_forward_and_backward(queries: int, keys: int, dtype: torch.dtype) -> None:
    """Short and long queries, of each type; a gradient that lies as kernels want, and another."""
    q, grad = (torch.randn(2, queries, 3, 16, dtype=dtype).transpose(1, 2) for _ in range(2))
    k = torch.randn(2, keys, 3, 16, dtype=dtype).transpose(1, 2)
    flash = getattr(torch.ops.aten, CPU_FLASH)
    out, lse = flash(q, k, k)
    assert workspace_bytes(CPU_FLASH, [q, k, k]) == taken(CPU_FLASH, q, k, k)
    backward = f"{CPU_FLASH}_backward"
    for each in (grad, grad.contiguous()):
        given = each, q, k, k, out, lse
        told = workspace_bytes(backward, given)
        assert told == taken(backward, *given, 0.0, False)
