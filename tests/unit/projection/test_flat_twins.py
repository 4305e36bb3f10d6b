"""A video's positions and the same as one axis: projected alike, on any number of ranks."""

from __future__ import annotations

from typing import Any

import pytest

from spbench.projection.dryrun.trace import work
from spbench.strategies.registry import load, places
from spbench.workload.workload import Workload

EVERY = ["time", "height", "width"]


def video(axes: dict[str, int], attended: object) -> Workload:
    """A 14B video DiT of fewer blocks, whose step has no positions, as both forms can say."""
    data: dict[str, Any] = {
        "name": "video",
        "axes": axes,
        "hidden": 5120,
        "heads": 40,
        "depth": 2,
        "block": [{"attention": attended}, {"cross_attention": 512}, {"mlp": 2.7}],
        "qk_norm": "across_heads",
        "modulation": "per_sample",
        "dtype": "bfloat16",
        "mode": "forward",
    }
    return Workload.model_validate(data)


@pytest.mark.parametrize(
    ("axes", "ranks"),
    [
        ({"time": 21, "height": 30, "width": 52}, 24),
        ({"time": 21, "height": 30, "width": 52}, 64),
        ({"time": 21, "height": 60, "width": 45}, 8),
        ({"time": 21, "height": 60, "width": 45}, 64),
    ],
)
@pytest.mark.parametrize("strategy", places())
def test_cut_as_one_axis_is(strategy: str, axes: dict[str, int], ranks: int) -> None:
    """Kernels, messages and peak memory are the same, and so is what cannot run."""
    apart = video(axes, EVERY)
    one = video({"tokens": apart.tokens}, "tokens")
    chosen = load(strategy)
    declined = [chosen.declines(each, ranks) for each in (apart, one)]
    assert (declined[0] is None) == (declined[1] is None)
    if declined[0] is None:
        found, wanted = (work(each, chosen, ranks, with_memory=True) for each in (apart, one))
        assert found == wanted


def test_an_axis_that_is_named_is_cut_by_whole_slices() -> None:
    """52 columns on 24 ranks are 3 on the first: 1,890 positions, where 1,365 are its share."""
    apart = video({"time": 21, "height": 30, "width": 52}, EVERY)
    by_name, in_a_row = (
        work(apart, load(name), 24) for name in ("ulysses:shard-axis=width", "ulysses")
    )
    # of products, which go by positions alone; cross-attention's context is whole on every rank
    assert 1.3 < by_name.flops("gemm") / in_a_row.flops("gemm") < 1890 / 1365
