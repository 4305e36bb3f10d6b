"""Memory that attention on a CPU takes inside its kernel, beside what it is given and returns.

Torch's flash attention goes through scores in blocks of queries and keys, which it has room for
once, in float32 at least; numbers of 16 bits are rounded in a second room. Each thread has its own
rooms; ranks that share a machine's cores have few, and one is counted. Backward copies a gradient
that does not lie in memory as (b, S, Z, D). Blocks and rooms are those of torch's source,
aten/src/ATen/native/cpu/FlashAttentionKernel.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from spbench.projection.dataless import CPU_FLASH

KEY_BLOCK = 512
QUERY_BLOCKS = ((768, 256), (192, 64), (0, 32))
"""Queries from which on, and how many of them make a block."""


def workspace_bytes(name: str, args: Sequence[Any], _: Sequence[Tensor]) -> int:
    """Bytes for a moment of an operation of this name; 0 of one that needs none."""
    if name == CPU_FLASH:
        return _forward(*args[:2])
    if name == f"{CPU_FLASH}_backward":
        return _backward(*args[:3])
    return 0


def _forward(q: Tensor, k: Tensor) -> int:
    """Scores, their largest and their sum of each row, and the rows' results."""
    rows, columns = _block(q, k)
    wide = rows * (columns + 2 + q.shape[-1]) * max(4, q.element_size())
    return wide + _rounded(q, rows * columns)


def _backward(grad: Tensor, q: Tensor, k: Tensor) -> int:
    """Scores and their gradients, and a sum of each row."""
    rows, columns = _block(q, k)
    wide = rows * (2 * columns + 1) * max(4, q.element_size())
    copied = 0 if grad.transpose(1, 2).is_contiguous() else grad.nbytes
    return copied + wide + _rounded(q, 2 * rows * columns)


def _block(q: Tensor, k: Tensor) -> tuple[int, int]:
    queries, keys = q.shape[2], k.shape[2]
    rows = next(size for least, size in QUERY_BLOCKS if queries >= least)
    return min(rows, queries), min(KEY_BLOCK, keys)


def _rounded(q: Tensor, numbers: int) -> int:
    """Bytes of numbers of 16 bits, where q has such."""
    return numbers * q.element_size() if q.element_size() < 4 else 0
