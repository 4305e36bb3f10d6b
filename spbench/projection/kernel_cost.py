"""Seconds of a kernel on a device: a roofline, with rates that depend on size.

    product      max(flops / rate(size) * waves, bytes / memory rate)
    attention    max(flops of whole tiles / rate(keys, head size), bytes / memory rate)
    elementwise  bytes / (memory rate * part of it that torch's kernel reaches)

or, where single kernels were timed, the time of those like it (``timed_kernels``).

Waves: a product of m x n numbers has ceil(m / tile) ceil(n / tile) tiles of its result, and a
device of U units computes U at a time, so the last wave may be nearly empty. The rate of a table
holds that loss for the sizes that were measured; only what exceeds a full wave counts here. Tiles:
a GPU's attention computes ROWS queries and as many keys at a time, also where there are fewer.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

from spbench.errors import Failure
from spbench.projection.doubts import Doubt
from spbench.projection.hardware import AttentionRates, Device
from spbench.projection.timed_kernels import BIAS, PACKING, Shape, TimedKernels
from spbench.projection.work import BIASED, Kernel

HALF = ("bfloat16", "float16")
ALIKE = Doubt("device.timed_us", 1.15)
"""What kernels vary by whose time is that of those like them."""
REACHED = {
    "native_layer_norm": 0.4,
    "native_layer_norm_backward": 0.27,
    "addcmul": 0.5,
    **dict.fromkeys(PACKING, 0.65),
}
"""Parts of a GPU's rate of memory that torch's kernels reach, where that is much less than all: by
a profile of a step (docs/performance.md, one H200)."""
ROWS = 64
"""Queries, and keys, of the smallest tile of a GPU's attention: 65,536 heads of 8 queries take as
long with 8 keys as with 64 (docs/performance.md, one H200)."""
DIAGONAL = 256
"""Keys of the tiles on the diagonal of a masked attention that are computed and dropped: half of
two tiles of 128, that of a row and that of its neighbour that finishes later."""


@final
@dataclass(frozen=True, kw_only=True)
class KernelCost:
    """Seconds of one kernel, and what its spread comes from."""

    seconds: float
    doubt: Doubt
    """About what bounds it: a rate of products, of attention, or of memory."""


@final
@dataclass(frozen=True, kw_only=True)
class DeviceRates:
    """A device that computes in one type with one attention kernel."""

    device: Device
    dtype: str
    attention_kernel: str = ""
    """Its name in the device's table; empty: the first there."""
    compiled: bool = False
    """Whether passes are a compiler's own kernels, not torch's."""

    def cost(self, kernel: Kernel) -> KernelCost:
        """Seconds of one kernel. Raises Failure where the device's file has no such rate."""
        is_gpu = self.device.kind == "gpu"
        if is_gpu and kernel.kind == "attention" and kernel.flops:
            whole = in_tiles(kernel.shape)
            flops = kernel.flops * math.prod(whole) // math.prod(kernel.shape)
            kernel = replace(kernel, shape=whole, flops=flops)
        if (seconds := self._timed.seconds_of(kernel, in_proportion=is_gpu)) is not None:
            in_step = self.device.in_step
            seconds = max(seconds * (in_step.value if in_step else 1.0), is_gpu * self._least)
            return KernelCost(seconds=seconds, doubt=ALIKE)
        moved = self._moved(kernel)
        if kernel.kind == "elementwise":
            return moved
        own = self._product(kernel) if kernel.kind == "gemm" else self._attention(kernel)
        return max(own, moved, key=lambda each: each.seconds)

    @cached_property
    def _timed(self) -> TimedKernels:
        """Single kernels that were timed; none for a device that is known by its rates."""
        return TimedKernels.named(dict(self.device.timed_us).get(self.dtype, {}))  # type: ignore[call-overload]

    def _moved(self, kernel: Kernel) -> KernelCost:
        rate = self.device.memory_gb_per_s
        is_torchs = self.device.kind == "gpu" and not self.compiled
        reached = REACHED.get(kernel.name, 1.0) if is_torchs else 1.0
        seconds = kernel.moved_bytes / (reached * rate(max(kernel.moved_bytes, 1) / 1e6) * 1e9)
        doubt = Doubt.of("device.memory_gb_per_s", rate)
        return KernelCost(seconds=max(seconds, self._least), doubt=doubt)

    @property
    def _least(self) -> float:
        return self.device.kernel_us.value / 1e6

    def _product(self, kernel: Kernel) -> KernelCost:
        rates = self.device.products.tflops
        if self.dtype not in rates:
            raise Failure(
                f"{self.device.name}: no rate of products in {self.dtype}; "
                f"its file has {', '.join(rates)}: --set dtype={next(iter(rates))}, or calibrate "
                f"with --workload, one in {self.dtype}"
            )
        rate = rates[self.dtype]
        at_rate = kernel.flops / (rate(max(kernel.flops, 1) / 1e9) * 1e12)
        seconds = max(at_rate * self._waste(kernel), self._least)
        return KernelCost(seconds=seconds, doubt=Doubt.of(f"device.products.{self.dtype}", rate))

    def _waste(self, kernel: Kernel) -> float:
        """Tiles that the last wave could hold, over those that there are; 1 from 8 waves on."""
        products = self.device.products
        if products.tile is None:
            return 1.0
        batch, m, n, _ = kernel.shape
        tiles = batch * math.ceil(m / products.tile[0]) * math.ceil(n / products.tile[1])
        waves = tiles / products.units
        return math.ceil(waves) / waves if 1 < waves < 8 else 1.0

    def _attention(self, kernel: Kernel) -> KernelCost:
        *_, keys, size = kernel.shape
        tables = self._tables(is_backward=kernel.is_backward)
        tflops = _by_head_size(tables, keys, size)
        near = min(tables, key=lambda each: abs(each.head_dim - size))
        if kernel.is_masked and near.masked is not None:
            tflops *= near.masked.value / (1 + DIAGONAL / keys)
        tflops *= self._slower(near.dtype)
        if kernel.name == BIASED:
            tflops /= BIAS
        seconds = max(kernel.flops / (tflops * 1e12), self._least)
        return KernelCost(seconds=seconds, doubt=Doubt.of(near.place, near.tflops))

    def _slower(self, known: str) -> float:
        """The rate of products in this type over that in the type of the table."""
        rates = self.device.products.tflops
        if self.dtype == known or {self.dtype, known} <= set(HALF):
            return 1.0
        if not {self.dtype, known} <= set(rates):
            raise Failure(
                f"{self.device.name}: no rate of attention in {self.dtype}; its file has {known}"
            )
        return rates[self.dtype](1e3) / rates[known](1e3)  # type: ignore[index]

    def _tables(self, *, is_backward: bool) -> list[AttentionRates]:
        """The tables of the chosen kernel, by rising head size: in this type, else in one that is
        as fast, else in the first that the file has."""
        name = self.attention_kernel or self.device.kernels[0]
        if name not in self.device.kernels:
            raise Failure(
                f"{self.device.name}: no attention kernel {name!r}; "
                f"its file has {', '.join(self.device.kernels)}"
            )
        tables = [
            each
            for each in self.device.attention
            if each.kernel == name and each.is_backward == is_backward
        ]
        if not tables:
            raise Failure(f"{self.device.name}: no rate of {name!r} in backward")
        of_type = {each.dtype for each in tables}
        as_fast = HALF if self.dtype in HALF else ()
        dtype = next((x for x in (self.dtype, *as_fast) if x in of_type), tables[0].dtype)
        return sorted((x for x in tables if x.dtype == dtype), key=lambda each: each.head_dim)


def in_tiles(shape: Shape) -> Shape:
    """An attention's, with the queries and keys that a GPU's tiles hold."""
    *batch, queries, keys, size = shape
    return *batch, *(ROWS * -(-n // ROWS) for n in (queries, keys)), size


def _by_head_size(tables: list[AttentionRates], keys: int, size: int) -> float:
    """TFLOP/s at a head size: time of a score is that of its products, which grow with the size,
    and of its exponential, which does not; so time per operation is a + b / size."""
    if len(tables) == 1:
        return tables[0].tflops(keys)
    below = [each for each in tables if each.head_dim <= size] or tables[:1]
    at = min(tables.index(below[-1]), len(tables) - 2)
    low, high = tables[at], tables[at + 1]
    slow, fast = 1 / low.tflops(keys), 1 / high.tflops(keys)
    slope = (slow - fast) / (1 / low.head_dim - 1 / high.head_dim)
    return 1 / max(fast + slope * (1 / size - 1 / high.head_dim), min(slow, fast) * 0.8)
