"""The order of attention kernels, which of them serve, and what goes to them in chunks."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.gate_on_threads import prove, why_wrong
from torch import Tensor
from torch.nn.attention import SDPBackend, _cur_sdpa_kernel_backends, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from spbench.layers import kernels as called
from spbench.layers.attention import Scores, attend_whole
from spbench.layers.blockwise import Part, attend_block, block_gradients, merge
from spbench.layers.dispatch_modes import KernelsSeen
from spbench.layers.kernels import (
    FASTEST_FIRST,
    LIMITS,
    KernelLimits,
    chunks,
    fastest_kernels,
    kernel,
    with_lse,
)
from spbench.strategies.registry import load
from spbench.workload.band import Band, Reach
from spbench.workload.block import Attention
from spbench.workload.boxes import Boxes
from spbench.workload.catalogue import find

LARGE = KernelLimits(folded_batch=2**40, elements=2**60)


def kernels_in_order() -> list[SDPBackend]:
    return _cur_sdpa_kernel_backends(with_priority=True)


@pytest.mark.parametrize(
    ("capability", "kernels"),
    [
        ((8, 0), FASTEST_FIRST[1:]),
        ((8, 9), FASTEST_FIRST[1:]),
        ((9, 0), FASTEST_FIRST),
        ((10, 0), FASTEST_FIRST),
    ],
)
def test_kernels_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], kernels: list[SDPBackend]
) -> None:
    """cuDNN's kernel comes first from Hopper on, never before; the old order returns afterwards."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    before = kernels_in_order()
    with fastest_kernels(torch.device("cuda", 0)):
        assert kernels_in_order() == kernels
    assert kernels_in_order() == before


def test_kernels_of_a_cpu() -> None:
    """On a CPU torch's own choice stays, and no GPU is queried."""
    before = kernels_in_order()
    with fastest_kernels(torch.device("cpu")):
        assert kernels_in_order() == before


def calls_of_torch(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The folded batch of each call of torch's attention from now on."""
    right, batches = F.scaled_dot_product_attention, list[int]()

    def noted(q: Tensor, *rest: Any, **how: Any) -> Tensor:
        batches.append(q.shape[0])
        return right(q, *rest, **how)

    monkeypatch.setattr(called.F, "scaled_dot_product_attention", noted)
    return batches


def with_gradients(
    batch: int, limits: KernelLimits, *, key_heads: int = 4, bias: bool = False, **how: Any
) -> list[Tensor]:
    """Output and gradients of attention of 4 heads, 3 queries and 3 keys in float64."""
    generator = torch.Generator().manual_seed(1)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    q, k, v = leaf(batch, 3, 4, 2), leaf(batch, 3, key_heads, 2), leaf(batch, 3, key_heads, 2)
    leaves = [q, k, v]
    if bias:
        leaves.append(leaf(1, 4, 3, 3))
        how["attn_mask"] = leaves[-1]
    out = kernel(*(x.transpose(1, 2) for x in leaves[:3]), limits=limits, **how)
    cotangent = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    return [out, *torch.autograd.grad(out, leaves, cotangent)]


def test_a_folded_batch_of_70_000_goes_in_two_equal_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than CUDA's grid takes: output and gradients are those of one call, in float64."""
    batches = calls_of_torch(monkeypatch)
    chunked = with_gradients(70_000, LIMITS)
    assert batches == [35_000, 35_000]
    torch.testing.assert_close(chunked, with_gradients(70_000, LARGE), rtol=1e-12, atol=1e-12)
    assert batches[2:] == [70_000]


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"is_causal": True},
        {"key_heads": 2},
        {"key_heads": 1, "is_causal": True},
        {"bias": True},
        {"bias": True, "key_heads": 2},
    ],
)
def test_chunks_compute_the_same(monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]) -> None:
    """Causal, with grouped heads or with a bias that all chunks share; 11 as 4, 4 and 3."""
    batches = calls_of_torch(monkeypatch)
    chunked = with_gradients(11, KernelLimits(folded_batch=5), **how)
    assert batches == [4, 4, 3]
    torch.testing.assert_close(chunked, with_gradients(11, LARGE, **how), rtol=1e-12, atol=1e-12)


