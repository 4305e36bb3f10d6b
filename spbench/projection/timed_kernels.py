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

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import final

import numpy as np
from numpy.typing import NDArray

from spbench.projection.constants import interpolated
from spbench.projection.work import BIASED, Kernel
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
    def named(cls, times_us: Mapping[str, float]) -> "TimedKernels":
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
