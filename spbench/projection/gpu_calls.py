"""What a GPU times to be calibrated: calls of blocks, each as it finds its operands in memory.

Passes are timed of a few workloads, products and attentions of the whole catalogue: how fast they
are depends on each of their lengths, and whoever has a model like one there is told by its kernels.
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
from spbench.projection.kernel_of import BIASED
from spbench.projection.timed_kernels import PACKING
from spbench.projection.unsent import timed_calls
from spbench.strategies.base import Strategy
from spbench.workload.catalogue import SMALL, find
from spbench.workload.config_names import names
from spbench.workload.timed import TimedKernel
from spbench.workload.workload import DTYPE_BYTES, Workload

SHARE = 8
"""Ranks of whose step a GPU that is alone times one's share: a node of most clusters."""


def calls_on_gpu(workload: Workload, strategy: Strategy, ranks: int) -> Iterable[TimedKernel]:
    """Calls of one block that a GPU times: passes but those that pack, products, and attentions of
    q, k, v and a bias as they lie in memory there."""
    block = shallow(workload)
    for call in timed_calls(block, strategy, ranks, "cuda", LEARNT["cuda"]):
        if call.kind == "elementwise":
            made, held = call, 2 * call.shape[0]
        elif call.kind == "attention":
            first, count = int(call.is_backward), 4 if call.name == BIASED else 3
            given = call.given[first : first + count]
            made = call.model_copy(update={"op": "", "given": given})
            held = sum(math.prod(x["shape"]) for x in given)
        else:
            batch, m, n, k = call.shape
            made, held = call, batch * (m * k + k * n + m * n)
        fits = held * DTYPE_BYTES[call.dtype] <= MOST_BYTES["cuda"]
        if fits and call.name not in PACKING and flops(call) <= MOST_FLOPS["cuda"]:
            yield made


def calls_on_gpu_of_catalogue(ranks: int, full: Iterable[str]) -> Iterable[TimedKernel]:
    """Calls of a rank's share of these workloads under every strategy, of ``SHARE`` ranks where
    there is one; and products and attentions of all workloads in full size, of all positions."""
    parts = ranks if ranks > 1 else SHARE
    for workload in map(find, full):
        for strategy in able(workload, parts).values():
            yield from calls_on_gpu(workload, strategy, parts)
    for workload in (find(name) for name in names() if not name.endswith(SMALL)):
        for strategy in [*able(workload, 1).values()][:1]:
            for call in calls_on_gpu(workload, strategy, 1):
                if 0 < flops(call) <= MOST_FLOPS_OF_OTHERS["cuda"]:
                    yield call
