"""Seeded inputs: what the ranks hold together is what one device holds, for every cut."""

from __future__ import annotations

import pytest
import torch

from spbench.model import inputs
from spbench.model.inputs import named_tensor
from spbench.workload.catalogue import find, with_settings
from spbench.workload.sharding import Shard

WORK = with_settings(find("axes-2d", "verify"), ["axes={time: 150, space: 6}"])
CUTS = [Shard.even(1, 150, 4), Shard.even(2, 6, 4), Shard.causal(1, 150, 3), Shard.causal(2, 6, 2)]


@pytest.mark.parametrize("cut", CUTS)
def test_parts_are_the_whole(cut: Shard) -> None:
    """Cut along the first axis, which it is made along, or another one, in one run or two."""
    whole = inputs.seeded(WORK, seed=3).x
    for rank, runs in enumerate(cut.runs):
        part = inputs.seeded(WORK, seed=3, cuts={"x": cut}, rank=rank).x
        assert torch.equal(part, torch.cat([whole.narrow(cut.dim, *r) for r in runs], cut.dim))


def test_no_rank_makes_a_whole_activation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece has three of 150 positions, and pieces of other ranks are not made at all."""
    made: list[tuple[int, ...]] = []

    def noted(name: str, shape: tuple[int, ...], *rest: object) -> torch.Tensor:
        made.append(shape)
        return named_tensor(name, shape, 0)

    monkeypatch.setattr(inputs, "named_tensor", noted)
    inputs.seeded_part(
        "x",
        (1, 150, 6, 8),
        0,
        device=torch.device("cpu"),
        dtype=torch.bfloat16,
        held=inputs.held_by(3, CUTS[0], None),
    )
    assert len(made) == 13
    assert {shape[1] for shape in made} == {3}
