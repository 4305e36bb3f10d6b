"""How RSA computes: a product for each ring and each sum, whatever the number of ranks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from helpers.gate_on_threads import prove, why_wrong
from torch.utils._python_dispatch import TorchDispatchMode

from spbench.comm.fake import silent_transports
from spbench.strategies.registry import load
from spbench.worker.step import Step
from spbench.workload.catalogue import find, with_settings

PRODUCTS = ("aten.bmm", "aten.baddbmm", "aten.baddbmm_")


class Products(TorchDispatchMode):
    """Counts batched products."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func.overloadpacket)] += 1
        return func(*args, **kwargs or {})


def products(block: str, ranks: int) -> int:
    """Batched products of one rank's step, and of no other part of it."""
    settings = [f"block={block}", "axes={time: 24, space: 5}", "depth=1", "dtype=float64"]
    work = with_settings(find("attention-only", "verify"), settings)
    rsa = load("rsa:shard-axis=time")
    step = Step(rsa.on(work, ranks), silent_transports(1, ranks), torch.device("cpu"))
    inputs = step.seeded_inputs()
    with Products() as seen:
        step(*inputs)
    return sum(seen.counts[name] for name in PRODUCTS)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_product_for_each_ring_and_each_sum(ranks: int) -> None:
    """Scores and output; in backward the gradients of the scores, of q, of k and of v."""
    assert products("[{attention: time}]", ranks) == 6


def test_a_mask_takes_a_product_for_each_tile() -> None:
    """Fewer than a product for each rank's block would be, on eight ranks."""
    masked = products("[{attention: time, causal: true}]", 8)
    assert 6 < masked <= 6 * 8


@pytest.mark.parametrize(
    ("strategy", "length", "ranks"),
    [("rsa", 2, 2), ("rsa", 6, 4), ("rsa", 7, 5), ("rsa:reduce-scatter", 9, 6)],
)
def test_a_masked_sequence_of_few_positions(strategy: str, length: int, ranks: int) -> None:
    """A rank whose rows need a single product, of fewer keys than there are."""
    settings = ["block=[{attention: time, causal: true}]", f"axes={{time: {length}, space: 1}}"]
    work = with_settings(find("attention-only", "verify"), [*settings, "depth=1", "dtype=float64"])
    assert not why_wrong(prove(work, load(strategy), ranks))
