"""What a GPU times to be calibrated: calls of blocks, each as it finds its operands in memory.

Passes are timed of a few workloads, products and attentions of the whole catalogue but for the
longest: how fast they are depends on each of their lengths.
"""

import math
from collections.abc import Iterable

from spbench.projection.calibration_calls import (
    LEARNT,
    MOST_BYTES,
    MOST_FLOPS,
    MOST_FLOPS_OF_OTHERS,
    able,
    flops,
    shallow,
)
from spbench.projection.timed_kernels import BIASED, PACKING
from spbench.projection.unsent import timed_calls
from spbench.strategies.base import Strategy
from spbench.worker.kernel_calls import joint, span
from spbench.workload.catalogue import SMALL, find
from spbench.workload.config_names import names
from spbench.workload.fields import DTYPE_BYTES
from spbench.workload.timed import TimedKernel
from spbench.workload.workload import Workload

SHARE = 8
"""Ranks of whose step a GPU that is alone times one's share: a node of most clusters."""


def calls_on_gpu(
    workload: Workload, strategy: Strategy, ranks: int, most_bytes: float = MOST_BYTES["cuda"]
) -> Iterable[TimedKernel]:
    """Calls of one block that a GPU times: passes but those that pack, products, and attentions of
    q, k, v and a bias as they lie in memory there. Those that would hold more are left out, but
    attentions, which are timed with a part of their batch."""
    block = shallow(workload)
    for call in timed_calls(block, strategy, ranks, "cuda", LEARNT["cuda"]):
        if call.name in PACKING or flops(call) > MOST_FLOPS["cuda"]:
            continue
        made = _with_its_operands(call) if call.kind == "attention" else call
        while call.kind == "attention" and held_bytes(made) > most_bytes and made.shape[0] > 1:
            made = _half(made)
        if held_bytes(made) <= most_bytes:
            yield made


def _with_its_operands(call: TimedKernel) -> TimedKernel:
    """An attention of q, k, v and a bias alone, of the arguments of torch's operation."""
    first, count = int(call.is_backward), 4 if call.name == BIASED else 3
    return call.model_copy(update={"op": "", "given": call.given[first : first + count]})


def _half(attention: TimedKernel) -> TimedKernel:
    """The attention of half the batch, which does as much a second."""
    batch, *rest = attention.shape
    given = [{**x, "shape": [-(-batch // 2), *x["shape"][1:]]} for x in attention.given]
    return attention.model_copy(update={"shape": [-(-batch // 2), *rest], "given": given})


def held_bytes(call: TimedKernel) -> int:
    """Memory of a call's operands, from their first to their last element, and of its results; of
    an attention's backward also what forward leaves."""
    whole = joint(call.given[:3]) if call.kind == "attention" else None
    held = span([whole, *call.given[3:]] if whole else call.given)
    match call.kind:
        case "gemm":
            held += math.prod(call.shape[:3])
        case "attention":
            batch, heads, key_heads, queries, keys, size = call.shape
            own, others = batch * heads * queries * size, batch * key_heads * keys * size
            held += 3 * own + 2 * others if call.is_backward else own
            held += call.is_backward * span(call.given[3:])
        case "elementwise":
            held += call.shape[0]
    return held * DTYPE_BYTES[call.dtype]


def calls_on_gpu_of_catalogue(
    ranks: int, full: Iterable[str], most_bytes: float
) -> Iterable[TimedKernel]:
    """Calls of a rank's share of these workloads under every strategy, of ``SHARE`` ranks where
    there is one; and products and attentions of all workloads in full size, of all positions."""
    parts = ranks if ranks > 1 else SHARE
    for workload in map(find, full):
        for strategy in able(workload, parts).values():
            yield from calls_on_gpu(workload, strategy, parts, most_bytes)
    for workload in (find(name) for name in names() if not name.endswith(SMALL)):
        for strategy in [*able(workload, 1).values()][:1]:
            for call in calls_on_gpu(workload, strategy, 1, most_bytes):
                if 0 < flops(call) <= MOST_FLOPS_OF_OTHERS["cuda"]:
                    yield call
