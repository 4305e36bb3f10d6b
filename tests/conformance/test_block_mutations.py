"""Defects of attention in blocks of keys are planted, and the gate catches each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.complaints import DIFFERS
from helpers.gate_on_threads import prove, why_wrong
from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.comm.pending import Pending
from spbench.comm.transport import DONE
from spbench.layers import blockwise
from spbench.layers.blockwise import Part, Tile
from spbench.strategies import kv_gather, ring
from spbench.strategies.registry import load
from spbench.workload.catalogue import find, with_settings
from spbench.workload.sharding import Shard
from spbench.workload.workload import Workload

BLOCKWISE = ["ring", "kv-gather"]


def shape(name: str = "axes-2d-uneven", **settings: Any) -> Workload:
    return with_settings(find(name, "verify"), [f"{k}={v}" for k, v in settings.items()])


def caught(strategy: str, ranks: int, work: Workload, sharpness: float = 1.0) -> str:
    """The gate's complaint; an empty text means that the defect got through."""
    return why_wrong(prove(work, load(strategy), ranks, sharpness=sharpness))


def patch_blocks(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[int, Tensor], Tensor | float]
) -> None:
    """``change`` gives what is found in place of the block that arrives at a step of the ring."""
    right = ring.around

    def wrong(mine: Tensor, keys: Shard, comm: Collectives) -> Iterator[tuple[int, Tensor]]:
        for step, (owner, block) in enumerate(right(mine, keys, comm)):
            yield owner, torch.zeros_like(block) + change(step, block)

    monkeypatch.setattr(ring, "around", wrong)


def test_skipped_ring_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """One block of the ring counts for nothing."""
    patch_blocks(monkeypatch, lambda step, block: 0.0 if step == 1 else block)
    assert caught("ring", 3, shape())


def test_stale_ring_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transfer is not waited for: a block is used before it has arrived."""
    patch_blocks(monkeypatch, lambda step, block: block if step == 0 else block.mean())
    assert caught("ring", 2, shape())


def test_gradients_round_the_ring_the_wrong_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """dK and dV go to the previous rank: right at N = 2, wrong from N = 3."""
    right_shift, right_around = Collectives.start_shift, ring.around

    def around(mine: Tensor, keys: Shard, comm: Collectives) -> Iterator[tuple[int, Tensor]]:
        def right(x: Tensor, length: int) -> Pending[Tensor]:
            return right_shift(comm, x, length)

        rightly: Any = SimpleNamespace(rank=comm.rank, size=comm.size, start_shift=right)
        return right_around(mine, keys, rightly)

    def backwards(self: Collectives, x: Tensor, length: int) -> Pending[Tensor]:
        transport: Any = self.transport
        transport._count("p2p", x.nbytes)
        later = (self.rank + 1) % self.size
        came = transport.meeting.exchange(self.rank, [[x]], lambda all_: all_[later][0][0].clone())
        return Pending(DONE, came)

    monkeypatch.setattr(ring, "around", around)
    monkeypatch.setattr(Collectives, "start_shift", backwards)
    even = {"axes": "{time: 6, space: 12}", "dtype": "float64"}
    assert not caught("ring", 2, shape(**even))
    assert "gradient" in caught("ring", 3, shape(**even))


def without_rescaling(total: Part | None, part: Part, row: int = 0) -> Part:
    """Parts are averaged, as if each had seen as much of the whole."""
    if total is not None:
        total.out[:, :, row:].lerp_(part.out.to(total.out.dtype), 0.5)
    return total or part


def in_bfloat16(total: Part | None, part: Part, row: int = 0) -> Part:
    """A sum that is rounded to 16 bits at each block."""
    merged = RIGHT_MERGE(total, part, row)
    return Part(merged.out.bfloat16().to(merged.out.dtype), merged.lse)


def overflowing(total: Part | None, part: Part, row: int = 0) -> Part:
    """The log-sum-exp as lse + log(1 + exp(x)), which is infinite for gaps above 88."""
    if total is None:
        return part
    out, lse = total.out[:, :, row:], total.lse[:, :, row:]
    joint = lse + torch.log(1 + torch.exp(part.lse - lse))
    weights = torch.exp(lse - joint), torch.exp(part.lse - joint)
    out.copy_(weights[0][..., None] * out + weights[1][..., None] * part.out)
    lse.copy_(joint)
    return total


RIGHT_MERGE = blockwise.merge


@pytest.mark.parametrize("wrong", [without_rescaling, in_bfloat16])
@pytest.mark.parametrize(
    ("strategy", "name"), [("ring", "axes-2d-uneven"), ("kv-gather", "causal")]
)
def test_parts_that_are_merged_wrongly(
    monkeypatch: pytest.MonkeyPatch, strategy: str, name: str, wrong: Any
) -> None:
    """Without weights, and with a sum in 16 bits."""
    monkeypatch.setattr(blockwise, "merge", wrong)
    assert caught(strategy, 3, shape(name))


def test_a_merge_that_overflows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right on tame scores, not on sharp ones."""
    work = shape("attention-only")
    monkeypatch.setattr(blockwise, "merge", overflowing)
    assert not caught("ring", 3, work)
    assert "nan" in caught("ring", 3, work, sharpness=8.0)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("strategy", [*BLOCKWISE, "attention-2d"])
