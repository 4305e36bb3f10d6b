"""The gate is itself tested: each defect that others have shipped is planted and caught.

Every mutation keeps shapes right, as those defects did. The unmutated strategies pass the
same gates (test_conformance), so what is caught is the mutation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from proof import prove, why_wrong
from torch import Tensor

from spbench.comm import collectives
from spbench.comm.collectives import Collectives
from spbench.model import sublayers
from spbench.strategies import kernel, megatron_sp, rsa, ulysses
from spbench.strategies.kernel import attend_whole, fold
from spbench.strategies.linear import product
from spbench.strategies.registry import load
from spbench.workload.catalogue import find
from spbench.workload.load import with_settings
from spbench.workload.shards import Shard
from spbench.workload.workload import Workload


def shape(name: str = "axes-2d-uneven", **settings: Any) -> Workload:
    return with_settings(find(name, "verify"), [f"{k}={v}" for k, v in settings.items()])


def caught(strategy: str, ranks: int, work: Workload, sharpness: float = 1.0) -> str:
    """What the gate says of it; an empty text means that the defect got through."""
    return why_wrong(prove(work, load(strategy), ranks, sharpness=sharpness))


def scale_ring_gradients(monkeypatch: pytest.MonkeyPatch, factors: tuple[float, ...]) -> None:
    right = rsa._Rings.backward

    def wrong(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        found = right(ctx, grad)
        scaled = (g * factor for g, factor in zip(found, factors, strict=False))
        return *scaled, *found[len(factors) :]

    monkeypatch.setattr(rsa._Rings, "backward", staticmethod(wrong))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_gradients_divided_by_ranks(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    """dQ, dK, dV over N: an absolute tolerance of 1e-2 would have let it pass."""
    scale_ring_gradients(monkeypatch, (1 / 3, 1 / 3, 1 / 3))
    assert "gradient" in caught("rsa", 3, shape(dtype=dtype))


@pytest.mark.parametrize("factor", [0.5, 1.75, 3.0])
def test_only_dk_and_dv_off(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """A halved gradient, and dK, dV off by 75 to 200 %."""
    scale_ring_gradients(monkeypatch, (1.0, factor, factor))
    assert "gradient" in caught("rsa", 2, shape(dtype="bfloat16"))


def test_softmax_scaled_by_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """sqrt(hidden) in place of sqrt(head size)."""
    right = rsa.RingSelfAttention.attend

    def wrong(self: Any, q: Tensor, *rest: Any) -> Tensor:
        return right(self, q * (q.shape[-1] / (q.shape[-1] * q.shape[-2])) ** 0.5, *rest)

    monkeypatch.setattr(rsa.RingSelfAttention, "attend", wrong)
    assert caught("rsa", 2, shape())


def test_softmax_that_overflows(monkeypatch: pytest.MonkeyPatch) -> None:
    """exp without subtracting the maximum first: right on tame scores, NaN on sharp ones."""

    def careless(scores: Tensor, dim: int) -> Tensor:
        return scores.exp() / scores.exp().sum(dim, keepdim=True)

    monkeypatch.setattr(rsa.torch, "softmax", careless)
    work = shape("attention-only")
    assert not caught("rsa", 2, work)
    assert "nan" in caught("rsa", 2, work, sharpness=8.0)


def test_accumulated_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products with v rounded to 16 bits as each is added up: the error grows with length.

    With as few roundings as 32 ring blocks the harm is under 10 % of what one device's own
    rounding does, and passes (docs/decisions/0005).
    """

    def lossy(row: Tensor, ringed: Tensor, shard: Shard, comm: Collectives) -> Tensor:
        total = torch.zeros(*row.shape[:-1], ringed.shape[-1], dtype=row.dtype)
        for owner, block in comm.ring(ringed, shard):
            keys = fold(block, shard.dim)
            for i in range(keys.shape[-2]):
                at = shard.offset(owner) + i
                total = total + row[..., at : at + 1] * keys[..., i : i + 1, :]
        return total

    axes = "{time: 2, space: 1024}"
    work = shape("attention-only", dtype="bfloat16", axes=axes, block="[{attention: space}]")
    assert not caught("rsa:shard-axis=space", 2, work)
    monkeypatch.setattr(rsa, "_row_times", lossy)
    assert caught("rsa:shard-axis=space", 2, work)


