"""spbench.prove on ranks that are threads: what is equal passes, what is not is named."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.golden import Golden
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import spbench
from spbench import Proof, ProofError, SequenceGroup
from spbench.comm.threaded import ThreadRendezvous, ThreadTransport, run_rank_threads
from spbench.workload.sharding import shard_sizes
from spbench.workload.traffic import Transfer

EXAMPLES = Path(__file__).parents[3] / "examples"
sys.path.insert(0, str(EXAMPLES))
import video_transformer  # noqa: E402
import video_transformer_dsp  # noqa: E402
import video_transformer_ulysses  # noqa: E402

TIME, SPACE, HEADS = 1, 2, 3
LOCK = Lock()
SIZES = {"frames": 7, "patches": 5, "channels": 3, "hidden": 20, "heads": 5}
FORMS = [video_transformer_dsp, video_transformer_ulysses]

Change = Callable[[Any, SequenceGroup], object]


def proved(
    form: ModuleType,
    ranks: int,
    change: Change = lambda model, sp: None,
    dtype: torch.dtype = torch.float32,
    seed: Callable[[int], int] = lambda rank: 0,
) -> list[Proof]:
    """Every rank's proof of an example that was changed."""

    def rank_main(transport: ThreadTransport) -> Proof:
        generator = torch.Generator().manual_seed(seed(transport.rank))
        plain = video_transformer.VideoTransformer(**SIZES)
        with torch.no_grad():
            for p in plain.parameters():
                p.copy_(0.3 * torch.randn(p.shape, generator=generator))
        x = torch.randn(2, 7, 5, 3, generator=generator).to(dtype)
        sp = SequenceGroup({TIME: 7, SPACE: 5, HEADS: 5}, transport)
        model = form.VideoTransformer(**SIZES, sp=sp).to(dtype)
        change(model, sp)
        return spbench.prove(plain.to(dtype), model, x, group=sp)

    return run_rank_threads(ranks, rank_main)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_examples_are_equal_to_one_device(form: ModuleType, ranks: int) -> None:
    """On any number of ranks, few of which divide an axis; every tensor is compared."""
    proofs = proved(form, ranks)
    assert all(proof == proofs[0] for proof in proofs)
    (proof, *_) = proofs
    names = [name for name, _ in video_transformer.VideoTransformer(**SIZES).named_parameters()]
    compared = ["output", "gradient of input 0", *(f"gradient of {name}" for name in names)]
    assert [each.name for each in proof.differences] == compared
    assert proof.ranks == ranks
    assert max(proof.output_error, proof.gradient_error) < 1e-5
    assert (proof.tolerance, proof.uncounted) == (1e-4, {})


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_other_dtypes_have_the_gates_tolerances(dtype: torch.dtype) -> None:
    """1e-9 in float64; in 16 bits a multiple of one device's own error."""
    (proof, _) = proved(video_transformer_dsp, 2, dtype=dtype)
    assert proof.output_error <= proof.differences[0].tolerance
    if dtype is torch.float64:
        assert proof.tolerance == 1e-9
        assert proof.gradient_error < 1e-12
    else:
        assert 1e-3 < proof.output_error < 0.1


@pytest.mark.parametrize("ranks", [2, 3])
def test_bytes_are_the_formulas(ranks: int) -> None:
    """Two switches a block, to the byte; gradients are an all-reduce each."""
    time, space = shard_sizes(7, ranks), shard_sizes(5, ranks)
    activation = 4 * 2 * 7 * 5 * 20
    there = Transfer.all_to_all(activation, time, space).sent
    back = Transfer.all_to_all(activation, space, time).sent
    (dsp, *_) = proved(video_transformer_dsp, ranks)
    forward = max(2 * (one + other) for one, other in zip(there, back, strict=True))
    assert dsp.sent_bytes_forward == dsp.sent_bytes_backward == forward
    (ulysses, *_) = proved(video_transformer_ulysses, ranks)  # 5 heads as 5 patches
    forward = max(2 * (3 * one + other) for one, other in zip(there, back, strict=True))
    assert ulysses.sent_bytes_forward == forward
    weights = sum(p.numel() for p in video_transformer.VideoTransformer(**SIZES).parameters())
    assert dsp.sent_bytes_gradients == round(Fraction(2 * (ranks - 1) * 4 * weights, ranks))


