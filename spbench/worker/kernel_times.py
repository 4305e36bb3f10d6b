"""Products, attentions and passes over memory, each by itself against the clock.

All ranks compute the same at the same time, as in a step: ranks on one CPU share its cores and its
memory. Kernels are those that strategies call.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from spbench.comm.group import Group
from spbench.layers.kernels import kernel as attention
from spbench.worker.observer import Observer
from spbench.workload.timed import TimedKernel

BLOCK_S = 0.01
"""Seconds of a block of calls, between two looks at the clock."""
BLOCKS = 5
"""Blocks of which the median counts."""
MOST_CALLS = 1000
"""Calls of a block at most."""
LEAST = TimedKernel(kind="elementwise", shape=[1], dtype="float32")
"""What takes no time but its launch."""


def time_kernels(
    kernels: Sequence[TimedKernel], group: Group, observer: Observer
) -> tuple[list[float], float | None]:
    """Seconds of each kernel, and of the host for a launch; the latter None without kernels."""
    if not kernels:
        return [], None
    seconds = []
    for number, each in enumerate(kernels, start=1):
        with observer.phase(f"{each.kind} ({number} of {len(kernels)})"):
            seconds.append(seconds_of(each, group, observer.times.now_s))
    with observer.phase("launches"):
        return seconds, seconds_of(LEAST, group, observer.times.now_s, waits=False)


def seconds_of(
    kernel: TimedKernel, group: Group, now_s: Callable[[], float], *, waits: bool = True
) -> float:
    """Seconds of one call, the median of blocks of calls; without ``waits`` of the host alone."""
    call = prepared(kernel, group.device)

    def block(calls: int) -> float:
        start = now_s()
        for _ in range(calls):
            call()
        if waits:
            group.synchronise()
        took_s = now_s() - start
        group.synchronise()
        return took_s / calls

    block(1)  # what is set up by the first call is not its time
    group.barrier()
    once_s = block(1)
    calls = min(MOST_CALLS, max(1, int(BLOCK_S / max(once_s, 1e-7))))
    return statistics.median(block(calls) for _ in range(BLOCKS))


def prepared(kernel: TimedKernel, device: torch.device) -> Callable[[], object]:
    """The call of a kernel on tensors of its own."""
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
    batch, heads, key_heads, queries, keys, size = kernel.shape
    q = _random(kernel, device, batch, heads, queries, size)
    k, v = (_random(kernel, device, batch, key_heads, keys, size) for _ in range(2))
    if not kernel.is_backward:
        return lambda: attention(q, k, v, is_causal=kernel.is_masked)
    qkv = [x.requires_grad_() for x in (q, k, v)]
    out = attention(*qkv, is_causal=kernel.is_masked)
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, qkv, gradient, retain_graph=True)


def _random(kernel: TimedKernel, device: torch.device, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=getattr(torch, kernel.dtype), device=device)
