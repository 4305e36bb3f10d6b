"""The work of one rank: the strategy's own step, forward and backward, on tensors without data.

Of a deep stack a few blocks run, and the rest follows: blocks of a stack are alike, so that
kernels and messages are affine in its depth. That is checked, and so are the bytes of the whole
depth, against the strategy's own prediction; where either fails, the whole stack runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial

from torch import nn

from spbench.comm.gradient_buckets import fill_buckets
from spbench.errors import Failure
from spbench.layers.linear import summed_over
from spbench.projection.dryrun.busiest import not_exceeded, ranks_to_count
from spbench.projection.dryrun.depths import FewBlocks, memory, runs_whole
from spbench.projection.dryrun.dry_step import DryRun, DryStep
from spbench.projection.dryrun.meta_ops import Known, Signature
from spbench.projection.dryrun.work import Counted, Kernel, Memory, Message, Work, as_bytes
from spbench.strategies.base import Plan, Strategy
from spbench.text import counted as in_words
from spbench.workload.case import Device
from spbench.workload.mesh import ALL, Mesh
from spbench.workload.traffic import Count, Phase, all_reduce_bytes, count, tally
from spbench.workload.weights import FSDP, are_shared, sharing_axes
from spbench.workload.workload import Workload

ADAMW_PASSES = 7
"""Tensors of a parameter's size that torch's fused AdamW reads or writes: it reads weight, gradient
and both moments, and writes all but the gradient."""


def work(
    workload: Workload,
    strategy: Strategy,
    ranks: int,
    rank: int | None = None,
    *,
    with_memory: bool = False,
    device: Device = "cuda",
    known: dict[Signature, Known] | None = None,
) -> Work:
    """Kernels and messages of a step of ``rank``; None: of the rank with the most operations.

    ``with_memory``: its peak memory, too; None: that of the rank with the most bytes, which may be
    another. ``device``: whose kernels' layouts of memory, and whose backend's packing of messages.
    ``known``: what dry runs as on that device share. Raises Failure where the strategy cannot run
    the workload, and for a rank that does not exist.
    """
    unfit = strategy.declines(workload, ranks) or strategy.only_measured
    if unfit:
        raise Failure(unfit)
    plan = strategy.on(strategy.flattened(workload), ranks)
    if rank is not None and not 0 <= rank < ranks:
        raise Failure(f"rank {rank} does not exist: {in_words(ranks, 'rank')} begin at 0")
    known = {} if known is None else known
    runs = [
        DryRun(plan, each, device, known)
        for each in (ranks_to_count(plan) if rank is None else [rank])
    ]
    few = FewBlocks.of(plan.workload, plan.layout)
    few = few if plan.stages is None else few.all  # a stage has some of the blocks
    done = [_work(few, run, base, with_memory) for run, base in _bases(few, runs, with_memory)]
    most = max(done, key=lambda each: each.operations)
    return replace(most, memory=max((x.memory for x in done if x.memory), key=_peak, default=None))


def _peak(memory: Memory) -> int:
    return memory.peak


def _bases(
    few: FewBlocks, runs: Sequence[DryRun], with_memory: bool
) -> Iterable[tuple[DryRun, DryStep]]:
    """The runs that may have the most, and their steps of the least blocks. Where blocks of a stack
    differ, as along axes in rotation, the least have not all of a kind: then each may."""
    every = len(runs) > 1 and max(few.periods) == 1
    steps = [run(few.base, with_memory=with_memory and (every or few.growth == 1)) for run in runs]
    found = dict(enumerate(steps))
    return [(runs[i], steps[i]) for i in (not_exceeded(found) if every else found)]


def _work(few: FewBlocks, run: DryRun, base: DryStep, with_memory: bool) -> Work:
    """What one rank does, from its step of the least blocks."""
    workload = few.whole
    launches = base.counted.kernels.total() + len(base.weights) + 1
    if few.growth == 1 or (with_memory and needs_all(run.plan, launches, base.weights, few.growth)):
        few, step = few.all, base if few.growth == 1 else run(workload, with_memory=True)
        weights, total = step.weights, step.counted
    else:
        step = run(few.reduced, with_memory=with_memory)
        weights, total = few.weights(step), _extrapolated(few, base, step, run)
    predicted = _predicted(run)
    if wrong := _why_not_predicted(_sent(total), predicted):
        raise Failure(f"the dry run of rank {run.rank} {wrong}: one of the two is wrong")
    traced = _traced(run, total, weights)
    if not with_memory:
        return traced
    if few != few.all and needs_all(run.plan, traced.launches, weights):
        few, step = few.all, run(workload, with_memory=True)
    return replace(traced, memory=memory(few, step, weights))


def needs_all(plan: Plan, launches: int, weights: list[nn.Parameter], growth: float = 1) -> bool:
    """Whether the peak of all blocks follows from no few of them."""
    workload = plan.workload
    if are_shared(workload, plan.mesh, plan.cuts_weights):
        # No buckets: a unit is a block, of which few tell all, or for stage 1 all of the model.
        return workload.zero == 1
    return runs_whole(launches, weights, growth)


def _extrapolated(few: FewBlocks, base: DryStep, step: DryStep, run: DryRun) -> Counted:
    """Forward and backward of the whole depth; all blocks run where it does not follow."""
    total = few.extrapolated(base, step)
    if total is None or _sent(total) != _predicted(run):
        total = run(few.whole).counted
    return total


def _traced(run: DryRun, total: Counted, weights: list[nn.Parameter]) -> Work:
    """All that a step launches and sends, its sums of gradients and its optimizer's update too."""
    plan, rank, device = run.plan, run.rank, run.device
    workload, mesh = plan.workload, plan.mesh
    if workload.mode == "train":
        is_shared = are_shared(workload, mesh, plan.cuts_weights)
        total = total.plus(
            _shared_out(plan, rank, device)
            if is_shared
            else _gradients(weights, mesh, plan.group.holds_whole)
        )
        if workload.optimizer == "adamw":  # in one launch over all that a rank holds
            update = _pass(ADAMW_PASSES * sum(each.nbytes for each in weights))
            total = total.plus(Counted(Counter([update]), Counter(), 1))
    return Work(
        mesh=mesh.axes,
        dtype=workload.dtype,
        kernels=total.kernels,
        messages=total.messages,
        calls=total.calls,
        bubble=0.0 if plan.stages is None else float(plan.stages.bubble),
    )


