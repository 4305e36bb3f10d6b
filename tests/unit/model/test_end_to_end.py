"""Image and text as one sequence: nothing is lost, mixed up or copied twice."""

from __future__ import annotations

import pytest
import torch

from spbench.model.streams import end_to_end, parted


@pytest.mark.parametrize("text", [0, 3])
@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("batch", [1, 2])
def test_parted_as_they_came(batch: int, first: int, text: int) -> None:
    """Values and gradients, also where a rank holds no text; the sharded axis runs slowest."""
    x = torch.randn(4 + first, batch, 9 - first, 2, 3).movedim(0, first).requires_grad_()
    tokens = torch.randn(text, batch, 2, 3).transpose(0, 1).requires_grad_()
    joint = end_to_end(x, tokens, first)
    assert joint.shape == (batch, x.shape[1] * x.shape[2] + text, 2, 3)
    assert torch.equal(joint[:, : x.shape[3 - first]], x.select(first, 0))
    again = parted(joint, x.shape, first)
    assert torch.equal(again[0], x) and torch.equal(again[1], tokens)
    wanted = torch.randn_like(x), torch.randn_like(tokens)
    given = torch.autograd.grad(again, (x, tokens), wanted)
    assert all(map(torch.equal, given, wanted))


def test_parts_are_views() -> None:
    """Parting copies nothing forward, and joining nothing backward."""
    x, tokens = torch.randn(1, 4, 5, 2, 3, requires_grad=True), torch.randn(1, 3, 2, 3)
    joint = end_to_end(x, tokens, 1)
    grad = torch.randn_like(joint)
    (given,) = torch.autograd.grad(joint, x, grad)
    assert given.data_ptr() == grad.data_ptr()
    assert parted(joint.detach(), x.shape, 1)[0].data_ptr() == joint.data_ptr()
