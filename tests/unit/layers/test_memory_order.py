"""Gradients that join, and tensors that are copied, in words of eight bytes: as torch would."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from spbench.layers import memory_order
from spbench.layers.memory_order import end_to_end, reshaped, split_in_memory_order

ORDERS = [(0, 1, 2, 3, 4), (2, 0, 1, 3, 4)]
"""Of (B, T, S, Z, D) as it lies in memory: as it is, and the second axis outermost."""


@pytest.fixture(params=["cpu", "gpu"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What copies: a GPU, for which this processor stands, copies in words."""
    if request.param == "gpu":
        monkeypatch.setattr(memory_order, "is_on_gpu", lambda x: True)
        monkeypatch.setattr(memory_order, "in_words", words)
    return str(request.param)


def words(parts: list[Tensor]) -> list[Tensor]:
    """As of a GPU, for rows of eight bytes."""
    ends = [(x.shape[-1], x.storage_offset(), *x.stride()[:-1]) for x in parts]
    if any(n * 2 % 8 for each in ends for n in each) or any(x.stride(-1) != 1 for x in parts):
        return parts
    return [x.view(torch.int64) for x in parts]


def made(order: tuple[int, ...], heads: int, size: int) -> Tensor:
    shape = (2, 3, 4, heads, size)
    x = torch.randn([shape[dim] for dim in order]).bfloat16()
    return x.permute([order.index(dim) for dim in range(5)]).requires_grad_()


@pytest.mark.parametrize("size", [8, 9])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("used", [(0, 1, 2), (1,)])
def test_gradients_join_as_torchs(
    device: str, order: tuple[int, ...], size: int, used: tuple[int, ...]
) -> None:
    """Of all parts or of one; where a row is no multiple of eight bytes, too."""
    x = made(order, 6, size)
    weights = torch.randn(3, 2, 3, 4, 3, size).bfloat16()

    def loss(parts: list[Tensor]) -> Tensor:
        return sum((parts[i] * weights[i, ..., : parts[i].shape[-2], :]).sum() for i in used)  # type: ignore[return-value]

    (plain,) = torch.autograd.grad(loss(list(x.split([3, 2, 1], -2))), x)
    parts = split_in_memory_order(x, (3, 2, 1), -2, features=2)
    (own,) = torch.autograd.grad(loss(parts), x)
    assert torch.equal(own, plain)
    assert [part.data_ptr() for part in parts] == [
        part.data_ptr() for part in x.split([3, 2, 1], -2)
    ]


@pytest.mark.parametrize("of", [lambda x: x, lambda x: x.transpose(1, 2), lambda x: x[:, :, :0]])
def test_another_shape_is_torchs_with_its_gradient(
    device: str, of: Callable[[Tensor], Tensor]
) -> None:
    x = made(ORDERS[0], 2, 8)
    seen = of(x)
    shape = (seen.shape[0], -1, 2, 8) if seen.numel() else (2, 0, 2, 8)
    plain, own = seen.reshape(shape), reshaped(seen, shape)
    assert torch.equal(own, plain)
    assert own.stride() == plain.stride()
    weights = torch.randn(plain.shape).bfloat16()
    gradients = [
        torch.autograd.grad((y * weights).sum(), x, retain_graph=True)[0] for y in (own, plain)
    ]
    assert torch.equal(*gradients)


def test_gradients_that_lie_end_to_end_are_joined_without_a_copy() -> None:
    """In the order of the split alone, and of one tensor."""
    whole = torch.randn(4, 5, 3, 8, 2)
    q, k, v = whole.unbind(2)
    joined = end_to_end((q, k, v), -2)
    assert joined is not None
    assert joined.data_ptr() == whole.data_ptr()
    assert torch.equal(joined, whole.flatten(2, 3))
    others = [(k, q, v), (q, v), (q, k, v.clone()), (q, k, whole.clone().unbind(2)[2])]
    assert [end_to_end(parts, -2) for parts in others] == [None] * len(others)
    assert end_to_end((q, k), -1) is None


def test_a_split_hands_back_what_its_parts_were_given() -> None:
    """As torch's own, also where the gradients lie elsewhere."""
    x = torch.randn(3, 6, 4, requires_grad=True)
    for order in ((0, 1, 2), (1, 0, 2)):
        lying = x.permute(order).contiguous().permute(order)
        grad = torch.randn(3, 6, 4)
        parts = split_in_memory_order(lying, (3, 1, 2), -2, features=2)
        for given in (grad.split((3, 1, 2), -2), [g.clone() for g in grad.split((3, 1, 2), -2)]):
            (back,) = torch.autograd.grad(parts, x, given, retain_graph=True)
            assert torch.equal(back, grad)
