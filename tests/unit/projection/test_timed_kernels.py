"""Times of kernels from those of kernels like them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from spbench.projection.costmodel.operations import TimedKernels, label_of, name_of, operations
from spbench.projection.dryrun.meta_ops import kernel_of
from spbench.projection.dryrun.work import Kernel

RATE = 1e9


def gemm(*shape: int) -> Kernel:
    return Kernel(kind="gemm", phase="forward", shape=shape, flops=0, moved_bytes=1)


def passing(name: str, moved: int, *, short: bool = False) -> Kernel:
    return Kernel(
        kind="elementwise",
        phase="forward",
        name=name,
        has_short_rows=short,
        shape=(),
        flops=0,
        moved_bytes=moved,
    )


def attention(keys: int, *, masked: bool = False, backward: bool = False, name: str = "") -> Kernel:
    return Kernel(
        kind="attention",
        phase="forward",
        shape=(1, 4, 4, keys, keys, 16),
        flops=0,
        moved_bytes=1,
        is_masked=masked,
        is_backward=backward,
        name=name,
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


def test_what_was_timed_with_the_same_lengths_alone_counts() -> None:
    """16 keys of the same number of heads lie nearer, and are four times as fast."""
    kernels = [attention(16), replace(attention(17), shape=(16, 4, 4, 17, 17, 16))]
    known = timed((kernels[0], 4 * 16**2 * 1e-9), (kernels[1], 64 * 17**2 * 4e-9))
    assert known.seconds_of(attention(17)) == pytest.approx(4 * 17**2 * 4e-9)


def test_keys_left_over_take_as_long_as_elsewhere() -> None:
    """A vector holds 8 keys: 91 are more like 107 than like 88 or 96."""
    taken = ((88, 1e-9), (96, 1e-9), (107, 1.2e-9))
    known = timed(*((attention(keys), keys**2 * each) for keys, each in taken))
    left_over, whole = (known.seconds_of(attention(keys)) / keys**2 for keys in (91, 104))
    assert whole == pytest.approx(1e-9, rel=0.02)
    assert left_over == pytest.approx(1.2e-9, rel=0.07)


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


def test_a_pass_over_short_rows_goes_by_those_over_short_rows() -> None:
    """Where none was timed, by any of its operation."""
    long, short = passing("mul", 1000), passing("mul", 1000, short=True)
    known = timed((long, 1e-6), (short, 5e-6))
    assert known.seconds_of(long) == pytest.approx(1e-6)
    assert known.seconds_of(short) == pytest.approx(5e-6)
    assert timed((long, 1e-6)).seconds_of(short) == pytest.approx(1e-6)


def test_a_launch_counts_once_in_a_pass_that_is_larger_than_any_that_was_timed() -> None:
    """A plain pass over 1,000 bytes is nearly all launch, and one over 1 MB nearly none."""
    known = timed(
        (passing("silu", 1000), 1e-5), (passing("", 1000), 1e-5), (passing("", 1_000_000), 1e-4)
    )
    assert known.seconds_of(passing("silu", 1_000_000)) == pytest.approx(1e-4)
    assert known.seconds_of(passing("silu", 10_000_000)) == pytest.approx(1e-3)
    cached = timed(
        (passing("silu", 1000), 1e-5), (passing("", 1000), 1e-6), (passing("", 2000), 1e-5)
    )
    assert cached.seconds_of(passing("silu", 2000)) == pytest.approx(2e-5)


ROWS = torch.empty(64, 4, 8)
CASES = {
    "a broadcast factor": ("mul", [ROWS, torch.empty(8)], ROWS, True),
    "a factor for each row": ("mul", [ROWS, torch.empty(64, 4, 1)], ROWS, True),
    "every second number": ("mul", [torch.empty(64, 32)[:, ::2], 2.0], torch.empty(64, 16), True),
    "a mean of short rows": ("mean", [ROWS, [-1]], torch.empty(64, 4, 1), True),
    "joined in short rows": ("cat", [[ROWS, ROWS], -1], torch.empty(64, 4, 16), True),
    "one after the other": ("cat", [[ROWS, ROWS], 0], torch.empty(128, 4, 8), False),
    "all in a row": ("add", [ROWS, ROWS], ROWS, False),
    "in another order": ("add", [ROWS.transpose(0, 1)] * 2, ROWS.transpose(0, 1), False),
    "a gradient of one number": ("mul", [ROWS[:1, :1, :1].expand(64, 4, 8), ROWS], ROWS, False),
    "few in all": ("add", [torch.empty(3), torch.empty(3)], torch.empty(3), False),
    "a softmax of short rows": ("_softmax", [ROWS, -1, False], ROWS, True),
    "a softmax of longer rows": ("_softmax", [ROWS.view(64, 32), -1, False], ROWS, False),
    "made of nothing": ("arange", [64], torch.empty(64), False),
}
"""Operations, their arguments, results, and whether few numbers lie next to each other."""


@pytest.mark.parametrize("case", CASES)
def test_a_pass_tells_whether_its_rows_are_short(case: str) -> None:
    name, args, out, is_short = CASES[case]
    found = kernel_of(name, args, [out])
    assert found is not None
    assert found.has_short_rows == is_short


def test_an_attention_is_not_its_backward_nor_a_masked_one() -> None:
    known = timed((attention(64), 1e-3), (attention(64, backward=True), 5e-3))
    assert known.seconds_of(attention(64)) == pytest.approx(1e-3)
    assert known.seconds_of(attention(128)) == pytest.approx(4e-3)
    assert known.seconds_of(attention(64, backward=True)) == pytest.approx(5e-3)
    assert known.seconds_of(attention(64, masked=True)) is None
    masked = timed((attention(64, masked=True), 1e-3))
    assert masked.seconds_of(attention(64, masked=True)) == pytest.approx(1e-3)


def test_keys_on_few_sets_of_a_cache_take_as_much_longer_as_those_that_were_timed() -> None:
    plain = [(attention(keys), keys**2 * 1e-6) for keys in (32, 64, 128)]
    far = attention(64, name="on one set")
    known = timed(*plain, (far, 2 * 64**2 * 1e-6))
    assert known.seconds_of(attention(128, name="on one set")) == pytest.approx(
        2 * known.seconds_of(attention(128)),
        rel=0.05,  # type: ignore[operator]
    )
    assert timed(*plain).seconds_of(far) == timed(*plain).seconds_of(attention(64))
    assert timed((far, 1e-3)).seconds_of(far) == pytest.approx(1e-3)
    assert timed((far, 1e-3)).seconds_of(attention(64)) is None


@pytest.mark.parametrize(
    ("distance", "size", "keys", "name"),
    [
        (1024, 8, 64, "on one set"),
        (3072, 8, 64, "on one set"),
        (1536, 8, 64, "on two sets"),
        (1000, 8, 64, ""),
        (1024, 16, 64, ""),
        (1024, 8, 16, ""),
    ],
)
def test_an_attention_tells_how_its_keys_lie(
    distance: int, size: int, keys: int, name: str
) -> None:
    """Rows of float32 so many numbers apart; as of one head."""
    rows = torch.empty(keys * distance).as_strided((1, 1, keys, size), (1, 1, distance, 1))
    found = kernel_of("_scaled_dot_product_flash_attention_for_cpu", [rows] * 3, [rows])
    assert found is not None
    assert found.name == name


def test_operations_do_not_depend_on_how_keys_lie() -> None:
    for backward, products in ((False, 2), (True, 5)):
        for name in ("", "on one set"):
            kernel = attention(64, backward=backward, name=name)
            expected = 2 * products * 4 * 64 * 64 * 16
            assert operations(label_of(kernel), kernel.shape) == expected