def no_switch(model: Any, sp: SequenceGroup) -> None:
    for block in model.blocks:
        block.sp = Unchanged()


class Unchanged:
    """Ranks that forgot to switch, or to sum."""

    def switch(self, x: Tensor, before: int, after: int) -> Tensor:
        return x


def forget_the_sum(model: Any, sp: SequenceGroup) -> None:
    for parameter in model.parameters():
        parameter._backward_hooks.clear()


def average(model: Any, sp: SequenceGroup) -> None:
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient / sp.size)


def halve_one(model: Any, sp: SequenceGroup) -> None:
    model.blocks[1].mlp[2].bias.register_hook(lambda gradient: 0.999 * gradient)


def swap_ranks(model: Any, sp: SequenceGroup) -> None:
    model.head.register_forward_hook(lambda module, args, out: out.flip(TIME))


def one_rank_alone(model: Any, sp: SequenceGroup) -> None:
    if sp.rank == 1:
        model.head.register_forward_hook(lambda module, args, out: 1.001 * out)


def leak_the_input(model: Any, sp: SequenceGroup) -> None:
    model.embed.register_forward_pre_hook(lambda module, args: (args[0].detach(),))


def stray_output(model: Any, sp: SequenceGroup) -> None:
    if sp.rank == 0:
        model.head.register_forward_hook(lambda module, args, out: out[:, 1:])


@pytest.mark.parametrize(
    ("form", "change", "said"),
    [
        (
            0,
            no_switch,
            r"output differs .* Is a dim attended while it is cut, or a switch forgotten",
        ),
        (0, forget_the_sum, r"gradient of .* Its sum over the ranks is right"),
        (0, average, r"gradient of .* It is 1 / 2 of one device's: averaged"),
        (1, lambda model, sp: sp.sum_gradients(model), r"It is 2 times one device's: summed twice"),
        (1, halve_one, r"gradient of blocks\.1\.mlp\.2\.bias differs from one device by 0\.001 "),
        (0, swap_ranks, r"output differs .*, and so do \d+ of \d+ others"),
        (0, one_rank_alone, r"output differs .* on rank 1"),
        (1, leak_the_input, r"gradient of input 0 differs from one device by [01]"),
        (0, stray_output, r"every rank must give its part along the same one dim"),
    ],
)
def test_what_is_wrong_is_named(form: int, change: Change, said: str) -> None:
    """Each planted defect raises on every rank, and the message says which tensor and why."""
    with pytest.raises(ProofError, match=said):
        proved(FORMS[form], 2, change)


DRAWN = {r"by [\d.]+ ": "by N ", r"on rank \d, and so do \d+ of \d+": "on rank R, and so do N of N"}
"""What differs from run to run where a module draws."""


def drop_some(model: Any, sp: SequenceGroup) -> None:
    model.blocks[0].mlp.append(nn.Dropout(0.2))


def draw(model: Any, sp: SequenceGroup) -> None:
    model.embed.register_forward_hook(lambda module, args, out: out + torch.randn_like(out))


@pytest.mark.parametrize("change", [drop_some, draw])
def test_random_numbers_are_not_taken_for_a_forgotten_switch(
    change: Change, golden: Golden
) -> None:
    """Two runs of the module on the same inputs differ, whatever draws in it."""
    with pytest.raises(ProofError) as refused:
        proved(video_transformer_dsp, 2, change)
    golden(refused.value, hide=DRAWN)


