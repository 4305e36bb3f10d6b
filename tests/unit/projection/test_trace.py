"""The work of one rank is the same from few blocks as from all, and says which rank it is of."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from helpers.golden import Golden
from torch.utils._python_dispatch import TorchDispatchMode

from spbench.comm.fake import silent_transports
from spbench.comm.gradient_buckets import fill_buckets
from spbench.errors import Failure
from spbench.layers.linear import is_of_heads, part_of
from spbench.projection.dryrun import trace
from spbench.projection.dryrun.depths import FewBlocks
from spbench.projection.dryrun.dry_step import DryRun, DryStep
from spbench.projection.dryrun.trace import work
from spbench.projection.dryrun.work import Counted, Kernel
from spbench.strategies.registry import load
from spbench.worker.step import Step
from spbench.workload.workload import Workload


def workload(**fields: Any) -> Workload:
    block = [{"attention": "space"}, {"attention": "time"}, {"mlp": 2}]
    stack = {} if "stacks" in fields else {"depth": 7, "block": block}
    plain = {"name": "w", "axes": {"time": 8, "space": 24}, "hidden": 32, "heads": 4}
    return Workload.model_validate(plain | stack | fields)


THREE_AXES = {
    "axes": {"time": 8, "height": 8, "width": 8},
    "block": [{"attention": axis} for axis in ("time", "height", "width")],
    "depth": 9,
}
FIELDS: list[dict[str, Any]] = [{}, {"checkpointing": "full"}]
STACKS = {
    "stacks": [
        {"depth": 6, "block": [{"attention": "space"}, {"mlp": 2}]},
        {"depth": 5, "block": [{"attention": "time"}]},
    ]
}


@pytest.mark.parametrize(
    ("strategy", "fields"),
    [
        *(("dsp", each) for each in (*FIELDS, THREE_AXES, STACKS)),
        *(("ring", each) for each in FIELDS),
        *(pytest.param("ring", each, marks=pytest.mark.long) for each in (THREE_AXES, STACKS)),
    ],
)
def test_few_blocks_tell_what_all_do(
    strategy: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels and messages of the whole depth, extrapolated, are those of all blocks."""
    deep = workload(**fields)
    few = work(deep, load(strategy), 4)
    assert FewBlocks.of(deep, load(strategy).on(deep, 4).layout).reduced.blocks < deep.blocks
    monkeypatch.setattr(FewBlocks, "extrapolated", lambda *_: None)
    assert work(deep, load(strategy), 4) == few


@pytest.mark.parametrize(
    ("strategy", "fields"), [("dsp", THREE_AXES), ("megatron-sp", STACKS), ("megatron-sp", {})]
)
def test_few_blocks_tell_the_weights_of_all(strategy: str, fields: dict[str, Any]) -> None:
    """In their order, with what is cut, and with what gradients are summed over."""
    deep = workload(**fields)
    run = DryRun(load(strategy).on(deep, 4), 0, "cuda", {})
    few = FewBlocks.of(deep, run.plan.layout)
    told, held = few.weights(run(few.reduced)), run(deep).weights
    assert len(held) == len({*told}) > len(run(few.reduced).weights)
    for facts in (lambda weight: weight.shape, part_of, is_of_heads):
        assert [*map(facts, told)] == [*map(facts, held)]


