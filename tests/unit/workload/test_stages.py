"""Stages of a pipeline: blocks in order, the busiest with as few operations as can be."""

from itertools import combinations, pairwise

import pytest

from spbench.workload.catalogue import find
from spbench.workload.flops import block_flops, forward_flops
from spbench.workload.stages import Stages, balanced


@pytest.mark.parametrize("costs", [[1, 1, 1, 2], [5, 1, 1, 1, 1], [3, 3, 1, 9, 2, 2], [1]])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_no_other_cut_is_better(costs: list[int], parts: int) -> None:
    """Against all cuts."""
    found = balanced(costs, parts)
    assert [n for each in found for n in each] == [*range(len(costs))]

    def most(ends: tuple[int, ...]) -> int:
        return max(sum(costs[a:b]) for a, b in pairwise((0, *ends, len(costs))))

    best = min(map(most, combinations(sorted([*range(len(costs) + 1)] * parts), parts - 1)))
    assert max(sum(costs[n] for n in each) for each in found) == best


def test_fewer_blocks_than_stages() -> None:
    """As in a reduced workload: the first stages only pass on."""
    assert [*map(len, balanced([1, 1], 4))] == [0, 0, 1, 1]


def test_blocks_make_up_a_forward() -> None:
    """What is in no block counts to the last one."""
    work = find("flux.1-dev")
    assert sum(block_flops(work)) == forward_flops(work)
    assert len(block_flops(work)) == work.blocks


def test_a_bubble_shrinks_with_microbatches() -> None:
    """(P - 1) / m."""
    work = find("dsp-720m")
    assert Stages.of(work, 4, 12).bubble == Stages.of(work, 4, 6).bubble / 2 == 1 / 4