def test_random_numbers_of_the_plain_module(golden: Golden) -> None:
    """A dropout that both have, as in training mode; without it they are equal."""
    plain, parallel = (nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5)) for _ in range(2))
    (transport,) = run_rank_threads(1, lambda transport: transport)
    sp = SequenceGroup({}, transport)
    x = torch.randn(64, 3)
    with pytest.raises(ProofError) as refused:
        spbench.prove(plain, parallel, x, group=sp)
    golden(refused.value, hide=DRAWN)
    assert spbench.prove(plain.eval(), parallel.eval(), x, group=sp).output_error == 0


class Grouped(nn.Module):
    """Attention of 12 heads of queries and 4 of keys, as Ulysses; ``key_group`` cuts the keys."""

    def __init__(self, sp: SequenceGroup | None = None, key_group: SequenceGroup | None = None):
        super().__init__()
        self.sp, self.key_group = sp, key_group
        self.q, self.kv, self.out = nn.Linear(8, 96), nn.Linear(8, 64), nn.Linear(96, 8)
        if sp:
            sp.sum_gradients(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.sp.shard(x, 1) if self.sp else x
        q, (k, v) = self.q(x).unflatten(-1, (12, 8)), self.kv(x).unflatten(-1, (4, 16)).chunk(2, -1)
        if self.sp and self.key_group:
            q = self.sp.switch(q, 1, 2)
            k, v = (self.key_group.switch(each, 1, 2) for each in (k, v))
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2)
        y = self.sp.switch(y, 2, 1) if self.sp else y
        return self.out(y.flatten(-2))


@pytest.mark.parametrize("ranks", [2, 3])
def test_key_heads_that_are_cut_apart_from_their_queries(ranks: int) -> None:
    """4 key heads on 3 ranks are 2, 1, 1, and 12 of queries 4 on each: on 2 ranks both divide."""

    def rank_main(transport: ThreadTransport) -> Proof:
        sp, keys = (SequenceGroup({1: 29, 2: heads}, transport) for heads in (12, 4))
        with LOCK:
            torch.manual_seed(0)
            plain, model, x = Grouped(), Grouped(sp, keys), torch.randn(2, 29, 8)
        return spbench.prove(plain, model, x, group=sp)

    if ranks == 2:
        assert run_rank_threads(ranks, rank_main)[0].output_error < 1e-5
        return
    said = "Rank 0 attends with 4 heads of queries and 2 of keys, one device with 12 and 4: a key"
    with pytest.raises(ProofError, match=said):
        run_rank_threads(ranks, rank_main)


def test_a_switch_of_what_is_not_cut_there_is_refused(golden: Golden) -> None:
    """One forgotten switch meets the next, which names the dim and both lengths."""

    def forget_one(model: Any, sp: SequenceGroup) -> None:
        real = sp.switch
        model.blocks[0].sp = Unchanged()
        model.blocks[0].sp.switch = lambda x, a, b: x if a == TIME else real(x, a, b)

    with pytest.raises(ValueError) as refused:
        proved(video_transformer_dsp, 2, forget_one)
    golden(refused.value)


def test_ranks_that_differ_from_the_start_are_told(golden: Golden) -> None:
    """Other seeds on other ranks are not taken for a wrong model."""
    with pytest.raises(ProofError) as refused:
        proved(video_transformer_dsp, 2, seed=lambda rank: rank)
    golden(refused.value)


class Text(nn.Module):
    """A model of two inputs, one of whole numbers, that gives the whole output on each rank."""

    def __init__(self, sp: SequenceGroup | None = None) -> None:
        super().__init__()
        self.sp, self.words = sp, nn.Embedding(5, 4)
        self.unused = nn.Linear(2, 2)
        if sp:
            sp.sum_gradients(self)

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        text = self.words(words).mean(1, keepdim=True)
        if self.sp is None:
            return (x * text).tanh()
        return self.sp.gather((self.sp.shard(x, -2) * text).tanh(), -2)