def test_without_need_there_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the limit nothing is cut; of what is empty nothing can be."""
    batches = calls_of_torch(monkeypatch)
    with_gradients(65_535, LIMITS)
    with_gradients(0, LIMITS)
    assert batches == [65_535, 0]


def test_elements_are_counted_as_kernels_hold_them() -> None:
    """Lengths in multiples of 128 and head sizes of 32; with a bias the scores count."""
    meta = {"device": "meta"}
    # dsp-720m at batch 4 on one GPU, along time: 2^28 x 4.5 elements, in buffers of 2^31 x 1.5.
    q = torch.empty(4 * 4096, 16, 64, 72, **meta)
    assert chunks(q, q, LIMITS, masked=False) == 2
    assert chunks(q[:4096], q[:4096], LIMITS, masked=False) == 1
    tight = KernelLimits(elements=10, length_multiple=1, head_multiple=1)
    q, k = torch.empty(6, 1, 2, 2, **meta), torch.empty(6, 1, 5, 2, **meta)
    assert chunks(q, q, tight, masked=False) == 3  # of 2 x 4 elements
    assert chunks(q, k, tight, masked=False) == 6  # keys have 10
    assert chunks(k, k, tight, masked=True) == 6  # scores have 25: one at a time is the least
    assert chunks(q[:0], q[:0], tight, masked=False) == 1


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_only_what_comes_out_of_chunks_is_copied() -> None:
    """The output once, and the gradient of each of q, k and v once; none of them is filled with
    zeros for each chunk."""
    with Operations() as operations:
        with_gradients(12, KernelLimits(folded_batch=3))
    copies = [name.partition(".")[0] for name in operations.names]
    assert copies.count("cat") == 4
    assert {"split_with_sizes", "cat"} <= set(copies)
    assert not {"slice_backward", "clone", "copy_", "zeros", "new_zeros"} & set(copies)


def test_chunks_leave_the_layout_of_one_call() -> None:
    """(b, S, Z, D) in memory, so that the projection behind attention need not copy it."""
    one, several = (
        with_gradients(12, limits)[0] for limits in (LARGE, KernelLimits(folded_batch=3))
    )
    assert several.stride() == one.stride()


def test_kernels_that_served_are_seen() -> None:
    """As torch chooses on a CPU: flash, and plain products where a bias has a gradient."""
    q = torch.randn(2, 4, 3, 8, requires_grad=True)
    with KernelsSeen() as seen:
        q.softmax(-1)
    assert seen.names == []
    with seen:
        kernel(q, q, q)
    assert seen.names == ["flash"]
    with seen:
        kernel(q, q, q, attn_mask=torch.zeros(1, 4, 3, 3, requires_grad=True))
    assert seen.names == ["flash", "math"]
    with KernelsSeen() as seen, sdpa_kernel(SDPBackend.MATH):
        kernel(q, q, q)
    assert seen.names == ["math"]


@pytest.mark.parametrize("keys", [1, 8, 15, 16])
def test_attention_to_few_keys_is_torchs_kernel(keys: int) -> None:
    """On a CPU too, with narrow heads, by blocks and whole: strategies are compared with the kernel
    that a user's model runs (docs/decisions/0044-one-cpus-steps.md)."""
    q, k = (torch.randn(3, 4, n, 12) for n in (40, keys))
    with KernelsSeen() as seen:
        kernel(q, k, k)
    assert seen.names == ["flash"]
    with KernelsSeen() as seen:
        with_lse(q, k, k, causal=False)
    assert seen.names == ["flash"]


