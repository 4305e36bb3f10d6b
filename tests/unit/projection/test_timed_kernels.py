"""Times of kernels from those of kernels like them."""

from __future__ import annotations

import pytest

from spbench.projection.timed_kernels import TimedKernels, label_of, name_of, operations
from spbench.projection.work import Kernel

RATE = 1e9


def gemm(*shape: int) -> Kernel:
    return Kernel(kind="gemm", phase="forward", shape=shape, flops=0, moved_bytes=1)


def passing(name: str, moved: int) -> Kernel:
    return Kernel(
        kind="elementwise", phase="forward", name=name, shape=(), flops=0, moved_bytes=moved
    )


def attention(keys: int, *, masked: bool = False, backward: bool = False) -> Kernel:
    return Kernel(
        kind="attention",
        phase="forward",
        shape=(1, 4, 4, keys, keys, 16),
        flops=0,
        moved_bytes=1,
        is_masked=masked,
        is_backward=backward,
    )


def timed(*pairs: tuple[Kernel, float]) -> TimedKernels:
    """As a file has them."""
    return TimedKernels.named(
        {name_of(label_of(x), x.shape or (x.moved_bytes,)): 1e6 * s for x, s in pairs}
    )


def test_a_product_goes_at_the_rate_of_those_like_it() -> None:
    """A skinny one is slow, however many operations it has."""
    shapes = {(1, 64, 64, 64): RATE, (1, 512, 512, 512): 2 * RATE, (64, 64, 8, 128): RATE / 8}
    known = timed(*((gemm(*x), operations("gemm", x) / rate) for x, rate in shapes.items()))
    for shape, rate in shapes.items():
        assert known.seconds_of(gemm(*shape)) == pytest.approx(
            operations("gemm", shape) / rate, rel=0.02
        )
    skinny = (96, 60, 8, 120)
    assert known.seconds_of(gemm(*skinny)) == pytest.approx(
        operations("gemm", skinny) / (RATE / 8), rel=0.1
    )
    between = operations("gemm", (1, 181, 181, 181)) / known.seconds_of(gemm(1, 181, 181, 181))  # type: ignore[operator]
    assert RATE < between < 2 * RATE


def test_an_elementwise_kernel_goes_by_its_own_operation() -> None:
    known = timed(
        (passing("gelu", 1000), 1e-6),
        (passing("gelu", 100_000), 1e-4),
        (passing("add", 1000), 1e-7),
    )
    assert known.seconds_of(passing("gelu", 10_000)) == pytest.approx(1e-5)
    assert known.seconds_of(passing("gelu", 10)) == pytest.approx(1e-6)
    assert known.seconds_of(passing("gelu", 1_000_000)) == pytest.approx(1e-3)
    assert known.seconds_of(passing("add", 1000)) == pytest.approx(1e-7)
    assert known.seconds_of(passing("erf", 1000)) is None


def test_an_attention_is_not_its_backward_nor_a_masked_one() -> None:
    known = timed((attention(64), 1e-3), (attention(64, backward=True), 5e-3))
    assert known.seconds_of(attention(64)) == pytest.approx(1e-3)
    assert known.seconds_of(attention(128)) == pytest.approx(4e-3)
    assert known.seconds_of(attention(64, backward=True)) == pytest.approx(5e-3)
    assert known.seconds_of(attention(64, masked=True)) is None
    masked = timed((attention(64, masked=True), 1e-3))
    assert masked.seconds_of(attention(64, masked=True)) == pytest.approx(1e-3)