def test_a_gathered_output_and_further_inputs() -> None:
    """Where ranks gather the whole, each has its share of the loss; dims may be negative."""

    def rank_main(transport: ThreadTransport) -> Proof:
        sp = SequenceGroup({1: 5}, transport)
        with LOCK:
            torch.manual_seed(0)
            plain, model = Text(), Text(sp)
        x, words = torch.linspace(-1, 1, 40).view(2, 5, 4), torch.tensor([[1, 2], [3, 3]])
        return spbench.prove(plain, model, x, words, group=sp)

    (proof, _) = run_rank_threads(2, rank_main)
    assert [each.name for each in proof.differences][1:3] == [
        "gradient of input 0",
        "gradient of words.weight",
    ]
    assert proof.gradient_error < 1e-6


def test_lengths_of_a_group(golden: Golden) -> None:
    """A dim too short for the ranks, one of unknown length and one cut already are refused."""
    group = ThreadTransport(0, ThreadRendezvous(2))
    with pytest.raises(ValueError) as refused:
        SequenceGroup({3: 1}, group)
    golden(refused.value)
    sp = SequenceGroup({1: 7}, group)
    assert sp.shard(torch.zeros(2, 7), 1).shape == (2, 4)
    with pytest.raises(ValueError) as refused:
        sp.switch(torch.zeros(2, 7, 3), 2, 1)
    golden(refused.value, "second")
    with pytest.raises(ValueError) as refused:
        sp.shard(torch.zeros(2, 4), 1)
    golden(refused.value, "third")
    sp.lengths[1] = 9
    assert sp.shard(torch.zeros(2, 9), 1).shape == (2, 5)


@pytest.fixture
def one_rank() -> Iterator[None]:
    """torch.distributed with this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_every_public_name_is_there(golden: Golden) -> None:
    """A name is loaded when it is asked for; others are none of spbench's."""
    assert all(getattr(spbench, name) for name in spbench.__all__)
    with pytest.raises(AttributeError) as refused:
        _ = spbench.proof
    golden(refused.value)


def test_without_torch_distributed_it_says_what_to_call(golden: Golden) -> None:
    """Ranks that have not met would each be alone, and nothing would be summed."""
    with pytest.raises(RuntimeError) as refused:
        SequenceGroup({1: 7})
    golden(refused.value)


@pytest.mark.usefixtures("one_rank")
def test_collectives_of_ones_own_are_proved_and_named(golden: Golden) -> None:
    """A model that calls torch.distributed itself is compared; what is not counted is said."""

    class Own(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            dist.all_reduce(torch.zeros(1))
            return super().forward(x)

    proof = spbench.prove(nn.Linear(3, 2), Own(3, 2), torch.ones(2, 3), group=SequenceGroup({}))
    assert proof.uncounted == {"c10d::allreduce_": 1}
    golden(str(proof))


def test_accumulated_gradients_and_repeated_forward_passes() -> None:
    """Two backward passes add up; checkpointing sends the forward's bytes again in backward."""

    def rank_main(transport: ThreadTransport) -> tuple[Tensor, Proof, Proof]:
        sp = SequenceGroup({TIME: 7, SPACE: 5}, transport)
        with LOCK:
            torch.manual_seed(0)
            plain = video_transformer.VideoTransformer(**SIZES)
            model = video_transformer_dsp.VideoTransformer(**SIZES, sp=sp)
        x = torch.ones(1, 7, 5, 3)
        first = spbench.prove(plain, model, x, group=sp)
        model.zero_grad()
        for _ in range(2):
            model(x).sum().backward()
        plain(x).sum().backward()
        factor = model.embed.weight.grad / plain.embed.weight.grad
        blocks = model.blocks.forward
        model.blocks.forward = lambda x: checkpoint(blocks, x, use_reentrant=False)
        return factor, first, spbench.prove(plain, model, x, group=sp)

    for factor, first, again in run_rank_threads(2, rank_main):
        torch.testing.assert_close(factor, torch.full_like(factor, 2.0), rtol=1e-3, atol=0.0)
        assert again.sent_bytes_forward == first.sent_bytes_forward
        backward = first.sent_bytes_backward  # the last switch of all need not be repeated
        assert 1.5 * backward < again.sent_bytes_backward <= 2 * backward
