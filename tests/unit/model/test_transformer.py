"""Blocks of the transformer as modules: called, recomputed and named one by one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from spbench.comm.fake import silent_transports
from spbench.model.sublayers import SelfAttention
from spbench.worker.reference import OneDevice
from spbench.worker.step import Step
from spbench.workload.catalogue import find, with_settings


def one_step(*settings: str) -> Step:
    work = with_settings(find("checkpointed", "verify"), list(settings))
    return Step(OneDevice().on(work, 1), silent_transports(0, 1), torch.device("cpu"))


@pytest.mark.parametrize(("checkpointing", "calls"), [("none", 1), ("full", 2)])
def test_a_block_is_recomputed_as_a_whole(checkpointing: str, calls: int) -> None:
    """A step calls each block once, and once more in backward under checkpointing."""
    step = one_step(f"checkpointing={checkpointing}", "mode=train")
    called: Counter[nn.Module] = Counter()

    def count(module: nn.Module, given: Any) -> None:
        called[module] += 1

    for block in step.model.blocks.values():
        block.register_forward_pre_hook(count)
    step(*step.seeded_inputs())
    assert [called[block] for block in step.model.blocks.values()] == [calls] * step.workload.depth


@pytest.mark.parametrize(("checkpointing", "calls"), [("none", 1), ("full", 2), ("selective", 2)])
def test_an_attention_is_recomputed_between_its_projections(checkpointing: str, calls: int) -> None:
    """Once more in backward; under selective checkpointing the projections are called once."""
    step = one_step(f"checkpointing={checkpointing}", "mode=train")
    called: Counter[str] = Counter()
    for module in step.model.modules():
        if isinstance(module, SelfAttention):
            for part in (module.core, module.qkv, module.out):
                part.register_forward_pre_hook(lambda part, _: called.update([type(part).__name__]))
    step(*step.seeded_inputs())
    attentions = 2 * step.workload.depth
    assert called["AttentionCore"] == calls * attentions
    projections = calls if checkpointing == "full" else 1
    assert called["WholeLinear"] == 2 * projections * attentions


def test_two_stacks_of_one_block_are_one() -> None:
    """The same weights by name, and the same numbers: blocks of a kind share the condition."""
    one = one_step()
    block = str(one.workload.model_dump(mode="json", by_alias=True)["block"])
    two = one_step(f"stacks=[{{depth: 1, block: {block}}}, {{depth: 2, block: {block}}}]")
    assert two.workload.depth is None and two.workload.blocks == one.workload.depth == 3
    outputs = [step(*step.seeded_inputs()) for step in (one, two)]
    assert torch.equal(*outputs)
    grads = [{name: p.grad for name, p in s.model.named_parameters()} for s in (one, two)]
    assert grads[0].keys() == grads[1].keys()
    assert all(torch.equal(grad, grads[1][name]) for name, grad in grads[0].items())


def test_a_block_holds_its_weights() -> None:
    """Blocks have equal weights by name and shape; what is outside belongs to no block."""
    model = one_step().model
    shapes = [
        {name: p.shape for name, p in block.named_parameters()} for block in model.blocks.values()
    ]
    assert all(each == shapes[0] for each in shapes)
    outside = {name for name, _ in model.named_parameters() if not name.startswith("blocks.")}
    assert {name.partition(".")[0] for name in outside} <= {
        "positions",
        "conditioning",
        "norm",
        "final",
    }
