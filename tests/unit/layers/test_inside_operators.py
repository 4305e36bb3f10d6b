"""A dispatch mode sees what runs inside operators that a package has added to torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import Library, custom_op

from spbench.layers import dispatch_modes
from spbench.layers.dispatch_modes import KernelsSeen, WatchingMode, is_foreign, is_python
from spbench.worker.memory import LiveStorages


@custom_op("seen::doubled_sine", mutates_args=())
def doubled_sine(x: Tensor) -> Tensor:
    return x.sin() * 2


doubled_sine.register_autograd(
    lambda ctx, grad: grad * ctx.saved_tensors[0].cos() * 2,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


@custom_op("seen::of_cpu", mutates_args=(), device_types="cpu")
def of_cpu(xs: list[Tensor], scale: float = 3.0) -> list[Tensor]:
    return [x.cos() * scale for x in xs]


@custom_op("seen::grow_", mutates_args=("x",))
def grow_(x: Tensor) -> None:
    x.mul_(2)


@custom_op("seen::one_in_another", mutates_args=())
def one_in_another(x: Tensor) -> Tensor:
    return doubled_sine(x) + 1


@custom_op("seen::gives_what_it_gets", mutates_args=())
def gives_what_it_gets(x: Tensor) -> Tensor:
    return x


@custom_op("seen::attends", mutates_args=())
def attends(x: Tensor) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(x, x, x)


@custom_op("seen::wasteful", mutates_args=())
def wasteful(x: Tensor) -> Tensor:
    return torch.cat([x] * 100).sum(0, keepdim=True)


@custom_op("seen::made", mutates_args=(), device_types="cpu")
def made(length: int, device: torch.device) -> Tensor:
    return torch.ones(length, device=device)


class Operations(WatchingMode):
    """Notes what it is handed, and looks inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.__name__.partition(".")[0])
        return self.call(func, args, kwargs)


@pytest.fixture
def library() -> Iterator[Library]:
    """An operator without ``custom_op``, whose kernel is Python code."""
    made = Library("seen_library", "FRAGMENT")
    made.define("tripled(Tensor x) -> Tensor")
    made.impl("tripled", lambda x: x.exp() * 3, "CPU")
    yield made
    made._destroy()


def test_values_gradients_and_what_runs_inside() -> None:
    """Forward and backward, as without the mode."""
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    with Operations() as seen:
        out = doubled_sine(x)
        out.sum().backward()
    assert seen.names[:3] == ["doubled_sine", "sin", "mul"]
    assert "cos" in seen.names[3:]
    assert torch.equal(out, 2 * x.sin())
    assert x.grad is not None
    assert torch.allclose(x.grad, 2 * x.cos())


def test_lists_defaults_and_kernels_of_one_device() -> None:
    """Arguments are read as torch reads them."""
    xs = [torch.randn(3), torch.randn(5)]
    with Operations() as seen:
        default, other = of_cpu(xs), of_cpu(xs, scale=2.0)
    assert seen.names == ["of_cpu", "cos", "mul", "cos", "mul"] * 2
    assert all(torch.equal(y, x.cos() * 3) for x, y in zip(xs, default, strict=True))
    assert all(torch.equal(y, x.cos() * 2) for x, y in zip(xs, other, strict=True))


def test_a_changed_argument_has_a_new_version() -> None:
    """Autograd is to notice that what it kept was overwritten."""
    x = torch.ones(3)
    before = x._version
    with Operations() as seen:
        grow_(x)
    assert seen.names == ["grow_", "mul_"]
    assert x.tolist() == [2.0] * 3
    assert x._version > before


def test_one_operator_inside_another() -> None:
    """Both are looked into."""
    x = torch.ones(2)
    with Operations() as seen:
        one_in_another(x)
    assert seen.names == ["one_in_another", "doubled_sine", "sin", "mul", "add"]


def test_a_mode_above_another() -> None:
    """Both see what is inside."""
    x = torch.ones(2)
    with Operations() as outer, Operations() as inner:
        doubled_sine(x)
    assert inner.names == ["doubled_sine", "sin", "mul"]
    assert outer.names == ["sin", "mul"]


def test_what_torch_checks_is_still_checked() -> None:
    """An operator may not return what it was given."""
    with Operations(), pytest.raises(RuntimeError, match="alias"):
        gives_what_it_gets(torch.ones(2))


def test_the_kernel_that_is_registered_last_is_the_one_that_runs() -> None:
    """A kernel for one device, and the definition again where it is switched off."""

    @custom_op("seen::switched", mutates_args=())
    def switched(x: Tensor) -> Tensor:
        return x.sin()

    @switched.register_kernel("cpu")
    def _(x: Tensor) -> Tensor:
        return x.cos()

    x = torch.ones(2)
    with Operations() as seen:
        of_cpu_alone = switched(x)
        with switched.set_kernel_enabled("cpu", False):
            of_definition = switched(x)
    assert torch.equal(of_cpu_alone, x.cos())
    assert torch.equal(of_definition, x.sin())
    assert seen.names == ["switched", "cos", "switched", "sin"]


def test_an_operator_of_a_library(library: Library) -> None:
    """``torch.library.Library`` keeps no definition, and is looked into like the rest."""
    x = torch.ones(2)
    operator = torch.ops.seen_library.tripled.default
    with Operations() as seen:
        out = operator(x)
    assert torch.equal(out, x.exp() * 3)
    assert seen.names == ["tripled", "exp", "mul"]
    assert is_python(operator, (x,), {})


def test_an_operator_without_tensors_runs_as_it_is() -> None:
    """torch finds its kernel by an argument."""
    with Operations() as seen:
        out = made(3, torch.device("cpu"))
    assert out.tolist() == [1.0] * 3
    assert seen.names == ["made"]


def test_compiled_code_is_not_taken_for_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here one of torch's stands for a package's: it runs as it does without a mode."""
    monkeypatch.setattr(dispatch_modes, "KNOWN", dispatch_modes.KNOWN - {"quantization"})
    x = torch.ones(2, 4)
    operator = torch.ops.quantization._FloatToBfloat16Quantized.default
    assert is_foreign(operator)
    assert not is_python(operator, (x,), {})
    assert is_python(torch.ops.seen.doubled_sine.default, (x,), {})
    assert not any(map(is_foreign, (torch.ops.aten.sin.default, torch.ops.c10d.send.default)))
    with Operations() as seen:
        out = operator(x)
    assert torch.equal(out, operator(x))
    assert seen.names[0] == "_FloatToBfloat16Quantized"


def test_instruments_see_what_is_inside() -> None:
    """The kernel of an attention, and memory that is given back before the operator ends."""
    x = torch.randn(1, 2, 8, 16)
    with KernelsSeen() as kernels:
        attends(x)
    assert kernels.names == ["flash"]
    with LiveStorages([x]) as tracker:
        wasteful(x)
    assert tracker.peak_bytes > 100 * x.nbytes
