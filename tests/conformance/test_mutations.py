"""The gate is itself tested: each defect that others have shipped is planted and caught.

Every mutation keeps shapes right, as those defects did. The strategies without it pass the
gate on these shapes (test_conformance), so the gate catches the mutation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.complaints import DIFFERS
from helpers.gate_on_threads import arrived, prove, why_wrong
from torch import Tensor

from spbench.comm import collectives
from spbench.comm.collectives import Collectives
from spbench.comm.fake import SilentTransport
from spbench.comm.packing import Cut
from spbench.comm.pending import Pending, RingBlocks
from spbench.comm.transport import DONE
from spbench.layers import heads, linear
from spbench.layers.attention import Scores, attend_whole
from spbench.layers.rsa_rows import Band, Rows
from spbench.model import streams, sublayers
from spbench.strategies import megatron_tp, rsa, ulysses
from spbench.strategies.registry import load
from spbench.workload.catalogue import find, with_settings
from spbench.workload.sharding import Shard
from spbench.workload.workload import Workload


def shape(name: str = "axes-2d-uneven", **settings: Any) -> Workload:
    return with_settings(find(name, "verify"), [f"{k}={v}" for k, v in settings.items()])


def caught(strategy: str, ranks: int, work: Workload, sharpness: float = 1.0) -> str:
    """The gate's complaint; an empty text means that the defect got through."""
    return why_wrong(prove(work, load(strategy), ranks, sharpness=sharpness))


