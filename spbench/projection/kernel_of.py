"""The kernel that a GPU launches for an operation: its kind, shape, operations and bytes."""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from spbench.projection.dataless import ATTENTION, BACKWARD, EFFICIENT
from spbench.projection.work import BIASED, Kernel
from spbench.worker.memory import held_bytes

GEMMS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "mv": 0, "addmv": 1}
"""Products by name, and the place of their left factor."""
NOTHING = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided")
"""Operations that launch nothing."""
LINE_BYTES, LINES = 64, 64
"""A line of a CPU's first cache, and how many of them one way of it has: 4 KiB."""
PACKED = 16
"""Head sizes from which on a CPU's attention copies keys before it multiplies them."""
ROWS = 32
"""Keys that are more than any set holds."""
CROWDED = {1: "on one set", 2: "on two sets"}
"""Attentions of short heads whose keys fall on so few sets of that cache: they take 1.4 to 2 times
as long."""
SHORT_ROW = 16
"""Numbers of a row below which a CPU takes two to seven times as long for each, and in a softmax
twenty times: it has no vectors for them."""
OVERWRITING = ("copy", "fill", "zero")
"""Operations that do not read what they write to."""


def kernel_of(
    name: str, args: Sequence[Any], outs: Sequence[Tensor], *, on_cpu: bool = True
) -> Kernel | None:
    """The kernel of an operation, as one of phase ``forward``; None: it launches nothing. ``name``:
    as torch names it, without overload; in place operations end in ``_``. ``on_cpu``: a GPU takes
    short rows as others."""
    if name in NOTHING or not any(out.numel() for out in outs):
        return None
    base = name.rstrip("_")
    if base in GEMMS:
        return _gemm(args[GEMMS[base] :][:2], _bytes_of(args, outs, base))
    if name in ATTENTION:
        return _attention(name, args, outs)
    return Kernel(
        kind="elementwise",
        phase="forward",
        name=base,
        has_short_rows=on_cpu and _has_short_rows(base, args, outs),
        shape=(),
        flops=0,
        moved_bytes=_bytes_of(args, outs, base),
    )


def _gemm(factors: Sequence[Tensor], moved: int) -> Kernel:
    left, right = factors
    batch = left.shape[0] if left.ndim == 3 else 1
    m, k = left.shape[-2:]
    n = right.shape[-1] if right.ndim > 1 else 1
    return Kernel(
        kind="gemm",
        phase="forward",
        shape=(batch, m, n, k),
        flops=2 * batch * m * n * k,
        moved_bytes=moved,
    )


def _attention(name: str, args: Sequence[Any], outs: Sequence[Tensor]) -> Kernel:
    """Two products of queries and keys in forward, five in backward, which has scores anew."""
    is_backward, place = BACKWARD in name, ATTENTION[name]
    is_masked = place < len(args) and bool(args[place])
    q, k = [each for each in args if isinstance(each, Tensor)][is_backward:][:2]
    is_far = k.shape[-1] < PACKED and k.shape[2] >= ROWS
    batch, heads, queries, size = q.shape
    key_heads, keys = k.shape[1:3]
    pairs = queries * keys
    if is_masked:  # query i sees keys 0 to i: a triangle, and all keys from the last of them on
        triangle = min(queries, keys)
        pairs = triangle * (triangle + 1) // 2 + (queries - triangle) * keys
    return Kernel(
        kind="attention",
        phase="forward",
        shape=(batch, heads, key_heads, queries, keys, size),
        flops=2 * (5 if is_backward else 2) * batch * heads * pairs * size,
        moved_bytes=_bytes_of(args, outs, ""),
        is_masked=is_masked,
        is_backward=is_backward,
        name=BIASED if name.startswith(EFFICIENT) else CROWDED.get(_sets(k), "") if is_far else "",
    )


def _sets(rows: Tensor) -> int:
    """Sets of a CPU's first cache that rows of keys lie on: one where 4 KiB divides the stride."""
    lines, rest = divmod(rows.stride(2) * rows.element_size(), LINE_BYTES)
    return LINES if rest else LINES // math.gcd(LINES, lines or 1)


def _has_short_rows(base: str, args: Sequence[Any], outs: Sequence[Tensor]) -> bool:
    """Whether few numbers lie next to each other in all tensors of an elementwise kernel, in the
    order of the largest of its arguments; of a softmax, whether few are in a row."""
    given = [x for x in tree_leaves(args) if isinstance(x, Tensor)] or [*outs]
    whole = max(given, key=Tensor.numel)
    if "softmax" in base:
        return whole.shape[-1] < SHORT_ROW
    every = [_strides(x, whole.ndim) for x in (*given, outs[0]) if x.ndim <= whole.ndim]
    dims = (d for d in range(whole.ndim) if whole.shape[d] > 1)
    row, nearest = 1, [1] * len(every)
    for d in sorted(dims, key=lambda d: max(strides[d] for strides in every)):
        steps = [strides[d] for strides in every]
        nearest = [min(step, 1) for step in steps] if row == 1 else nearest
        if steps != [row * step for step in nearest]:
            break
        row *= whole.shape[d]
    return row < min(SHORT_ROW, whole.numel())


def _strides(x: Tensor, dims: int) -> list[int]:
    """In so many dims, as broadcast: 0 where numbers repeat."""
    own = [step if n > 1 else 0 for n, step in zip(x.shape, x.stride(), strict=True)]
    return [0] * (dims - x.ndim) + own


def _bytes_of(args: Sequence[Any], outs: Sequence[Tensor], base: str) -> int:
    """Bytes that are read, of arguments, and written, of results."""
    written = {id(out) for out in outs}
    overwrites = base in OVERWRITING
    given = (x for x in tree_leaves(args) if isinstance(x, Tensor))
    read = (x for x in given if not (overwrites and id(x) in written))
    return sum(map(held_bytes, read)) + sum(map(held_bytes, outs))