def test_context_heads_reinterpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cross-attention that reads (Z, D) as (D, Z): wrong values, right shapes."""

    def wrong(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mixed = q.transpose(-1, -2).reshape(q.shape)
        return kernel.attend_context(mixed, k, v)

    right_reference = sublayers.attend_context
    calls = {"n": 0}

    def only_when_sharded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        calls["n"] += 1
        whole = q.shape[1:3] == (5, 13)
        return right_reference(q, k, v) if whole else wrong(q, k, v)

    monkeypatch.setattr(sublayers, "attend_context", only_when_sharded)
    assert caught("ulysses", 3, shape())
    assert calls["n"]


@pytest.mark.parametrize("strategy", ["dsp", "ulysses", "megatron-sp"])
def test_rows_in_the_wrong_order(monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    """A gather or a switch that merges (batch, shard) as if the batch were one."""

    def shuffled(whole: Tensor, sizes: tuple[int, ...], dim: int) -> Tensor:
        parts = [part.reshape(-1) for part in whole.split(list(sizes), dim)]
        return torch.cat(parts).view(whole.shape)

    exchange, gather = Collectives.exchange, Collectives.start_all_gather

    def wrong_switch(self: Collectives, xs: Any, before: Shard, after: Shard) -> list[Tensor]:
        found = exchange(self, xs, before, after)
        return [shuffled(x, before.sizes, before.dim) for x in found]

    def wrong_gather(self: Collectives, x: Tensor, shard: Shard) -> Any:
        whole = gather(self, x, shard).wait()
        return collectives.Pending(_Nothing(), shuffled(whole, shard.sizes, shard.dim))

    monkeypatch.setattr(Collectives, "exchange", wrong_switch)
    monkeypatch.setattr(Collectives, "start_all_gather", wrong_gather)
    assert caught(strategy, 2, shape(batch=3))


def test_attention_over_too_many_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of the other axis attended too: right shapes, several times the work."""

    def wrong(q: Tensor, k: Tensor, v: Tensor, along: int) -> Tensor:
        flat = [x.flatten(1, 2) for x in (q, k, v)]
        return attend_whole(*flat, 1).view(q.shape)

    monkeypatch.setattr(ulysses, "attend_whole", wrong)
    assert caught("ulysses", 2, shape())


def test_bias_added_before_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bias of a row-cut projection summed N times."""

    def wrong(self: Any, x: Tensor, shard: Shard) -> Tensor:
        return self.comm.reduce_scatter(product(x, self.weight, self.bias, self.inner), shard)

    assert not caught("megatron-sp", 1, shape())
    monkeypatch.setattr(megatron_sp.RowCut, "forward", wrong)
    assert "output" in caught("megatron-sp", 2, shape(mode="forward"))


def test_output_equal_but_gradients_different(monkeypatch: pytest.MonkeyPatch) -> None:
    """A switch that forgets its way back: the forward pass shows nothing."""
    right = collectives._Switch.backward

    def wrong(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        found = right(ctx, *grads)
        return *found[:3], *(g.roll(1, ctx.before.dim) for g in found[3:])

    monkeypatch.setattr(collectives._Switch, "backward", staticmethod(wrong))
    assert not caught("dsp", 2, shape(mode="forward"))
    assert "gradient" in caught("dsp", 2, shape())


def test_remainder_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions beyond the last whole multiple of N are left out of attention."""

    def wrong(q: Tensor, k: Tensor, v: Tensor, along: int) -> Tensor:
        kept = k.shape[along] // 3 * 3
        return attend_whole(q, k.narrow(along, 0, kept), v.narrow(along, 0, kept), along)

    monkeypatch.setattr(ulysses, "attend_whole", wrong)
    assert not caught("ulysses", 3, shape(axes="{time: 6, space: 12}"))
    assert caught("ulysses", 3, shape())