def scale_ring_gradients(monkeypatch: pytest.MonkeyPatch, factors: tuple[float, ...]) -> None:
    right = rsa._Rings.backward

    def wrong(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        grads = right(ctx, grad)
        scaled = (g * factor for g, factor in zip(grads, factors, strict=False))
        return *scaled, *grads[len(factors) :]

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
    right = rsa.RingPlan.attend

    def wrong(self: Any, q: Tensor, *rest: Any) -> Tensor:
        return right(self, q * (q.shape[-1] / (q.shape[-1] * q.shape[-2])) ** 0.5, *rest)

    monkeypatch.setattr(rsa.RingPlan, "attend", wrong)
    assert caught("rsa", 2, shape())


def test_a_norm_of_a_ranks_own_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many squares as all heads have, but of its own alone: each byte is sent, for nothing."""
    right = Collectives.all_reduce

    def wrong(self: Collectives, x: Tensor) -> Tensor:
        return 0 * right(self, x) + self.size * x

    monkeypatch.setattr(Collectives, "all_reduce", wrong)
    assert "differs" in caught("megatron-sp", 2, shape("stacks"))


def test_softmax_that_overflows(monkeypatch: pytest.MonkeyPatch) -> None:
    """exp without subtracting the maximum first: right on tame scores, NaN on sharp ones."""

    def careless(scores: Tensor, dim: int, out: Tensor) -> Tensor:
        return out.copy_(scores.exp() / scores.exp().sum(dim, keepdim=True))

    monkeypatch.setattr(rsa.torch, "softmax", careless)
    work = shape("attention-only")
    assert not caught("rsa", 2, work)
    assert "nan" in caught("rsa", 2, work, sharpness=8.0)


def test_accumulated_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products with v rounded to 16 bits as each is added up: the error grows with length.

    With as few roundings as 32 ring blocks the harm is under 10 % of what one device's own
    rounding does, and passes (docs/decisions/0005).
    """

    def lossy(self: Rows, row: Tensor, keys: Tensor) -> Tensor:
        total = torch.zeros(*row.shape[:-1], keys.shape[-1], dtype=row.dtype)
        for at, key in enumerate(keys):
            total = total + row[..., at : at + 1] * key[:, None]
        return total

    long = {"axes": "{time: 2, space: 1024}", "block": "[{attention: space}]"}
    work = shape("attention-only", dtype="bfloat16", **long, hidden=16, heads=1, batch=1)
    assert not caught("rsa:shard-axis=space", 2, work)
    monkeypatch.setattr(Rows, "times_keys", lossy)
    assert caught("rsa:shard-axis=space", 2, work)


TWIN = "in the float32 copy of the step "


def test_a_position_zeroed_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """One position of many is less than 16 bits round; the float32 copy of the step shows it."""

    def wrong(q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> Tensor:
        kept = torch.ones(q.shape[1:3], dtype=q.dtype)
        kept[0, 5] = 0
        return attend_whole(q, k, v, scores) * kept[..., None, None]

    work = shape("axes-2d", dtype="bfloat16", axes="{time: 4, space: 512}", depth=1)
    (right, *_) = prove(work, load("ulysses"), 2)
    assert why_wrong([right]) == ""
    assert 0 < right.figures["float32_error"] < 1e-5 < right.figures["tolerance"]
    monkeypatch.setattr(heads, "attend_whole", wrong)
    assert caught("ulysses", 2, work).startswith(TWIN)


@pytest.mark.parametrize("mode", ["train", "forward"])
@pytest.mark.parametrize("name", ["axes-2d", "attention-only", "causal"])
def test_attention_10_percent_off_in_16_bits_alone(
    monkeypatch: pytest.MonkeyPatch, name: str, mode: str
) -> None:
    """Where float32 is right: what is left are the tolerances of 16 bits, four times one device's
    own rounding. 2 % is less than that, and 5 % is 0.8 to 2.1 of it: kernels of a processor with
    AVX-512 round less than those of one with AVX2."""

    def wrong(q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> Tensor:
        return attend_whole(q, k, v, scores) * (1.1 if q.dtype == torch.bfloat16 else 1.0)

    work = shape(name, dtype="bfloat16", mode=mode)
    assert not caught("ulysses", 2, work)
    monkeypatch.setattr(heads, "attend_whole", wrong)
    complaint = caught("ulysses", 2, work)
    assert DIFFERS in complaint and TWIN not in complaint


def test_a_ring_that_adds_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few roundings of a sum in 16 bits hide in those of the workload's own type."""

    def lossy(self: Rows, row: Tensor, keys: Tensor) -> Tensor:
        parts = zip(row.chunk(4, -1), keys.transpose(0, 1).chunk(4, -2), strict=True)
        total = torch.zeros((), dtype=torch.bfloat16)
        for some, of_them in parts:
            total = total + (some @ of_them).bfloat16()
        return total.to(row.dtype)

    work = shape("attention-only", dtype="bfloat16")
    assert not caught("rsa", 3, work)
    monkeypatch.setattr(Rows, "times_keys", lossy)
    assert caught("rsa", 3, work).startswith(TWIN)


def test_cross_attention_heads_reinterpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cross-attention that reads (Z, D) as (D, Z): wrong values, right shapes."""

    def wrong(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mixed = q.transpose(-1, -2).reshape(q.shape)
        return right_reference(mixed, k, v)

    right_reference = sublayers.cross_attend
    calls = {"n": 0}

    def only_when_sharded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        calls["n"] += 1
        whole = q.shape[1:3] == (5, 13)
        return right_reference(q, k, v) if whole else wrong(q, k, v)

    monkeypatch.setattr(sublayers, "cross_attend", only_when_sharded)
    assert caught("ulysses", 3, shape())
    assert calls["n"]


@pytest.mark.parametrize("strategy", ["dsp", "ulysses", "megatron-sp"])
def test_rows_in_the_wrong_order(monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    """A gather or a switch that merges (batch, shard) as if the batch were one."""

    def shuffled(whole: Tensor, sizes: tuple[int, ...], dim: int) -> Tensor:
        parts = [part.reshape(-1) for part in whole.split(list(sizes), dim)]
        return torch.cat(parts).view(whole.shape)

    make_whole, gather = collectives.make_whole, Collectives.start_all_gather

    def wrong_switch(transport: Any, xs: Any, outermost: Shard, others: Any) -> Any:
        right_values = arrived(make_whole(transport, xs, outermost, others))
        return DONE, [shuffled(x, outermost.sizes, outermost.dim) for x in right_values]

    def wrong_gather(self: Collectives, x: Tensor, shard: Shard, **_: Any) -> Any:
        whole = shuffled(gather(self, x, shard).wait(), shard.sizes, shard.dim)
        cut = Cut(whole.movedim(shard.dim, 0), 0, shard)
        return collectives.Gathering(_Nothing(), cut, cut.part(self.rank), self.rank)

    monkeypatch.setattr(collectives, "make_whole", wrong_switch)
    monkeypatch.setattr(Collectives, "start_all_gather", wrong_gather)
    assert caught(strategy, 2, shape(batch=3))


def test_attention_over_too_many_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of the other axis attended too: right shapes, several times the work."""

    def wrong(q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> Tensor:
        return attend_whole(q, k, v, replace(scores, dims=(1, 2)))

    monkeypatch.setattr(heads, "attend_whole", wrong)
    assert caught("ulysses", 2, shape())


def test_bias_added_before_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bias of a row-cut projection summed N times."""

    right = linear.RowCut.forward

    def wrong(self: Any, x: Tensor, shard: Shard) -> Tensor:
        return right(self, x, shard) + self.bias  # that of the other of two ranks

    for strategy in ("megatron-sp", "megatron-tp"):
        assert not caught(strategy, 1, shape())
    monkeypatch.setattr(linear.RowCut, "forward", wrong)
    for strategy in ("megatron-sp", "megatron-tp"):
        assert "output" in caught(strategy, 2, shape(mode="forward"))


def test_a_sum_that_is_missing_in_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns that pass on their own part of the gradient alone, though each byte is sent."""
    right = megatron_tp._Product.backward

    def wrong(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        ctx.comm.all_reduce_(grad @ ctx.saved_tensors[1])
        alone = Collectives(SilentTransport(0, 1))
        return right(SimpleNamespace(saved_tensors=ctx.saved_tensors, comm=alone), grad)

    monkeypatch.setattr(megatron_tp._Product, "backward", staticmethod(wrong))
    assert not caught("megatron-tp", 2, shape(mode="forward"))
    assert "gradient" in caught("megatron-tp", 2, shape())


def test_a_sum_that_is_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The output of a projection summed once more, behind its bias."""
    right = linear.RowCut.forward

    def wrong(self: Any, x: Tensor, shard: Shard) -> Tensor:
        return self.times.keywords["summed"](right(self, x, shard), shard)

    monkeypatch.setattr(linear.RowCut, "forward", wrong)
    assert "output" in caught("megatron-tp", 2, shape(mode="forward"))


def test_gradients_of_whole_weights_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that hold the sequence whole have whole gradients: a sum is N times as much. Norms of
    queries, which heads share, need one."""
    work = shape("streams", qk_norm=True)
    for wrong, complaint in ((True, "differs from one device by 2 "), (False, "q_norm")):
        monkeypatch.setattr(linear, "is_of_heads", lambda _, wrong=wrong: wrong)
        assert complaint in caught("megatron-tp", 3, work)


def test_output_equal_but_gradients_different(monkeypatch: pytest.MonkeyPatch) -> None:
    """A switch that forgets its way back: the forward pass shows nothing."""
    right = collectives._Differentiable.backward

    def wrong(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        there, back, *gradients = right(ctx, *grads)
        return there, back, *(gradient.roll(1, 1) for gradient in gradients)

    monkeypatch.setattr(collectives._Differentiable, "backward", staticmethod(wrong))
    assert not caught("dsp", 2, shape(mode="forward"))
    assert "gradient" in caught("dsp", 2, shape())


def test_remainder_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions beyond the last whole multiple of N are left out of attention."""

    def wrong(q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> Tensor:
        (along,) = scores.dims
        kept = k.shape[along] // 3 * 3
        return attend_whole(q, k.narrow(along, 0, kept), v.narrow(along, 0, kept), scores)

    monkeypatch.setattr(heads, "attend_whole", wrong)
    assert not caught("ulysses", 3, shape(axes="{time: 6, space: 12}"))
    assert caught("ulysses", 3, shape())


def test_gradients_round_the_ring_the_wrong_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """dK and dV delivered to the mirrored rank: right at N = 2, wrong from N = 3."""

    def wrong(partial: Tensor, rows: Rows, comm: Collectives, scatter: bool) -> Any:
        comm.all_reduce_(partial).wait()
        mirrored = -comm.rank % comm.size
        mine = partial.narrow(2, rows.keys.offset(mirrored), rows.keys.sizes[comm.rank])
        return Pending(_Nothing(), mine.permute(2, 0, 1))

    monkeypatch.setattr(rsa, "_start_sum", wrong)
    even = {"axes": "{time: 6, space: 12}", "dtype": "float64"}
    assert not caught("rsa", 2, shape(**even))
    assert "gradient" in caught("rsa", 3, shape(**even))


def patch_ring(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[int, Tensor], Tensor | float]
) -> None:
    """``change`` gives what is found in place of the block that arrives at a step."""
    right = RingBlocks.advance

    def wrong(self: RingBlocks) -> int | None:
        owner = right(self)
        if owner is not None:  # it has been sent on already, as it was
            step = (self._transport.rank - owner) % self._transport.size
            self.blocks[owner].copy_(self.blocks[owner] * 0 + change(step, self.blocks[owner]))
        return owner

    monkeypatch.setattr(RingBlocks, "advance", wrong)


def test_skipped_ring_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """One block of the ring counts for nothing."""
    patch_ring(monkeypatch, lambda step, block: 0.0 if step == 1 else block)
    assert caught("rsa", 3, shape())


def test_stale_ring_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transfer is not waited for: a block is used before it has arrived."""
    patch_ring(monkeypatch, lambda step, block: block if step == 0 else block.mean())
    assert caught("rsa", 2, shape())


def test_swapped_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads shared out in the wrong order on the way back."""
    right = collectives.make_cut

    def wrong(transport: Any, xs: Any, outermost: Shard, others: Any, *more: Any) -> Any:
        right_values = arrived(right(transport, xs, outermost, others, *more))
        return DONE, [x.flip(other.dim) for x, other in zip(right_values, others, strict=True)]

    monkeypatch.setattr(collectives, "make_cut", wrong)
    assert caught("ulysses", 2, shape("axes-2d"))


@pytest.mark.parametrize("strategy", ["dsp", "ulysses", "megatron-sp", "rsa"])
def test_gradient_sum_forgotten(monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    """Replicated weights keep their own rank's gradient; so do the counted bytes show it."""
    monkeypatch.setattr(Collectives, "all_reduce_", lambda self, x: _Nothing())
    assert "gradient" in caught(strategy, 2, shape())


class _Nothing:
    def wait(self) -> None:
        return None

    def wait_for(self, rank: int) -> None:
        return None


def test_one_extra_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right values, but more bytes than the strategy says: caught by the count alone."""
    right = ulysses.UlyssesPlan.attend

    def wasteful(
        self: Any, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Any
    ) -> Tensor:
        if shard.dim in scores.dims:
            cuts = [Cut(q.new_zeros(2), 0, Shard.even(0, 2, 2))]
            comm.transport.all_to_all(cuts, cuts).wait()
        return right(self, q, k, v, scores, shard, comm)

    monkeypatch.setattr(ulysses.UlyssesPlan, "attend", wasteful)
    complaint = caught("ulysses", 2, shape())
    assert "all_to_all" in complaint
    assert "predicted" in complaint


def test_a_strategy_that_does_not_communicate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention over one's own shard only: cheap, plausible, wrong."""
    monkeypatch.setattr(
        ulysses.UlyssesPlan,
        "attend",
        lambda self, q, k, v, scores, shard, comm: attend_whole(q, k, v, scores),
    )
    assert caught("ulysses", 2, shape(dtype="bfloat16"))


def test_one_wrong_rank_is_not_diluted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault on one of eight ranks is as large as if it were on all."""
    right = collectives.make_whole

    def wrong(transport: Any, xs: Any, outermost: Shard, others: Any) -> Any:
        right_values = arrived(right(transport, xs, outermost, others))
        return DONE, [x * 1.5 for x in right_values] if transport.rank == 7 else right_values

    monkeypatch.setattr(collectives, "make_whole", wrong)
    work = shape("axes-2d", axes="{time: 16, space: 16}", dtype="bfloat16", mode="forward")
    outcomes = prove(work, load("dsp"), 8)
    assert "output" in (outcomes[7].why_wrong() or "")


def test_mask_forgotten_in_a_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries that see later keys: a language model that reads the answer."""
    monkeypatch.setattr(Rows, "mask_", lambda self, scores: scores)
    assert caught("rsa", 3, shape("causal"))


def test_zigzag_taken_for_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Early and late chunk in the ring, but positions and inputs of one run of the sequence."""
    right = Shard.causal

    def straight(dim: int, length: int, ranks: int) -> Shard:
        return Shard.of_sizes(dim, right(dim, length, ranks).sizes)

    stretches = Band._stretches

    def zigzag(self: Band, rank: int) -> Any:
        cut = right(self.shard.dim, self.shard.length, len(self.shard.sizes))
        return stretches(replace(self, shard=cut), rank)

    monkeypatch.setattr(Shard, "causal", straight)
    monkeypatch.setattr(Band, "_stretches", zigzag)
    assert caught("rsa", 2, shape("causal", positions="none"))


def test_rotary_by_local_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank turns as if its shard began at 0."""
    from spbench.model.positions import Rotary

    right = Rotary.forward

    def wrong(self: Rotary, q: Tensor, k: Tensor, shard: Shard | None) -> Any:
        if shard is not None:
            shard = Shard(shard.dim, tuple(((0, n),) for n in shard.sizes))
        return right(self, q, k, shard)

    monkeypatch.setattr(Rotary, "forward", wrong)
    assert not caught("ulysses", 1, shape("causal"))
    assert caught("ulysses", 2, shape("causal"))


def test_grouped_heads_in_the_wrong_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Query head i with key head i modulo the number of key heads."""

    def wrong(self: heads.HeadShares, x: Tensor, rank: int) -> Tensor:
        return x.flip(-2)

    monkeypatch.setattr(heads.HeadShares, "matched", wrong)
    assert caught("ulysses", 2, shape("causal"))


def test_one_key_head_of_the_copies_gets_all_the_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of a key head whose gradients are not added up."""

    def wrong(self: heads.HeadShares, x: Tensor) -> Tensor:
        seen: set[int] = set()
        copies = []
        for head in (head for heads_ in self.keys for head in heads_):
            key_head = x.narrow(-2, head, 1)
            copies.append(key_head.detach() if head in seen else key_head)
            seen.add(head)
        return torch.cat(copies, -2)

    monkeypatch.setattr(heads.HeadShares, "spread", wrong)
    assert not caught("ulysses", 4, shape("few-key-heads", mode="forward"))
    assert "gradient" in caught("ulysses", 4, shape("few-key-heads"))


def test_projection_not_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank attends to the projection of its own keys only."""
    monkeypatch.setattr(Collectives, "all_reduce", lambda self, x: x)
    assert caught("rsa", 2, shape("projected"))


def test_bias_of_the_wrong_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gathered pair bias read with keys first."""
    from spbench.strategies import base

    right = base.gathered

    def wrong(scores: Scores, comm: Collectives) -> Scores:
        whole = right(scores, comm)
        if whole.bias is None or comm.size == 1:  # the reference stays right
            return whole
        return replace(whole, bias=whole.bias.transpose(1, 2))

    monkeypatch.setattr(base, "gathered", wrong)
    assert caught("dsp", 2, shape("pair-bias"))


def test_bias_gradient_of_one_rank_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pair tensor's gradient without what the other ranks' rows contribute."""

    def wrong(comm: Collectives, x: Tensor, shard: Shard) -> Tensor:
        def gathered(xs: Sequence[Tensor]) -> Any:
            return Pending(DONE, [comm.start_all_gather(part, shard).wait() for part in xs])

        def own(grads: Sequence[Tensor]) -> Any:
            for grad in grads:
                comm.start_reduce_scatter(grad, shard).wait()
            return Pending(DONE, [comm.take(grad, shard) for grad in grads])

        (whole,) = comm._differentiable(gathered, own, [x])
        return whole

    monkeypatch.setattr(Collectives, "all_gather", wrong)
    assert "gradient" in caught("dsp", 2, shape("pair-bias"))


@pytest.mark.parametrize("strategy", ["ulysses", "rsa"])
def test_text_attended_by_every_rank(monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    """Text that every rank holds whole goes round with each rank's keys, and counts N times."""

    def wrong(self: streams.JointAttention, x: Tensor, text: Tensor, inputs: Any) -> Any:
        comm, image, cut = self.image.comm, self.image, self.shards
        whole = comm.all_gather(text, cut.text)
        everywhere = Shard.of_sizes(1, (whole.shape[1],) * comm.size)
        held = [joint - n for joint, n in zip(cut.joint.sizes, cut.text.sizes, strict=True)]
        joint = Shard.of_sizes(1, tuple(n + whole.shape[1] for n in held))
        shards = replace(cut, text=everywhere, joint=joint)
        planted = streams.JointAttention(image, self.text, shards)
        out, text_out = right(planted, x, whole, inputs)
        return out, comm.take(text_out, cut.text)

    right = streams.JointAttention.forward
    work = shape("streams", mode="forward", modulation="none")
    assert not caught(strategy, 2, work)
    monkeypatch.setattr(streams.JointAttention, "forward", wrong)
    assert not caught(strategy, 1, work)
    assert "output" in caught(strategy, 2, work)


def test_a_small_gradient_is_not_taken_for_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors far below the typical size are still held to their own: half of one is caught."""
    right = rsa._Rings.backward

    def wrong(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        right_values = right(ctx, grad)
        return (right_values[0] * 0.5, *right_values[1:])

    monkeypatch.setattr(rsa._Rings, "backward", staticmethod(wrong))
    gentle = prove(shape(dtype="float32"), load("rsa"), 2, sharpness=0.05)
    assert "gradient" in why_wrong(gentle)


def test_a_gradient_that_is_a_little_off_on_sharp_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 one device's own rounding is the measure there, and 1 % is far above it."""
    right = rsa._Rings.backward

    def wrong(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        right_values = right(ctx, grad)
        return (right_values[0] * 1.01, *right_values[1:])

    work = with_settings(find("attention-only", "verify"), ["dtype=float32"])
    assert not caught("rsa", 3, work, sharpness=8.0)
    monkeypatch.setattr(rsa._Rings, "backward", staticmethod(wrong))
    assert "gradient" in caught("rsa", 3, work, sharpness=8.0)


def test_ulysses_needs_heads_only_where_it_swaps_them() -> None:
    """Two heads on four ranks, attention along the other axis only: nothing is swapped."""
    block = "[{attention: space}, {mlp: 2}]"
    work = shape(axes="{time: 6, space: 8}", heads=2, block=block, modulation="none")
    assert load("ulysses").on(work, 4).layout[0] == "time"
    assert not caught("ulysses", 4, work)
    assert "2 heads" in (load("ulysses:every-attention").why_not(work, 4) or "")