def test_what_is_not_affine_runs_whole(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    """Where the predicted bytes of the whole depth are others, all blocks run, and the dry run is
    refused if all of them send something else, too."""
    depths = []
    run = DryRun.__call__

    def noted(self: DryRun, shape: Workload, **more: Any) -> Any:
        depths.append(shape.blocks)
        return run(self, shape, **more)

    monkeypatch.setattr(DryRun, "__call__", noted)
    monkeypatch.setattr(trace, "_predicted", lambda *_: {})
    with pytest.raises(Failure) as refused:
        work(workload(), load("dsp"), 4)
    golden(refused.value)
    assert depths == [1, 4, 7]


def counted(launches: int) -> Counted:
    kernel = Kernel(kind="elementwise", phase="forward", shape=(), flops=0, moved_bytes=1)
    return Counted(Counter({kernel: launches}), Counter(), 2 * launches)


@pytest.mark.parametrize(
    ("of_blocks", "beside", "expected"),
    [
        ((5, 3, 3, 4), (2, 2), 2 + 5 + 3 * 8 + 4),
        ((5, 3, 4, 4), (2, 2), None),
        ((5, 3, 3, 4), (2, 9), None),
    ],
    ids=["affine", "blocks-differ", "more-beside-blocks"],
)
def test_what_blocks_add_is_checked(
    of_blocks: tuple[int, ...], beside: tuple[int, int], expected: int | None
) -> None:
    """Ten blocks of which four run: the middle two are alike, and nothing else grows."""
    few = FewBlocks(workload(depth=10), (1,), (6,))
    parts = {("forward", 0, i): counted(n) for i, n in enumerate(of_blocks)}
    step = DryStep(parts={None: counted(beside[1]), **parts}, weights=[], blocks=[], stretches={})
    alone = beside[0] + of_blocks[0] + of_blocks[3] - 3
    base = DryStep(parts={None: counted(alone)}, weights=[], blocks=[], stretches={})
    total = few.extrapolated(base, step)
    assert (total and total.kernels.total()) == expected


@pytest.mark.parametrize("strategy", ["dsp", "ring"])
def test_one_pass_counts_kernels_and_memory(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all blocks run anyway, for their memory, their kernels are those of few blocks."""
    deep = workload(optimizer="adamw")
    both = work(deep, load(strategy), 4, with_memory=True)
    assert both == replace(work(deep, load(strategy), 4), memory=both.memory)
    monkeypatch.setattr(trace, "runs_whole", lambda *_: False)
    assert work(deep, load(strategy), 4, with_memory=True) == both


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_memory_of_shared_weights_is_that_of_all_blocks(
    zero: int, checkpointing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few blocks tell it where each is a unit of its own."""
    deep = workload(depth=9, zero=zero, checkpointing=checkpointing, optimizer="adamw")
    few = work(deep, load("ulysses"), 4, with_memory=True)
    monkeypatch.setattr(trace, "needs_all", lambda *_: True)
    assert work(deep, load("ulysses"), 4, with_memory=True) == few


class Calls(TorchDispatchMode):
    """Counts operations, views too."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_calls_are_those_of_a_step_with_data() -> None:
    """Those that pack gradients are counted, too, and what blocks that do not run would call."""
    deep, counted = workload(), Calls()
    step = Step(load("dsp").on(deep, 1), silent_transports(0, 1), torch.device("cpu"))
    given = step.seeded_inputs()
    with counted:
        step(*given)
    assert work(deep, load("dsp"), 1, device="cpu").calls == counted.count


def test_kernels_behind_a_message() -> None:
    """A ring computes a block while the next is under way. Nothing hides DSP's switch in forward,
    unless it goes in chunks; in backward the gradients of weights do."""
    names = "ring", "dsp", "dsp:chunks=2"
    ring, dsp, in_chunks = (work(workload(), load(name), 4) for name in names)
    hidden = [m for m in ring.messages if m.phase == "forward" and m.behind]
    assert {kernel.kind for m in hidden for kernel in m.behind} >= {"attention", "elementwise"}
    for name, is_hidden in ((dsp, False), (in_chunks, True)):
        forward = [m for m in name.messages if m.phase == "forward"]
        assert any(message.behind for message in forward) == is_hidden
    assert any(message.behind for message in dsp.messages if message.phase == "backward")


def test_the_optimizer_reads_and_writes_each_weight() -> None:
    """AdamW adds one launch, of seven passes over the weights."""
    plain, optimized = (
        work(workload(optimizer=name), load("dsp"), 4) for name in ("none", "adamw")
    )
    ((update, times),) = set(optimized.kernels.items()) - set(plain.kernels.items())
    sums = sum(m.sent_bytes for m in plain.messages if m.phase == "gradients")
    assert (times, update.phase, update.moved_bytes) == (1, "gradients", 7 * sums / 2 * 4 / 3)


def test_a_rank_that_does_not_exist(golden: Golden) -> None:
    """The sentence names it."""
    with pytest.raises(Failure) as refused:
        work(workload(), load("dsp"), 4, 4)
    golden(refused.value)


def test_a_strategy_that_cannot_run() -> None:
    """Its own sentence is the error."""
    with pytest.raises(Failure, match="heads"):
        work(workload(), load("ulysses"), 8)


def test_any_rank_of_many() -> None:
    """A rank of 1,000 is a matter of milliseconds, and sends what is predicted."""
    wide = workload(axes={"time": 1001, "space": 1000})
    last, first = (work(wide, load("dsp"), 1000, rank) for rank in (999, None))
    assert last.mesh == first.mesh == (("sequence", 1000),)
    assert 0 < last.sent_bytes < first.sent_bytes


def test_which_sum_of_gradients_leaves_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of buckets in the order of backward the one with the first layer's weights, once."""
    monkeypatch.setattr(trace, "fill_buckets", partial(fill_buckets, bucket_bytes=2**14))
    done = work(workload(mode="train"), load("dsp"), 4)
    sums = {m: n for m, n in done.messages.items() if m.phase == "gradients"}
    assert sum(sums.values()) > 2
    assert sum(n for m, n in sums.items() if m.is_last) == 1
