"""Cross-attention in pieces equals cross-attention in one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spbench.layers import attention
from spbench.layers.attention import cross_attend, pieces
from spbench.layers.memory_order import put_outermost
from tests.helpers.counted_copies import CountedCopies


@pytest.mark.parametrize(
    ("queries", "count"), [(0, 1), (1, 1), (7, 1), (15, 1), (16, 2), (17, 1), (18, 2), (96, 12)]
)
def test_pieces_are_equal_and_not_too_short(queries: int, count: int) -> None:
    assert pieces(queries, 8) == count


def test_a_long_context_goes_to_few_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece is at least eight times as long as the text, whose gradient each piece has."""
    lengths_given = []
    monkeypatch.setattr(attention, "pieces", lambda *lengths: lengths_given.append(lengths) or 1)
    for length in (7, 128, 300):
        cross_attend(torch.zeros(1, 4, 2, 8), *torch.zeros(2, 1, length, 2, 8))
    assert lengths_given == [(4, 1024), (4, 1024), (4, 2400)]


@pytest.mark.parametrize(("queries", "copies"), [(256, 0), (255, 2)])
def test_samples_apart_in_memory_are_copied_only_before_short_pieces(
    queries: int, copies: int
) -> None:
    """The queries are copied, and the output back into their order."""
    q = put_outermost(torch.randn(2, 4, queries, 2, 8), 1)
    with CountedCopies(q.numel(), 1) as seen:
        out = cross_attend(q, *torch.randn(2, 2, 3, 2, 8))
        put_outermost(out, 1)
    assert seen.elsewhere.total() == copies


@pytest.mark.parametrize("queries", [(0, 5), (3, 0)])
def test_no_queries(queries: tuple[int, int]) -> None:
    """A rank without queries gets an empty result."""
    out = cross_attend(torch.zeros(1, *queries, 2, 8), *torch.zeros(2, 1, 3, 2, 8))
    assert out.shape == (1, *queries, 2, 8)


@pytest.mark.parametrize("outermost", [0, 1, 2])
@pytest.mark.parametrize("batch", [1, 3])
def test_pieces_change_nothing(batch: int, outermost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output and gradients equal those of every query with every key, written out, whichever dim
    is outermost in memory; it stays so where samples have pieces of their own."""
    torch.manual_seed(0)
    q = put_outermost(torch.randn(batch, 6, 16, 2, 4, dtype=torch.float64), outermost)
    q.requires_grad_()
    k, v = (torch.randn(batch, 5, 2, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    monkeypatch.setattr(attention, "PIECE", 8)
    monkeypatch.setattr(attention, "SHORTEST", 8)
    monkeypatch.setattr(attention, "LONGER", 1)
    assert pieces(6 * 16, 8) == 12
    computed = cross_attend(q, k, v)
    assert outermost == 2 or computed.movedim(outermost, 0).is_contiguous()
    weights = (torch.einsum("btszd,blzd->btszl", q, k) / 4**0.5).softmax(-1)
    wanted = torch.einsum("btszl,blzd->btszd", weights, v)
    cotangent = torch.randn_like(wanted)
    torch.testing.assert_close(computed, wanted)
    torch.testing.assert_close(
        gradients(computed, cotangent, q, k, v), gradients(wanted, cotangent, q, k, v)
    )


def gradients(out: Tensor, cotangent: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(out, inputs, cotangent)
