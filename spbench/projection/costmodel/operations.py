"""Seconds of a kernel from those of kernels that were timed: from the most alike of them.

Products and attentions do as much a second as the nearest ones that were timed, by the
logarithms of their lengths; the nearer one is, the more it counts, and where some have the same
lengths, none but these. Attentions whose keys lie badly in a cache (``kernel_of``), or on a GPU
have a bias, take longer by what such ones did. An elementwise kernel's time lies on a line through
those of its own operation, by the logarithms of bytes and time: an exponential takes longer than a
copy of as many bytes; those over short rows (``kernel_of``) go by their like. Beyond the sizes that
were timed, a smaller kernel takes as long as the smallest, and a larger one as much longer than the
largest as plain passes do, or in proportion, if that is less. On a GPU, whose passes wait for
memory alone, each byte takes as long as at the nearest size.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import final

import numpy as np
from numpy.typing import NDArray

from spbench.errors import Failure
from spbench.projection.costmodel.constants import Doubt, interpolated
from spbench.projection.costmodel.hardware import AttentionRates, Device
from spbench.projection.dryrun.work import BIASED, Kernel
from spbench.workload.timed import TimedKernel

NEAREST = 4
"""Kernels that a rate is made of, at most."""
NEAR = 0.15
"""Distance, in powers of 2 of a length, below which two kernels are one."""
INDEPENDENT, QUERIES = 0.25, 0.5
"""What a power of 2 of products or heads side by side counts, and of an attention's queries, beside
one of another length: a score's time depends on the keys of its row."""
BIAS = 3.5
"""How much longer a GPU's attention takes with a bias that has a gradient, by its memory-efficient
kernel: on an H200 4.2 times the fastest kernel's time forward, 3.1 backward
(docs/log/2026-11-26-one-h200.md)."""
PASS = "pass"
"""A pass over memory that only reads and writes."""
Shape = tuple[int, ...]
"""As of ``Kernel``; of an elementwise kernel the bytes that it moves."""


VECTOR, LEFT_OVER = 8, 0.5
"""Keys of a vector, and how far apart attentions lie of which one has some left over: a score of 91
keys takes a tenth to a fifth longer than one of 88 or 96."""
PACKING = ("cat", "clone", "copy", "stack")
"""Passes that pack messages too, in words of eight bytes on a GPU: no dry run has those."""
EXPONENTIAL = 64
"""Multiply-adds that take as long as the exponential of a score: on a CPU with heads of 4 to 16 a
score takes about as long whatever the size."""


def name_of(label: str, shape: Shape) -> str:
    """As in a file."""
    return f"{label} {'x'.join(map(str, shape))}"


def is_computed(name: str) -> bool:
    """Whether it is a product or an attention: one of several lengths."""
    return "x" in name.rpartition(" ")[2]


def label_of(kernel: Kernel | TimedKernel) -> str:
    """What kernels have in common whose times tell of each other: 'masked attention backward'."""
    if kernel.kind == "elementwise":
        return (kernel.name or PASS) + " of short rows" * kernel.has_short_rows
    kind = "masked " * kernel.is_masked + kernel.kind + " backward" * kernel.is_backward
    return f"{kind} {kernel.name}".strip()


def operations(label: str, shape: Shape) -> float:
    """Operations of a product, or of an attention those that a mask leaves."""
    if label == "gemm":
        return 2.0 * math.prod(shape)
    batch, heads, _, queries, keys, size = shape
    pairs = queries * keys
    if label.startswith("masked"):
        pairs = sum(min(row + 1, keys) for row in range(queries))
    return 2.0 * (5 if "backward" in label else 2) * batch * heads * pairs * size


def _effort(label: str, shape: Shape) -> float:
    """What a kernel's rate is of. A score of an attention takes an exponential, too, and that is as
    long whatever the head size; where half is masked, short rows are computed whole."""
    if label == "gemm":
        return operations(label, shape)
    batch, heads, _, queries, keys, size = shape
    return float(batch * heads * queries * keys * (size + EXPONENTIAL))


def _place(shape: Shape) -> NDArray[np.float64]:
    """Coordinates of a shape: what is alike lies near."""
    if len(shape) == 4:  # a product
        batch, *lengths = map(math.log2, shape)
        return np.array([INDEPENDENT * batch, 0.0, *lengths])
    left_over = LEFT_OVER * (shape[4] % VECTOR > 0)
    queries, *others = map(math.log2, shape[3:])
    return np.array(
        [INDEPENDENT * math.log2(shape[0] * shape[1]), left_over, QUERIES * queries, *others]
    )


