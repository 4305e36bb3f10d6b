"""The rank with the most operations is counted, and for memory that with the most bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from helpers.examples import ALL

from spbench.projection.advise.candidates import candidates
from spbench.projection.dryrun.busiest import ranks_to_count
from spbench.projection.dryrun.trace import work
from spbench.projection.dryrun.work import Work
from spbench.strategies.base import Strategy
from spbench.strategies.registry import in_mesh, load, places
from spbench.workload.catalogue import find
from spbench.workload.config_names import names
from spbench.workload.mesh import CaseMesh
from spbench.workload.workload import Workload

UNEVEN = (3, 5, 6, 7, 12)
"""Numbers of ranks by which few heads and lengths divide."""
CAUSAL = [name for name in names("workloads") if any(a.causal for a in find(name).attentions)]
BY_DAY = [
    ("llama3-8b-small", 3, ""),
    ("llama3-8b-small", 6, "megatron-sp:tp=3"),
    ("llama3-8b-small", 6, "usp:ulysses=3:across=ring"),
    ("llama3-8b-small", 7, "megatron-sp"),
    ("qwen3-32b-small", 7, "kv-gather"),
    ("gpt-7b-small", 6, "kv-gather"),
    ("gpt-7b-small", 6, "attention-2d"),
    ("glm-4.5-air-small", 5, "ulysses"),
    ("gpt-oss-20b-small", 6, "ring"),
    ("aurora-small", 5, ""),
]
"""Workload, ranks and strategy; blank: every one. Of most cases the old choice was another."""
UNCAUSAL = [
    ("open-sora-1.2-480p-small", 4),
    ("axial-weather-small", 5),
    ("hunyuan-like-small", 6),
    ("evoformer-pair-small", 3),
]
"""Lengths that do not divide, several axes, text, a bias."""


def running(workload: Workload, ranks: int) -> Iterator[str]:
    """Every strategy that runs, with each size of its groups."""
    for name in candidates(places(), workload, ranks):
        strategy = load(name)
        if not (strategy.misfit(workload) or strategy.why_not(workload, ranks)):
            yield name


def check(workload: Workload, strategy: Strategy, ranks: int, **how: Any) -> None:
    """Holds what is counted against the counts of all ranks."""
    known: dict[Any, Any] = {}
    asked = {"with_memory": True, "known": known, **how}
    every = [work(workload, strategy, ranks, rank, **asked) for rank in range(ranks)]
    counted = work(workload, strategy, ranks, **asked)
    assert counted.operations == max(each.operations for each in every)
    assert peak(counted) == max(map(peak, every))


def peak(counted: Work) -> int:
    assert counted.memory is not None
    return counted.memory.peak


@pytest.mark.parametrize(("name", "ranks", "strategy"), BY_DAY)
def test_the_counted_rank_under_a_mask(name: str, ranks: int, strategy: str) -> None:
    """Whatever heads and positions do not divide, no rank has more than the one that counts."""
    shape = find(name)
    for each in [strategy] if strategy else running(shape, ranks):
        check(shape, load(each), ranks)


@pytest.mark.long
@pytest.mark.parametrize("ranks", UNEVEN)
@pytest.mark.parametrize("name", CAUSAL)
def test_the_counted_rank_of_every_causal_workload(name: str, ranks: int) -> None:
    """The same for each causal workload of the catalogue, and every strategy that runs."""
    shape = find(name)
    for each in running(shape, ranks):
        check(shape, load(each), ranks)


@pytest.mark.parametrize(("name", "ranks"), UNCAUSAL)
def test_the_counted_rank_without_a_mask(name: str, ranks: int) -> None:
    """Where lengths or heads do not divide, with switches of axes, text and biases."""
    shape = find(name)
    every = list(running(shape, ranks))
    for each in every if ALL else every[::4]:
        check(shape, load(each), ranks)


def test_the_counted_rank_of_groups_of_branches() -> None:
    """Groups are alike: the first has the rank that counts."""
    guided = find("llama3-8b-small").model_copy(update={"guidance": 2})
    check(guided, in_mesh("ulysses", CaseMesh(cfg=2)), 6)


def test_as_on_a_cpu() -> None:
    """A CPU's attention takes room of its own."""
    check(find("llama3-8b-small"), load("kv-gather"), 3, device="cpu")


@pytest.mark.parametrize(
    ("strategy", "times"), [("megatron-sp:tp=3", 1.375), ("megatron-sp", 1.75), ("ulysses", 1.147)]
)
def test_how_much_busier_than_the_last_rank(strategy: str, times: float) -> None:
    """8 key heads on 6 ranks: the last, whose positions have the most scores, has one of them."""
    shape = find("llama3-8b")
    counted, last = (work(shape, load(strategy), 6, rank) for rank in (None, 5))
    assert counted.operations / last.operations == pytest.approx(times, abs=0.001)


@pytest.mark.parametrize("name", ["dsp-3b", "flux.1-dev", "hunyuan-like"])
def test_one_rank_counts_where_all_are_alike(name: str) -> None:
    """Lengths and heads that divide, without a mask, take no more dry runs than one."""
    shape = find(name)
    for each in running(shape, 8):
        assert ranks_to_count(load(each).on(shape, 8))[0] == 0
        if load(each).on(shape, 8).shard(load(each).on(shape, 8).layout[0]).is_even:
            assert len(ranks_to_count(load(each).on(shape, 8))) == 1, each


def test_few_of_a_thousand_ranks_are_counted() -> None:
    """Under a mask those at the ends of what is alike."""
    shape = find("llama3-8b")
    names = "ring", "kv-gather", "attention-2d", "usp:ulysses=8:across=attention-2d"
    assert [len(ranks_to_count(load(each).on(shape, 1024))) for each in names] == [4, 4, 16, 27]
