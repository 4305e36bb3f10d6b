"""Dry runs of every strategy are the same work as real steps: products, attentions, bytes."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
import torch
from helpers.examples import ALL
from helpers.golden import Golden
from helpers.variants import by_day

from spbench.comm.threaded import ThreadRendezvous, ThreadTransport, run_rank_threads
from spbench.comm.transport import Transports
from spbench.errors import Failure
from spbench.layers.dispatch_modes import WatchingMode
from spbench.projection.dryrun.dry_step import DryRun
from spbench.projection.dryrun.meta_ops import kernel_of
from spbench.projection.dryrun.trace import work
from spbench.projection.dryrun.work import Work
from spbench.strategies.registry import load
from spbench.worker.step import Step
from spbench.workload.catalogue import find, with_settings
from spbench.workload.config_names import names
from spbench.workload.traffic import Count
from spbench.workload.workload import Workload

BY_DAY = ("axes-2d-uneven", "pair-bias", "windows", "boxes")
SHAPES = [find(name, "verify") for name in names("verify") if ALL or name in BY_DAY]
RANKS = 4
Computed = Counter[tuple[str, tuple[int, ...], int, bool]]
"""Kind, shape, operations and direction of products and attentions, and how often each occurs."""


class Watched(WatchingMode):
    """Counts the products and attentions of a real step."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Computed = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        outs = func(*args, **(kwargs or {}))
        flat = outs if isinstance(outs, (tuple, list)) else [outs]
        tensors = [each for each in flat if isinstance(each, torch.Tensor)]
        name = func.__name__.partition(".")[0]
        given = [*args, *(kwargs or {}).values()]
        kernel = kernel_of(name, given, tensors) if tensors else None
        if kernel is not None and kernel.kind != "elementwise":
            self.seen[kernel.kind, kernel.shape, kernel.flops, kernel.is_backward] += 1
        return outs


def real_step(workload: Workload, strategy: str) -> list[tuple[Computed, Count]]:
    """What each rank computes and sends in a step on threads."""
    second = ThreadRendezvous(RANKS)

    def rank_main(transport: ThreadTransport) -> tuple[Computed, Count]:
        gradients = ThreadTransport(transport.rank, second)
        transports = Transports(strategy=transport, gradients=gradients)
        plan = load(strategy).on(load(strategy).flattened(workload), RANKS)
        step = Step(plan, transports, torch.device("cpu"))
        given = step.seeded_inputs()
        with Watched() as watched:
            step(*given)
        return watched.seen, transports.sent()

    return run_rank_threads(RANKS, rank_main)


def computed(traced: Work) -> Computed:
    total: Computed = Counter()
    for each, times in traced.kernels.items():
        if each.kind != "elementwise":
            total[each.kind, each.shape, each.flops, each.is_backward] += times
    return total


def sent(traced: Work) -> Count:
    total: Count = {}
    for each, times in traced.messages.items():
        kind = each.phase, each.op, each.axis
        total[kind] = total.get(kind, Fraction(0)) + times * each.sent_bytes
    return total


@pytest.mark.parametrize("depth", [2, 9])
@pytest.mark.parametrize("strategy", ["ulysses", "ring", "megatron-sp"])
def test_a_dry_run_without_what_recomputation_sends(
    monkeypatch: pytest.MonkeyPatch, strategy: str, depth: int, golden: Golden
) -> None:
    """Forward is sent again in backward where blocks are recomputed: a dry run is held against the
    prediction, whether all blocks run in it or few."""
    shape = with_settings(find("checkpointed", "verify"), [f"depth={depth}"])
    assert work(shape, load(strategy), RANKS, 0, device="cpu").messages
    right = DryRun.__call__

    def forgetful(self: DryRun, workload: Workload, **how: Any) -> Any:
        return right(self, workload.model_copy(update={"checkpointing": "none"}), **how)

    monkeypatch.setattr(DryRun, "__call__", forgetful)
    with pytest.raises(Failure) as refused:
        work(shape, load(strategy), RANKS, 0, device="cpu")
    golden(refused.value)


@pytest.mark.parametrize("strategy", by_day())
def test_a_dry_run_is_the_work_of_a_real_step(strategy: str) -> None:
    """The same products and attentions, as often, and the same bytes by phase, operation and axis;
    of every rank, and of a bias, too, which a CPU's attention has no one kernel for."""
    for shape in SHAPES:
        if load(strategy).declines(shape, RANKS):
            continue
        real = real_step(shape, strategy)
        for rank in range(RANKS) if ALL else (RANKS - 1,):
            traced = work(shape, load(strategy), RANKS, rank, device="cpu")
            assert computed(traced) == real[rank][0], (shape.name, rank)
            assert sent(traced) == real[rank][1], (shape.name, rank)