def test_a_log_sum_exp_that_begins_too_high(
    monkeypatch: pytest.MonkeyPatch, strategy: str, dtype: str
) -> None:
    """Merging begins with nothing, at a log-sum-exp of -100 in place of minus infinity: right but
    for rows whose scores are all below that."""

    def begins(total: Part | None, part: Part, row: int = 0) -> Part:
        if total is None:
            nothing = torch.zeros_like(part.out, dtype=part.lse.dtype)
            total = Part(nothing, torch.full_like(part.lse, -100.0))
        total.lse.masked_fill_(total.lse.isneginf(), -100.0)  # as attention-2d begins
        return RIGHT_MERGE(total, part, row)

    work = shape("causal-only", dtype=dtype)
    assert not caught(strategy, 2, work, sharpness=8.0)
    monkeypatch.setattr(blockwise, "merge", begins)
    assert not caught(strategy, 2, work)
    assert DIFFERS in caught(strategy, 2, work, sharpness=8.0)


@pytest.mark.parametrize("strategy", BLOCKWISE)
def test_log_sum_exps_of_zero(monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    """A kernel that does not fill them in: backward needs them even where nothing is merged."""
    right = blockwise.attend_block

    def wrong(*given: Any, **how: Any) -> Part:
        part = right(*given, **how)
        return Part(part.out, torch.zeros_like(part.lse))

    monkeypatch.setattr(blockwise, "attend_block", wrong)
    assert caught(strategy, 2, shape())


def test_masked_block_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries that see the keys of later ranks."""

    def wrong(keys: Shard, rank: int, owner: int, causal: bool) -> Tile:
        return Tile(0, keys.sizes[owner], causal and owner == rank)

    monkeypatch.setattr(ring, "tile", wrong)
    assert caught("ring", 3, shape("causal"))


@pytest.mark.parametrize("way", ["by_position", "by_rank"])
def test_gathered_keys_in_another_order(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Zigzag shards, and keys or their gradients taken as they come, or as they lie."""
    monkeypatch.setattr(kv_gather, way, lambda x, keys, dim=0: x)
    complaint = caught("kv-gather", 3, shape("causal"))
    assert "gradient" in complaint if way == "by_rank" else complaint


@pytest.mark.parametrize("factors", [(1, 0.5, 0.5), (1, 1, 1.75), (0.5, 1, 1)])
@pytest.mark.parametrize("strategy", BLOCKWISE)
def test_gradients_of_blocks_off(
    monkeypatch: pytest.MonkeyPatch, strategy: str, factors: tuple[float, ...]
) -> None:
    """Halved, and off by 75 %, in 16 bits."""
    right = blockwise.block_gradients

    def wrong(*given: Any, **how: Any) -> list[Tensor]:
        pairs = zip(right(*given, **how), factors, strict=True)
        return [gradient * factor for gradient, factor in pairs]

    monkeypatch.setattr(blockwise, "block_gradients", wrong)
    assert "gradient" in caught(strategy, 2, shape(dtype="bfloat16"))
