"""Zeros behind narrow heads change nothing but the time, and nothing wide is kept."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from spbench.layers.kernels import kernel
from spbench.layers.lse_kernels import gradients_of, with_lse
from spbench.layers.narrow_heads import FAST, LONG, is_narrow


def qkv(size: int = 12, key_heads: int = 4, length: int = 512) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    made = [
        torch.randn(2, length, heads, size, generator=generator).transpose(1, 2)
        for heads in (4, key_heads, key_heads)
    ]
    return [x.requires_grad_() for x in made]


@pytest.mark.parametrize("size", [4, 8, 12, 15])
@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_as_torch_computes_it(size: int, key_heads: int, causal: bool) -> None:
    given = qkv(size, key_heads)
    assert is_narrow(*given[:2])
    plain = F.scaled_dot_product_attention(*given, is_causal=causal, enable_gqa=True)
    out = kernel(*given, is_causal=causal)
    grad = torch.randn_like(out)
    torch.testing.assert_close(out, plain)
    expected = torch.autograd.grad(plain, given, grad)
    torch.testing.assert_close(torch.autograd.grad(out, given, grad), expected)
    with torch.no_grad():
        part, lse = with_lse(*given, causal=causal)
        torch.testing.assert_close(gradients_of(grad, *given, part, lse, causal=causal), expected)


def test_what_backward_wants_is_kept_narrow() -> None:
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        out = kernel(*(given := qkv()))
    assert out.transpose(1, 2).is_contiguous()
    assert [x.shape[-1] for x in kept] == [12, 12, 12, 12, 512]
    gradients = torch.autograd.grad(out, given, torch.ones_like(out))
    assert {x.untyped_storage().nbytes() for x in (*kept[:4], *gradients)} == {out.nbytes}


def test_math_that_is_asked_for_computes_products() -> None:
    with sdpa_kernel(SDPBackend.MATH):
        assert not is_narrow(*qkv()[:2])


def test_the_narrowest_need_not_be_as_long() -> None:
    queries, keys = (qkv(8, length=length)[0] for length in LONG[4])
    assert is_narrow(queries, keys)


@pytest.mark.parametrize(
    "given",
    [
        qkv(FAST)[:2],
        qkv(length=511)[:2],
        qkv(8, length=LONG[4][1] - 1)[:2],
        [qkv()[0], qkv(length=77)[1]],
        qkv(2)[:2],
        [x.double() for x in qkv()[:2]],
        [x.to("meta") for x in qkv()[:2]],
    ],
    ids=["wide", "short", "shorter", "few keys", "tiny", "64 bits", "of a GPU"],
)
def test_other_heads_go_as_they_are(given: list[Tensor]) -> None:
    assert not is_narrow(*given)