@pytest.mark.parametrize("name", ["mixed", "few-key-heads", "pair-bias", "projected"])
def test_whole_steps_in_chunks_pass_the_gate(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Every attention of a model in chunks of two at most, against one device without chunks."""
    work = find(name, "verify")
    assert why_wrong(prove(work, load("ulysses"), 1)) == ""  # keeps one device's answer
    batches = calls_of_torch(monkeypatch)
    monkeypatch.setitem(kernel.__kwdefaults__, "limits", KernelLimits(folded_batch=2))
    assert why_wrong(prove(work, load("ulysses"), 2)) == ""
    assert max(batches) == 2


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("key_size", "value_size"), [(6, 4), (4, 6), (12, 8)])
def test_values_of_another_size(key_size: int, value_size: int, causal: bool) -> None:
    """Out and all gradients are those of a softmax written out, whole and by the kernels of parts;
    scores are divided by the root of the size of keys, never of what they are filled up to."""
    generator = torch.Generator().manual_seed(1)
    q, k, v, grad = (
        torch.randn(2, heads, 5, size, dtype=torch.float64, generator=generator)
        for heads, size in ((4, key_size), (2, key_size), (2, value_size), (4, value_size))
    )
    given = [x.requires_grad_() for x in (q, k, v)]
    scores = q @ k.repeat_interleave(2, 1).mT / key_size**0.5
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else torch.zeros(5, 5).bool()
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    wanted = weights @ v.repeat_interleave(2, 1)
    right = [wanted, *torch.autograd.grad(wanted, given, grad)]
    out = kernel(*given, is_causal=causal)
    assert_close(right, [out, *torch.autograd.grad(out, given, grad)])
    plain = [x.detach() for x in given]
    part = attend_block(*plain, causal=causal)
    if not causal:  # merged from two blocks of keys
        blocks = [(plain[1][:, :, cut], plain[2][:, :, cut]) for cut in (slice(2), slice(2, 5))]
        total: Part | None = None
        for block in blocks:
            total = merge(total, attend_block(plain[0], *block))
        assert total is not None
        assert_close([total.out], [part.out])
    assert_close(right, [part.out, *block_gradients(grad, *plain, part, causal=causal)])


def assert_close(wanted: list[Tensor], got: list[Tensor]) -> None:
    for right, found in zip(wanted, got, strict=True):
        assert torch.allclose(found, right, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("window", [1, 4, 5, 40, None])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_windows_and_sinks_position_by_position(
    window: int | None, causal: bool, has_sinks: bool
) -> None:
    """Out and all gradients are those of numpy, one query after another, to 1e-13."""
    rng = np.random.default_rng(3)
    q, grad = rng.normal(size=(2, 2, 4, 13, 6))
    k, v = rng.normal(size=(2, 2, 2, 13, 6))
    sinks = rng.normal(size=4)
    reach = Attention(attention="a", window=window, causal=causal).reach
    wanted = by_position(q, k, v, grad, sinks if has_sinks else None, reach, causal)
    given = [torch.tensor(x, requires_grad=True) for x in (q, k, v, sinks)]
    # (b, Z, S, D) -> (B, S, Z, D), the dims of a model's activation
    heads = [x.transpose(1, 2) for x in given[:3]]
    mask = reach and Band(documents=(13,), before=reach[0], after=reach[1])
    scores = Scores(dims=(1,), causal=causal, mask=mask, sinks=given[3] if has_sinks else None)
    out = attend_whole(*heads, scores).transpose(1, 2)
    leaves = given if has_sinks else given[:3]
    found = [out, *torch.autograd.grad(out, leaves, torch.tensor(grad))]
    for right, got in zip(wanted, found, strict=False):
        assert np.abs(got.detach().numpy() - right).max() < 1e-13


@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize("shift", [(0, 0, 0), (1, 2, 1)])
def test_boxes_position_by_position(shift: tuple[int, ...], wraps: bool) -> None:
    """Out and all gradients are those of numpy, one query after another, to 1e-13: of boxes of
    three axes, which they do not divide, shifted or not."""
    rng = np.random.default_rng(5)
    lengths, window = (3, 4, 5), (2, 3, 2)
    q, grad = rng.normal(size=(2, 2, *lengths, 4, 6))
    k, v = rng.normal(size=(2, 2, *lengths, 2, 6))
    places = [*np.ndindex(*lengths)]
    boxes = [
        tuple(
            (n - first) % length // size if wraps else (n - first) // size
            for n, first, length, size in zip(place, shift, lengths, window, strict=True)
        )
        for place in places
    ]
    out, d_q, d_k, d_v = (np.zeros_like(x) for x in (q, q, k, v))
    for (at, place), b, z in product(enumerate(places), range(2), range(4)):
        same = [n for n, box in enumerate(boxes) if box == boxes[at]]
        keys = tuple(np.array(places)[same].T)
        row, of_keys = (b, *place, z), (b, *keys, z // 2)
        exps = np.exp(k[of_keys] @ q[row] / np.sqrt(6))
        weights = exps / exps.sum()
        out[row] = weights @ v[of_keys]
        d_scores = weights * (v[of_keys] @ grad[row] - grad[row] @ out[row]) / np.sqrt(6)
        d_q[row] = d_scores @ k[of_keys]
        d_k[of_keys] += np.outer(d_scores, q[row])
        d_v[of_keys] += np.outer(weights, grad[row])
    leaves = [torch.tensor(x, requires_grad=True) for x in (q, k, v)]
    mask = Boxes(lengths=lengths, window=window, shift=shift, wraps=(wraps,) * 3)
    found = attend_whole(*leaves, Scores(dims=(1, 2, 3), mask=mask))
    gradients = torch.autograd.grad(found, leaves, torch.tensor(grad))
    for right, got in zip([out, d_q, d_k, d_v], [found, *gradients], strict=True):
        assert np.abs(got.detach().numpy() - right).max() < 1e-13


@pytest.mark.parametrize("window", [None, 1, 4, 40])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("documents", [(5, 1, 7), (6, 6, 1), (12, 1)])
def test_documents_position_by_position(
    documents: tuple[int, ...], causal: bool, window: int | None
) -> None:
    """Out and all gradients are those of numpy, one query after another, to 1e-13, with a window in
    each document and without."""
    rng = np.random.default_rng(4)
    q, grad = rng.normal(size=(2, 2, 4, 13, 6))
    k, v = rng.normal(size=(2, 2, 2, 13, 6))
    reach = Attention(attention="a", window=window, causal=causal).reach
    wanted = by_position(q, k, v, grad, None, reach, causal, documents)
    leaves = [torch.tensor(x, requires_grad=True) for x in (q, k, v)]
    before, after = reach or (13, 0 if causal else 13)
    mask = Band(documents=documents, before=before, after=after)
    scores = Scores(dims=(1,), causal=causal, mask=mask)
    out = attend_whole(*(x.transpose(1, 2) for x in leaves), scores).transpose(1, 2)
    found = [out, *torch.autograd.grad(out, leaves, torch.tensor(grad))]
    for right, got in zip(wanted, found, strict=False):
        assert np.abs(got.detach().numpy() - right).max() < 1e-13


def by_position(
    q: Any,
    k: Any,
    v: Any,
    grad: Any,
    sinks: Any,
    reach: Reach | None,
    causal: bool,
    documents: tuple[int, ...] = (),
) -> list[Any]:
    """Out, dQ, dK, dV and the gradient of sinks of a softmax for each query alone."""
    out, d_q, d_k, d_v = (np.zeros_like(x) for x in (q, q, k, v))
    d_sinks = np.zeros(q.shape[1])
    before, after = reach or (q.shape[2], 0 if causal else q.shape[2])
    ends = np.cumsum([0, *(documents or (q.shape[2],))])
    for b, z, i in np.ndindex(*q.shape[:3]):
        of = np.searchsorted(ends, i, side="right")
        keys = slice(max(ends[of - 1], i - before), min(ends[of], i + after + 1))
        own, values = k[b, z // 2, keys], v[b, z // 2, keys]
        exps = np.exp(own @ q[b, z, i] / np.sqrt(6))
        total = exps.sum() + (0 if sinks is None else np.exp(sinks[z]))
        weights = exps / total
        out[b, z, i] = weights @ values
        of_row = grad[b, z, i] @ out[b, z, i]
        d_scores = weights * (values @ grad[b, z, i] - of_row) / np.sqrt(6)
        d_q[b, z, i] = d_scores @ own
        d_k[b, z // 2, keys] += np.outer(d_scores, q[b, z, i])
        d_v[b, z // 2, keys] += np.outer(weights, grad[b, z, i])
        d_sinks[z] -= 0 if sinks is None else np.exp(sinks[z]) / total * of_row
    return [out, d_q, d_k, d_v, d_sinks]
