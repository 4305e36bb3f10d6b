"""An operation of a step, called again and again on tensors of its own.

Each call takes the next of several copies of its arguments, which together exceed a core's caches,
and what the calls return stays until that copy comes again: in a step, too, an operation reads
what others wrote meanwhile, and writes to new memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from spbench.workload.timed import TimedKernel

COLD_BYTES = 4 * 2**20
"""Bytes of all copies together, at least: more than the second cache of a core."""
MOST_COPIES = 32


def repeated_call(kernel: TimedKernel, device: torch.device) -> Callable[[], object]:
    """The call of ``kernel.op``. Raises AttributeError where torch has none."""
    name, _, overload = kernel.op.partition(".")
    operation = getattr(getattr(torch.ops.aten, name), overload)
    first = _made(kernel.given, device)
    copies = min(MOST_COPIES, max(1, COLD_BYTES // max(1, _bytes(first))))
    given = [first, *(_made(kernel.given, device) for _ in range(copies - 1))]
    named = {key: _made(value, device) for key, value in kernel.named.items()}
    if "device" in {each.name for each in operation._schema.arguments}:
        named["device"] = device
    kept: list[object] = [None] * copies
    turn = 0

    def call() -> None:
        nonlocal turn
        turn = (turn + 1) % copies
        kept[turn] = operation(*given[turn], **named)

    return call


def _made(value: Any, device: torch.device) -> Any:
    """The value, with tensors for their descriptions."""
    if isinstance(value, list):
        return [_made(each, device) for each in value]
    if not isinstance(value, dict):
        return value
    dtype = getattr(torch, value["dtype"])
    return _tensor(value["shape"], value["stride"], dtype, device) if "shape" in value else dtype


def _tensor(
    shape: list[int], stride: list[int], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Random numbers, of integers zeros, which are indices of everything."""
    if not dtype.is_floating_point:
        return torch.empty_strided(shape, stride, dtype=dtype, device=device).zero_()
    held = 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True) if n)
    return torch.randn(held, dtype=dtype, device=device).as_strided(shape, stride)


def _bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        lengths = (n for n, step in zip(value.shape, value.stride(), strict=True) if step)
        return math.prod(lengths) * value.element_size()
    return sum(map(_bytes, value)) if isinstance(value, list) else 0