def test_gradients_round_the_ring_the_wrong_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """dK and dV delivered to the mirrored rank: right at N = 2, wrong from N = 3."""

    def wrong(
        whole: Tensor, like: Tensor, shard: Shard, comm: Collectives, scatter: bool
    ) -> collectives.Pending:
        partial = kernel.unfold(whole, like, shard.dim).contiguous()
        comm.all_reduce_(partial).wait()
        mirrored = -comm.rank % comm.size
        mine = partial.narrow(shard.dim, shard.offset(mirrored), shard.sizes[comm.rank])
        return collectives.Pending(_Nothing(), mine)

    monkeypatch.setattr(rsa, "_start_sum", wrong)
    even = {"axes": "{time: 6, space: 12}", "dtype": "float64"}
    assert not caught("rsa", 2, shape(**even))
    assert "gradient" in caught("rsa", 3, shape(**even))


def patch_ring(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[int, int, Tensor], tuple[int, Tensor]]
) -> None:
    right = Collectives.ring

    def wrong(self: Collectives, x: Tensor, shard: Shard) -> Any:
        for step, (owner, block) in enumerate(right(self, x, shard)):
            yield change(step, owner, block)

    monkeypatch.setattr(Collectives, "ring", wrong)


def test_skipped_ring_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """One block of the ring counts for nothing."""
    patch_ring(monkeypatch, lambda step, owner, x: (owner, x * 0 if step == 1 else x))
    assert caught("rsa", 3, shape())


def test_stale_ring_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transfer is not waited for: a block is used before it has arrived."""
    last: dict[str, Tensor] = {}

    def stale(step: int, owner: int, block: Tensor) -> tuple[int, Tensor]:
        shown = block if step == 0 else torch.zeros_like(block) + block.mean()
        last["block"] = block
        return owner, shown

    patch_ring(monkeypatch, stale)
    assert caught("rsa", 2, shape())


def test_swapped_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads shared out in the wrong order on the way back."""
    right = Collectives.exchange

    def wrong(self: Collectives, xs: Any, before: Shard, after: Shard) -> list[Tensor]:
        found = right(self, xs, before, after)
        swaps = len(set(before.sizes)) == 1 and before.length == xs[0].shape[before.dim] * self.size
        return [x.flip(before.dim) for x in found] if swaps else found

    monkeypatch.setattr(Collectives, "exchange", wrong)
    assert caught("ulysses", 2, shape("axes-2d"))


@pytest.mark.parametrize("strategy", ["dsp", "ulysses", "megatron-sp", "rsa"])
def test_gradient_sum_forgotten(monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    """Replicated weights keep their own rank's gradient; so do the counted bytes show it."""
    monkeypatch.setattr(Collectives, "all_reduce_", lambda self, x: _Nothing())
    assert "gradient" in caught(strategy, 2, shape())


class _Nothing:
    def wait(self) -> None:
        return None


def test_one_extra_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right values, but more bytes than the strategy says: caught by the count alone."""
    right = ulysses.Ulysses.attend

    def wasteful(
        self: Any, q: Tensor, k: Tensor, v: Tensor, along: int, shard: Shard, comm: Any
    ) -> Tensor:
        if along == shard.dim:
            parts = [[part] for part in q.new_zeros(2).split(1)]
            comm.transport.all_to_all(parts, parts, 0).wait()
        return right(self, q, k, v, along, shard, comm)

    monkeypatch.setattr(ulysses.Ulysses, "attend", wasteful)
    said = caught("ulysses", 2, shape())
    assert "all_to_all sent" in said
    assert "predicted" in said


def test_a_strategy_that_does_not_communicate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention over one's own shard only: cheap, plausible, wrong."""
    monkeypatch.setattr(
        ulysses.Ulysses,
        "attend",
        lambda self, q, k, v, along, shard, comm: attend_whole(q, k, v, along),
    )
    assert caught("ulysses", 2, shape(dtype="bfloat16"))


def test_one_wrong_rank_is_not_diluted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault on one of eight ranks is as large as if it were on all."""
    right = Collectives.exchange

    def wrong(self: Collectives, xs: Any, before: Shard, after: Shard) -> list[Tensor]:
        found = right(self, xs, before, after)
        return [x * 1.5 for x in found] if self.rank == 7 else found

    monkeypatch.setattr(Collectives, "exchange", wrong)
    work = shape("axes-2d", axes="{time: 16, space: 16}", dtype="bfloat16", mode="forward")
    outcomes = prove(work, load("dsp"), 8)
    assert "output" in (outcomes[7].why_wrong() or "")
