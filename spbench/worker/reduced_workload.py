"""Which workload the gate compares: the one that is asked for, or a small one of its kind.

One device must be able to run the whole of it, in time and memory, beside everything else.
"""

from __future__ import annotations

import psutil
import torch

from spbench.comm.group import Group
from spbench.workload.flops import forward_flops, parameters
from spbench.workload.workload import DTYPE_BYTES, Workload

GATE_FLOPS = {"cpu": 5e10, "cuda": 5e13}
"""Forward operations up to which a workload is compared whole rather than as its twin."""
GATE_MEMORY_SHARE = {"cpu": 0.5, "cuda": 0.3}
"""Of what is free."""
LIVE_ACTIVATIONS = 16
"""Activations that autograd keeps of one sublayer, at the most; scores come on top."""


def comparable(workload: Workload, group: Group) -> Workload:
    """``workload``, or its reduced twin if it is too large for any rank's device alone."""
    (too_large,) = group.largest([float(not _fits(workload, group))])
    return workload.reduced(group.size) if too_large else workload


def _fits(workload: Workload, group: Group) -> bool:
    """Whether each rank can run the whole model alone, beside its own part of it."""
    if forward_flops(workload) > GATE_FLOPS[group.device.type]:
        return False
    needed, share = _needed_bytes(workload, group), GATE_MEMORY_SHARE[group.device.type]
    if group.device.type == "cuda":
        return needed < share * torch.cuda.mem_get_info(group.device)[0]
    # Processes of one machine share its memory.
    return needed * group.size < share * psutil.virtual_memory().available


def _needed_bytes(workload: Workload, group: Group) -> float:
    """What one rank holds at the most: one device's step, then its own part of another.

    Kernels that keep no scores take no bias that has a gradient; on CUDA they have no float64,
    and no grouped queries in float32.
    """
    size = max(4, DTYPE_BYTES[workload.dtype])  # the reference of 16 bits runs in 32
    tokens, part = workload.batch * workload.tokens, 1 + 1 / group.size
    activations = len(workload.stack) * LIVE_ACTIVATIONS * tokens * workload.hidden
    scores, grouped = 0.0, workload.key_heads != workload.heads
    for one in workload.attentions:
        slow = group.device.type == "cuda" and (workload.dtype == "float64" or grouped)
        keeps = slow or one.pair_bias
        square = tokens * workload.length(one) * workload.heads
        scores += 2 * workload.depth * square * (part if keeps else 1 / group.size)
    pairs = sum(workload.axes[axis] ** 2 * channels for axis, channels in workload.pairs.items())
    kept = activations * part + scores + 2 * workload.batch * pairs
    return size * (kept + 4 * parameters(workload).total)
