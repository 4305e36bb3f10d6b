"""What a CPU times to be calibrated: calls of a few steps, and attentions of all small workloads.

An attention's time depends too unevenly on its lengths to be guessed from a few, as it takes four
times as long with 17 keys as with 16, and on how its keys lie in memory (``kernel_of``). Which
steps are small, who can run them, and which calls are alike is the same on a GPU (``gpu_calls``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterable, Iterator
from functools import cache
from typing import Any

import torch

from spbench.projection.costmodel.operations import PACKING, VECTOR, label_of, operations
from spbench.projection.dryrun.dry_step import prepared
from spbench.projection.dryrun.meta_ops import META, Known, Signature
from spbench.projection.dryrun.recorder import Recorder
from spbench.projection.dryrun.work import BIASED, Kernel
from spbench.strategies.base import Strategy
from spbench.strategies.registry import load, places
from spbench.worker.kernel_calls import joint, span
from spbench.workload.case import Device
from spbench.workload.catalogue import SMALL, find
from spbench.workload.config_names import names
from spbench.workload.fields import DTYPE_BYTES, Dtype
from spbench.workload.timed import TimedKernel
from spbench.workload.workload import Workload

TINY = 4
"""Positions along each axis of a step that is little but launches."""
MOST_FLOPS: dict[Device, float] = {"cpu": 4e10, "cuda": 4e14}
"""Larger kernels and steps are left out: one would take a second."""
MOST_FLOPS_OF_OTHERS: dict[Device, float] = {"cpu": 4e9, "cuda": 2e13}
"""Larger products and attentions of other workloads are left out: each takes part of a second."""
LONG = 4096
"""Lengths of a product that are as good as this one: its rate is the same."""
MOST_BYTES: dict[Device, int] = {"cpu": 2**28, "cuda": 2**33}
"""What a kernel reads and writes, at most; larger ones go by the largest."""
ALIKE = 1.5
"""The largest ratio of each length of products and attentions that are timed as one."""
AS_LARGE = 3.0
"""The largest ratio of bytes of elementwise kernels, whose time lies on a line."""
AS_MANY = 4.0
"""The largest ratio of heads in all batches of attentions, which are computed one by one."""
SHORT = 64
"""Lengths of an attention below which none is like another: what is left over of a vector takes as
long as many keys."""
LEARNT: dict[Device, dict[Signature, Known]] = {"cpu": {}, "cuda": {}}
"""What each operation gives as on a device, which the dry runs of all plans share."""
CROWDED_KEYS, CROWDED_BATCHES = (32, 128), (4, 8)
"""Sequences of 16 heads of 8, one axis, whose keys then lie on two sets of a cache, and on one."""


def calls_of(workload: Workload, ranks: int) -> Iterable[TimedKernel]:
    """All calls of every strategy that can run, of one block, and of tiny ones; where some are too
    large, also those of axes halved until none is."""
    least, part = tiny(workload, ranks), shallow(workload)
    calls = _calls(part, ranks)
    yield from filter(_is_small, [*calls, *_calls(least, ranks)])
    while not all(map(_is_small, calls)) and part.tokens > least.tokens:
        axes = {axis: max(-(-n // 2), least.axes[axis]) for axis, n in part.axes.items()}
        part = part.model_copy(update={"axes": axes, "batch": 1})
        calls = _calls(part, ranks)
        if all(map(_is_small, calls)):
            yield from calls


def calls_of_catalogue(ranks: int, known: Container[tuple[str, Dtype]]) -> Iterable[TimedKernel]:
    """Attentions of all small workloads, in one kernel or in products of many heads, of all
    positions and of a rank's part of them, or of its rows of scores; and what is not ``known`` by
    its label and type."""
    for call in (call for part in {1, ranks} for call in _parts(part)):
        is_attention = call.kind == "attention" or (call.kind == "gemm" and call.shape[0] > 1)
        if is_attention or (label_of(call), call.dtype) not in known:
            yield call
    yield from _crowded()


@cache
def _parts(count: int) -> list[TimedKernel]:
    """Calls of all small workloads, of one of so many parts of each axis, and of that many ranks'
    rows of scores."""
    small = [shallow(find(name)) for name in names() if name.endswith(SMALL)]
    cut = [
        each.model_copy(
            update={"axes": {axis: -(-n // count) for axis, n in each.axes.items()}, "batch": 1}
        )
        for each in small
    ]
    calls = [call for each in cut for call in _calls(each, 1, most=1)]
    if count > 1:
        rows = (_calls(each, count, most=1, in_rows=True) for each in small)
        calls += [call for of_rows in rows for call in of_rows if call.kind != "attention"]
    return [call for call in calls if _is_small(call, MOST_FLOPS_OF_OTHERS["cpu"])]


@cache
def _crowded() -> list[TimedKernel]:
    """Attentions whose keys crowd a cache, of a few keys and of many."""
    one = {"name": "w", "hidden": 128, "heads": 16, "depth": 1, "block": [{"attention": "s"}]}
    sizes = [{"axes": {"s": s}, "batch": b} for s in CROWDED_KEYS for b in CROWDED_BATCHES]
    every = [Workload.model_validate(one | size) for size in sizes]
    return [call for each in every for call in _calls(each, 1, most=1) if call.kind == "attention"]


def _calls(
    workload: Workload, ranks: int, *, most: int | None = None, in_rows: bool = False
) -> list[TimedKernel]:
    """Calls under all strategies that can run, or under so many at most, of those that keep whole
    rows of scores if ``in_rows``."""
    of = [x for x in able(workload, ranks).values() if x.keeps_scores or not in_rows][:most]
    by_strategy = (timed_calls(workload, each, ranks, "cpu", LEARNT["cpu"]) for each in of)
    return [call for calls in by_strategy for call in calls]


def _is_small(call: TimedKernel, most_flops: float = MOST_FLOPS["cpu"]) -> bool:
    """Whether a CPU is done with it in much less than a second."""
    if call.kind == "elementwise":
        return 2 * call.shape[0] * DTYPE_BYTES[call.dtype] <= MOST_BYTES["cpu"]
    return flops(call) <= most_flops


def flops(call: TimedKernel) -> float:
    """Operations of a product or an attention; 0 of a pass."""
    return 0 if call.kind == "elementwise" else operations(label_of(call), (*call.shape,))


def able(workload: Workload, ranks: int) -> dict[str, Strategy]:
    """The strategies that can run, by name."""
    return {
        name: strategy
        for name, strategy in ((name, load(name)) for name in places())
        if strategy.declines(workload, ranks) is None
    }


def shallow(workload: Workload) -> Workload:
    """The workload with one block of each stack."""
    return workload.with_depths([1] * len(workload.parts))


def tiny(workload: Workload, ranks: int) -> Workload:
    """Leaves so few positions, but one for each rank, that a step of it is little but launches."""
    axes = {axis: min(length, max(TINY, ranks)) for axis, length in workload.axes.items()}
    return shallow(workload).model_copy(update={"axes": axes, "batch": 1})


def distinct(kernels: Iterable[TimedKernel]) -> list[TimedKernel]:
    """One of each group of kernels that are alike, the first."""
    kept: list[TimedKernel] = []
    groups: dict[tuple[str, Dtype], list[TimedKernel]] = {}
    for kernel in kernels:
        like = groups.setdefault((label_of(kernel), kernel.dtype), [])
        if not any(_are_alike(kernel, other) for other in like):
            like.append(kernel)
            kept.append(kernel)
    return kept


def _are_alike(one: TimedKernel, other: TimedKernel) -> bool:
    """Whether kernels of one label and type have lengths alike."""
    pairs, most = [*zip(one.shape, other.shape, strict=True)], ALIKE
    if one.kind == "elementwise":
        most = AS_LARGE
    elif one.kind == "gemm":
        pairs[1:] = [(min(a, LONG), min(b, LONG)) for a, b in pairs[1:]]
    elif one.kind == "attention":
        counts = [math.prod(each.shape[:2]) for each in (one, other)]
        one_left, other_left = (each.shape[4] % VECTOR > 0 for each in (one, other))
        if max(counts) > AS_MANY * min(counts) or one_left != other_left:
            return False
        pairs = pairs[3:]
        if any(a != b and min(a, b) < SHORT for a, b in pairs):
            return False
    return all(max(pair) <= most * min(pair) for pair in pairs)


def timed_calls(
    workload: Workload,
    strategy: Strategy,
    ranks: int,
    device: Device,
    known: dict[Signature, Known] | None = None,
) -> Iterator[TimedKernel]:
    """Each different call of a step of rank 0 that launches a kernel. Left out are those that take
    what no description holds, such as infinity. ``known``: what dry runs as on ``device`` share."""
    workload, recorder = strategy.flattened(workload), Recorder(device, known)
    with recorder:
        step, given = prepared(strategy.on(workload, ranks), 0, recorder)
        with recorder.recording():
            step(*given)
    for signature, kernel in recorder.calls():
        timed = _timed(signature, kernel, workload)
        if timed is not None:
            yield timed


def _timed(signature: Signature, kernel: Kernel, workload: Workload) -> TimedKernel | None:
    operation, *given = signature
    named = dict(each for each in given if _is_named(each))
    given = [each for each in given if not _is_named(each)]
    try:
        arguments = [_plain(each) for each in given]
        by_name = {name: _plain(value) for name, value in named.items() if value != META}
        json.dumps([arguments, by_name], allow_nan=False)
    except (TypeError, ValueError):
        return None
    passes = kernel.moved_bytes // (2 * DTYPE_BYTES[workload.dtype])
    return TimedKernel(
        kind=kernel.kind,
        shape=list(kernel.shape) or [max(1, passes)],
        dtype=workload.dtype,
        is_masked=kernel.is_masked,
        is_backward=kernel.is_backward,
        name=kernel.name,
        has_short_rows=kernel.has_short_rows,
        op=operation.__name__,
        given=arguments,
        named=by_name,
    )


def _is_named(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and len(value) == 3 and isinstance(value[2], torch.dtype):
        shape, stride, dtype = value
        return {"shape": [*shape], "stride": [*stride], "dtype": str(dtype).removeprefix("torch.")}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


# What a GPU times to be calibrated: calls of blocks, each as it finds its operands in memory.
#
# Passes are timed of a few workloads, products and attentions of the whole catalogue but for the
# longest: how fast they are depends on each of their lengths.

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