def _sent(total: Counted) -> Count:
    sent: Count = {}
    for message, times in total.messages.items():
        kind = message.phase, message.op, message.axis
        sent[kind] = sent.get(kind, Fraction(0)) + times * message.sent_bytes
    return sent


def _predicted(run: DryRun) -> Count:
    return count([each for each in run.plan.traffic if each.phase != "gradients"], run.rank)


def _why_not_predicted(sent: Count, predicted: Count) -> str:
    """Where a dry run and the strategy's own prediction differ by a byte or more, in words."""
    for phase, op, axis in sorted(sent.keys() | predicted.keys()):
        counted, told = (float(each.get((phase, op, axis), 0)) for each in (sent, predicted))
        if abs(counted - told) >= 1:
            where = f"{phase} over {axis}" if axis != ALL else phase
            return f"sends {counted:,.0f} bytes by {op} in {where}, predicted {told:,.0f}"
    return ""


def _gradients(weights: list[nn.Parameter], mesh: Mesh, holds_whole: bool) -> Counted:
    """The copy that packs each bucket, and its sum over the ranks."""
    buckets = fill_buckets(weights, partial(summed_over, mesh=mesh, holds_whole=holds_whole))
    calls = sum(2 + 2 * len(each.parameters) for each in buckets)  # views, and a split
    summed = Counted(Counter(), Counter(), calls)
    # Backward reaches parameters in reverse; a bucket leaves after all that were opened before it.
    reached = {parameter: place for place, parameter in enumerate(reversed(weights))}
    last = max((reached[each] for bucket in buckets for each in bucket.parameters), default=0)
    ready = 0
    for bucket in buckets:
        axes, parameters = bucket
        ready = max(ready, *(reached[each] for each in parameters))
        size = sum(each.nbytes for each in parameters)
        summed.kernels[_pass(2 * size, "cat")] += 1
        if sent := all_reduce_bytes(size, mesh.only(*axes).size):
            total, axis = as_bytes(sent), ALL if axes == mesh.names else "+".join(axes)
            message = Message(
                op="all_reduce",
                phase="gradients",
                axis=axis,
                sent_bytes=total,
                is_last=ready == last or bucket.is_late,
            )
            summed.messages[message] += 1
    return summed


def _shared_out(plan: Plan, rank: int, device: Device) -> Counted:
    """What torch launches where weights are shared out, and messages of gradients.

    It packs a rank's part of a unit, and unpacks the whole; and packs whole gradients. On a CPU it
    waits for each message.
    """
    added = Counted(Counter(), Counter(), 0)
    for transfer, times in tally(plan.of_weights):
        sent = transfer.sent[rank]
        if not sent:
            continue
        if transfer.axis == FSDP:
            ranks = plan.mesh.only(*sharing_axes(plan.mesh, plan.cuts_weights)).size
            part = round(sent / (ranks - 1))
            passes = [2 * part * ranks]
            if transfer.op == "all_gather":
                passes.append(2 * part)
            for moved in passes:
                added.kernels[_pass(moved, "cat", transfer.phase)] += times
        if transfer.phase == "gradients":
            message = Message(
                op=transfer.op,
                phase="gradients",
                axis=transfer.axis,
                sent_bytes=as_bytes(sent),
                is_last=device == "cpu" or transfer.axis != FSDP,
            )
            added.messages[message] += times
    return added


def _pass(moved: int, name: str = "", phase: Phase = "gradients") -> Kernel:
    return Kernel(kind="elementwise", phase=phase, shape=(), flops=0, moved_bytes=moved, name=name)
