"""Calls of single kernels, on tensors made for them.

An operation of a step is called again and again on tensors of its own: on several copies in turn,
which together exceed a core's caches, and what a call returns stays until its copy comes again. In
a step, too, an operation reads what others wrote meanwhile, and writes to new memory.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from spbench.layers.kernels import kernel as attention
from spbench.worker.memory import held_bytes
from spbench.workload.timed import TimedKernel


def prepared(kernel: TimedKernel, device: torch.device) -> Callable[[], object]:
    """The call of a kernel on tensors of its own."""
    if kernel.op:
        return repeated_call(kernel, device)
    match kernel.kind:
        case "gemm":
            batch, m, n, k = kernel.shape
            left, right = _random(kernel, device, batch, m, k), _random(kernel, device, batch, k, n)
            out = _random(kernel, device, batch, m, n)
            if batch == 1:  # as of a projection: no batch
                left, right, out = left[0], right[0], out[0]
            return lambda: torch.matmul(left, right, out=out)
        case "attention":
            return _attention(kernel, device)
        case "elementwise":
            (count,) = kernel.shape
            there, here = _random(kernel, device, count), _random(kernel, device, count)
            return lambda: here.copy_(there)


def _attention(kernel: TimedKernel, device: torch.device) -> Callable[[], object]:
    """Attention of q, k, v and a bias as they are given, else of q, k and v without gaps. A bias
    has a gradient, which not every kernel gives."""
    batch, heads, key_heads, queries, keys, size = kernel.shape
    if whole := joint(kernel.given[:3]):
        rest = (_made(tensor, device) for tensor in kernel.given[3:])
        given = [*_made(whole, device).split([heads, key_heads, key_heads], 1), *rest]
    elif kernel.given:
        given = [_made(tensor, device) for tensor in kernel.given]
    else:
        given = [_random(kernel, device, batch, heads, queries, size)]
        given += (_random(kernel, device, batch, key_heads, keys, size) for _ in range(2))
    q, k, v, *bias = given
    how = {"attn_mask": bias[0].requires_grad_()} if bias else {"is_causal": kernel.is_masked}
    if not kernel.is_backward:
        return lambda: attention(q, k, v, **how)
    every = [x.requires_grad_() for x in given]
    out = attention(q, k, v, **how)
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, every, gradient, retain_graph=True)


def joint(qkv: Sequence[Any]) -> Any:
    """The tensor of which q, k and v (b, Z, S, D) are heads, as descriptions; None where they have
    rows of their own."""
    if not qkv or any(x["stride"] != qkv[0]["stride"] for x in qkv):
        return None
    batch, _, length, size = qkv[0]["shape"]
    heads, (outer, of_head, row, _) = sum(x["shape"][1] for x in qkv), qkv[0]["stride"]
    is_one = all(x["shape"][0] == batch and x["shape"][2] == length for x in qkv)
    if not is_one or of_head != size or min(outer, row) < heads * size:
        return None
    return {**qkv[0], "shape": [batch, heads, length, size]}


def span(value: Any) -> int:
    """Elements from the first to the last of all tensors of which ``value`` is a description."""
    if isinstance(value, list):
        return sum(map(span, value))
    if not isinstance(value, dict) or "shape" not in value:
        return 0
    pairs = zip(value["shape"], value["stride"], strict=True)
    return 1 + sum((n - 1) * step for n, step in pairs if n)


def _random(kernel: TimedKernel, device: torch.device, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=getattr(torch, kernel.dtype), device=device)


COLD_BYTES = 4 * 2**20
"""Bytes of all copies together, at least: more than a core's second cache. A GPU's is larger."""
MOST_COPIES = 32


def repeated_call(kernel: TimedKernel, device: torch.device) -> Callable[[], object]:
    """The call of ``kernel.op``. Raises AttributeError where torch has none."""
    name, _, overload = kernel.op.partition(".")
    operation = getattr(getattr(torch.ops.aten, name), overload)
    first = _made(kernel.given, device)
    own = torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else 0
    held = _bytes(first)
    if own and kernel.kind == "gemm":  # whose results may be larger, and stay too
        held += math.prod(kernel.shape[:3]) * getattr(torch, kernel.dtype).itemsize
    copies = min(MOST_COPIES, max(1, max(COLD_BYTES, 2 * own) // max(1, held)))
    given = [first, *(_made(kernel.given, device) for _ in range(copies - 1))]
    named = {key: _made(value, device) for key, value in kernel.named.items()}
    if "device" in {argument.name for argument in operation._schema.arguments}:
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
        return [_made(tensor, device) for tensor in value]
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
    held = span({"shape": shape, "stride": stride})
    some = _some_numbers(dtype, device)[:held]
    return some.repeat(-(-held // len(some))).as_strided(shape, stride)


@cache
def _some_numbers(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Random ones: as many as a kernel reads would take longer to make than the kernel takes."""
    return torch.randn(2**14, dtype=dtype, device=device)


def _bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return held_bytes(value)
    return sum(map(_bytes, value)) if isinstance(value, list) else 0
