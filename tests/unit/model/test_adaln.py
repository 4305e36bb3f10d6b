"""adaLN's fused form against its plain one: values, gradients, passes over the activation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from spbench.comm.collectives import Collectives
from spbench.comm.fake import silent_transports
from spbench.model import modulation
from spbench.model.modulation import ModulatedNorm
from spbench.model.transformer import Placement, Residual
from spbench.workload.catalogue import find, with_settings
from spbench.workload.sharding import Shard

HIDDEN, T, S = 24, 3, 5
Form = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
ORDERS = [(0, 1, 2), (1, 0, 2), (2, 0, 1), (2, 1, 0)]
"""Orders in memory of sample, time and space."""


def fused(x: Tensor, scale: Tensor, shift: Tensor, gate: Tensor) -> Tensor:
    """A sublayer that takes the sine of what it is given."""
    y, x = modulation.modulated_norm(x, scale, shift)
    return modulation.gated_sum(x, gate, y.sin())


def plain(x: Tensor, scale: Tensor, shift: Tensor, gate: Tensor) -> Tensor:
    y = F.layer_norm(x, x.shape[-1:], eps=modulation.EPS) * (1 + scale) + shift
    return x + gate * y.sin()


class Given(NamedTuple):
    x: Tensor
    scale: Tensor
    shift: Tensor
    gate: Tensor


def given(
    batch: int, per_time: bool, order: Sequence[int], dtype: torch.dtype = torch.float64
) -> tuple[Given, Tensor]:
    """Inputs, with x in an order in memory, and the gradient of the output."""
    generator = torch.Generator().manual_seed(7)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    shape = (batch, T, S, HIDDEN)
    lengths = [shape[dim] for dim in order]
    places = [list(order).index(dim) for dim in range(3)]
    x = (2 * drawn(*lengths, HIDDEN) + 1).permute(*places, 3)
    vectors = [drawn(batch, T if per_time else 1, 1, HIDDEN) for _ in range(3)]
    return Given(x, *vectors), drawn(*shape)


def results(form: Form, leaves: Given, cotangent: Tensor) -> list[Tensor]:
    """The output and all gradients."""
    leaves = Given(*(leaf.detach().requires_grad_() for leaf in leaves))
    out = form(*leaves)
    return [out, *torch.autograd.grad(out, leaves, cotangent)]


def error(found: Tensor, wanted: Tensor) -> float:
    found, wanted = found.detach().double(), wanted.detach()
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("per_time", [False, True])
@pytest.mark.parametrize("batch", [1, 2])
def test_it_equals_the_plain_form(batch: int, per_time: bool, order: tuple[int, ...]) -> None:
    """In float64, also recomputed: with one vector, and with several."""
    leaves, cotangent = given(batch, per_time, order)

    def recomputed(*leaves: Tensor) -> Tensor:
        out: Tensor = checkpoint(fused, *leaves, use_reentrant=False)
        return out

    wanted = results(plain, leaves, cotangent)
    for form in (fused, recomputed):
        found = results(form, leaves, cotangent)
        assert max(map(error, found, wanted)) < 1e-12


@pytest.mark.parametrize("batch", [1, 2])
def test_the_order_in_memory_stays(batch: int) -> None:
    """What comes out, and the gradient of the input, lie in memory as the input does."""
    for order in ORDERS:
        leaves, cotangent = given(batch, False, order)
        lying = leaves.x.stride()
        grads = results(fused, leaves, cotangent.as_strided(cotangent.shape, lying))
        assert all(grad[0].stride() == lying[1:] for grad in grads[:2])


def test_sums_of_16_bits_are_the_plain_forms() -> None:
    """A CPU's layer norm would sum the gradients of scale and shift in 16 bits."""
    leaves, cotangent = given(1, False, ORDERS[0], torch.bfloat16)
    operations = []

    class Named(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            operations.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with Named():
        found = results(fused, leaves, cotangent)
    assert "addcmul.default" in operations
    assert [leaf.dtype for leaf in found] == [torch.bfloat16] * 5


class Passes(TorchDispatchMode):
    """Counts passes over an activation of ``elements``."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.elements, self.counted = elements, 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        allocates = func.__name__.startswith(("empty", "new_empty"))
        if not func.is_view and not allocates:
            read, written = tree_leaves(args), tree_leaves(result)
            tensors = [each for each in read + written if isinstance(each, Tensor)]
            sizes = [each.numel() for each in tensors if each.numel() >= self.elements]
            self.counted += sum(sizes) / self.elements
        return result


class Handed(nn.Module):
    """A sublayer that hands on what it is given, in a view."""

    def forward(self, x: Tensor, *_: Any) -> Tensor:
        return x.view_as(x)


def passes(batch: int, order: Sequence[int]) -> float:
    """Passes in the backward of a modulated residual of the model, about its sublayer."""
    work = with_settings(find("dsp-720m-small"), [f"batch={batch}"])
    comm = Collectives(silent_transports(0, 1).strategy)
    place = Placement(Shard.even(1, work.axes["time"], 1), ())
    residual = Residual(ModulatedNorm(work, 0, place.shard, comm), Handed(), place)
    lengths = [(batch, *work.axes.values())[dim] for dim in order]
    places = [list(order).index(dim) for dim in range(3)]
    x, cotangent = (torch.randn(*lengths, work.hidden).permute(*places, 3) for _ in range(2))
    condition = torch.randn(batch, 1, 1, 1, 3, work.hidden)
    leaves = [x.requires_grad_(), condition.requires_grad_(), residual.norm.table]
    out, _ = residual(x, None, [condition], None)
    with Passes(x.numel()) as seen:
        torch.autograd.grad(out, leaves, cotangent)
    return seen.counted


def test_passes() -> None:
    """12 passes over the activation in backward of norm, modulation and gated residual; 21 where
    samples have vectors of their own.

    A pass is an operand of an operation, read, or its result, written, of the activation's size.
    What an operation does inside is its own: layer norm's backward has two kernels on a GPU, which
    both read. Views and allocations are none.
    """
    assert [passes(1, order) for order in ORDERS] == [12] * len(ORDERS)
    assert passes(2, ORDERS[0]) == 21