@final
@dataclass(frozen=True)
class TimedKernels:
    """Seconds of kernels of one type, by label and shape."""

    seconds: Mapping[str, Mapping[Shape, float]]

    @classmethod
    def named(cls, times_us: Mapping[str, float]) -> TimedKernels:
        """From microseconds by name, as a file has them."""
        seconds: dict[str, dict[Shape, float]] = {}
        for name, took_us in times_us.items():
            label, _, shape = name.rpartition(" ")
            seconds.setdefault(label, {})[tuple(map(int, shape.split("x")))] = took_us / 1e6
        return cls(seconds)

    def seconds_of(self, kernel: Kernel, *, in_proportion: bool = False) -> float | None:
        """None where none of its operation was timed. ``in_proportion``: an elementwise one takes
        as long for a byte as that of the nearest size, as on a GPU."""
        label, name = label_of(kernel), kernel.name
        if kernel.kind == "elementwise":
            known = self._passes(label) or self._passes(name)
            size = max(kernel.moved_bytes, 1)
            if known and in_proportion:
                nearest = min(known, key=lambda at: abs(math.log(at / size)))
                return known[nearest] * size / nearest
            return on_line(known, size, self._passes(PASS)) if known else None
        plain = label.removesuffix(f" {name}") if name else label
        near = next((each for each in (plain, label) if each in self._rates), None)
        if near is None:
            return None
        slower = 1.0 if near == label else self._crowded(label, kernel.shape[4])
        return slower * _effort(near, kernel.shape) / self._rate(near, kernel.shape)

    def _passes(self, label: str) -> dict[int, float]:
        """Seconds of elementwise kernels by their bytes."""
        return {at: s for (at,), s in self.seconds.get(label, {}).items()}

    def _crowded(self, label: str, keys: int) -> float:
        """What the name in a label stands for: the time over that without, of as many keys."""
        means = self._slower.get(label)
        if not means:
            return BIAS if label.endswith(BIASED) else 1.0
        return interpolated([*means], [*means.values()], keys)

    @cached_property
    def _slower(self) -> dict[str, dict[int, float]]:
        """Mean ratio of a timed kernel with such a name to one without, by label and keys."""
        found: dict[str, dict[int, float]] = {}
        for plain, label in product(self._rates, self._rates):
            if label.startswith(f"{plain} on "):
                ratios: dict[int, list[float]] = {}
                for shape, s in self.seconds[label].items():
                    slower = s * self._rate(plain, shape) / _effort(plain, shape)
                    ratios.setdefault(shape[4], []).append(slower)
                found[label] = {n: statistics.geometric_mean(ratios[n]) for n in sorted(ratios)}
        return found

    def _rate(self, label: str, shape: Shape) -> float:
        places, rates = self._rates[label]
        own = _place(shape)
        as_long = np.isclose(places[:, 1:], own[1:]).all(axis=1)
        if as_long.any():
            places, rates = places[as_long], rates[as_long]
        squares = np.square(places - own).sum(axis=1)
        nearest = np.argsort(squares)[:NEAREST]
        weights = 1 / np.square(squares[nearest] + NEAR**2)
        return float(np.exp(np.average(rates[nearest], weights=weights)))

    @cached_property
    def _rates(self) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Coordinates of each kernel of a label, and logarithms of their rates."""
        return {
            label: (
                np.array([_place(shape) for shape in known]),
                np.log([_effort(label, shape) / s for shape, s in known.items()]),
            )
            for label, known in self.seconds.items()
            if any(len(shape) > 1 for shape in known)
        }


def on_line(known: Mapping[int, float], size: int, passes: Mapping[int, float]) -> float:
    """The time at ``size`` on the line through known ones, by logarithms of both. Plain passes,
    which are timed in a cache, tell how much of the largest was its launch."""
    at = sorted(known)
    if size <= at[-1]:
        return interpolated(at, [known[each] for each in at], size)
    longer = on_line(passes, size, {}) / on_line(passes, at[-1], {}) if passes else math.inf
    return known[at[-1]] * min(longer, size / at[-1])


# Seconds of a kernel on a device: a roofline, with rates that depend on size.
#
#     product      max(flops / rate(size) * waves, bytes / memory rate)
#     attention    max(flops of whole tiles / rate(keys, head size), bytes / memory rate)
#     elementwise  bytes / (memory rate * part of it that torch's kernel reaches)
#
# or, where single kernels were timed, the time of those like it (``timed_kernels``).
#
# Waves: a product of m x n numbers has ceil(m / tile) ceil(n / tile) tiles of its result, and a
# device of U units computes U at a time, so the last wave may be nearly empty. The rate of a table
# holds that loss for the sizes that were measured; only what exceeds a full wave counts here.
# Tiles: a GPU's attention computes ROWS queries and as many keys at a time, also where there are
# fewer.

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

    priced: dict[Kernel, KernelCost] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    """Kernels that were asked for before: a step launches the same one many times."""

    def cost(self, kernel: Kernel) -> KernelCost:
        """Seconds of one kernel. Raises Failure where the device's file has no such rate."""
        if kernel not in self.priced:
            self.priced[kernel] = self._cost(kernel)
        return self.priced[kernel]

    def _cost(self, kernel: Kernel) -> KernelCost:
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
