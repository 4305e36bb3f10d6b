"""How much of an attention the slowest rank computes, counted in what its kernels are given."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch

from spbench.comm.fake import silent_transports
from spbench.layers.dispatch_modes import WatchingMode
from spbench.strategies.registry import load
from spbench.worker.step import Step
from spbench.workload.catalogue import find, with_settings

RANKS = 4
SETTINGS = ["heads=14", "kv_heads=14", "head_dim=128", "hidden=5376", "batch=1"]
SETTINGS += ["axes={space: 16}", "block=[{attention: space, alone: true}]"]
ALONE = with_settings(find("attention-alone-2d", "verify"), SETTINGS)
"""14 heads of 128 and nothing else."""


class ScoresSeen(WatchingMode):
    """Counts the scores that kernels of attention compute: heads x queries x keys."""

    def __init__(self) -> None:
        super().__init__()
        self.forward = self.backward = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "attention" in op.__name__:
            is_backward = "backward" in op.__name__
            q, k = args[is_backward:][:2]  # behind the gradient of the output
            count = q[..., 0].numel() * k.shape[-2]
            self.forward += count * (not is_backward)
            self.backward += count * is_backward
        return op(*args, **(kwargs or {}))


def most_scores(strategy: str) -> tuple[int, int]:
    """The slowest rank's, in forward and in backward."""
    counts = []
    for rank in range(RANKS):
        step = Step(
            load(strategy).on(ALONE, RANKS), silent_transports(rank, RANKS), torch.device("cpu")
        )
        with ScoresSeen() as seen:
            step(*step.seeded_inputs())
        counts.append((seen.forward, seen.backward))
    return max(counts)


@pytest.mark.parametrize("across", ["kv-gather", "ring", "attention-2d"])
def test_heads_that_do_not_divide_cost_a_seventh_more(across: str) -> None:
    """14 heads on 4 ranks: the slowest has 4 under Ulysses, where two groups of 7 heads leave each
    rank what 3.5 heads are: 8/7, in forward and in backward."""
    evenly = most_scores(f"usp:ulysses=2:across={across}")
    assert evenly == (14 * 16**2 // RANKS,) * 2
    for by_heads, even in zip(most_scores("ulysses"), evenly, strict=True):
        assert Fraction(by_heads, even) == Fraction(8, 7)
