"""Which of equally cheap axes is sharded."""

from __future__ import annotations

import pytest

from spbench.strategies.registry import load
from spbench.workload.catalogue import find


@pytest.mark.parametrize(
    ("strategy", "axis"),
    [
        ("ring", "space"),
        ("kv-gather", "space"),
        ("attention-2d", "space"),
        ("usp:ulysses=4", "space"),
        ("usp", "time"),
        ("ulysses", "time"),
        ("megatron-sp", "time"),
        ("megatron-sp:tp=2", "time"),
        ("megatron-sp:tp=2:across=ring", "space"),
        ("rsa", "time"),
        ("ring:shard-axis=time", "time"),
    ],
)
def test_queries_that_stay_are_many_in_a_row(strategy: str, axis: str) -> None:
    """Of 64 times and 4,096 places both cost the same bytes. A kernel's tile has 64 queries: of
    eight times a ring's step on an H200 took twice as long as of 512 places."""
    assert set(load(strategy).on(find("dsp-720m"), 8).layout) == {axis}
