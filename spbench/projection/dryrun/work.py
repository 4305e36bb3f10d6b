"""What one rank does in a step, as data: how often each kernel and each message occurs.

A dry run finds it by running the strategy's own code on tensors without data; a cost model gives
it a time on a cluster. Neither knows the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from typing import Literal, final

from spbench.workload.traffic import Op, Phase

KernelKind = Literal["gemm", "attention", "elementwise"]
BIASED = "on a bias"
"""The name of a GPU's attention with a bias that has a gradient."""


@final
@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One launch on a device."""

    kind: KernelKind
    phase: Phase
    shape: tuple[int, ...]
    """gemm: (batch, m, n, k); attention: (batch, heads, key heads, queries, keys, head size);
    elementwise: ()."""
    flops: int
    """Multiplies and adds, two operations for a pair; 0 for elementwise kernels."""
    moved_bytes: int
    """Bytes of the tensors that it reads and of those that it writes."""
    name: str = ""
    """The operation of an elementwise kernel as torch calls it, ``gelu``; blank: a plain pass. Of
    an attention how its keys lie in a cache (``kernel_of``)."""
    has_short_rows: bool = False
    """Whether an elementwise kernel computes a few numbers at a time (``kernel_of``)."""
    is_masked: bool = False
    """Whether an attention is causal: ``flops`` counts what the mask leaves."""
    is_backward: bool = False
    """Whether it is the backward of an attention: five products in place of two."""


@final
@dataclass(frozen=True, kw_only=True)
class Message:
    """One collective, as one rank calls it."""

    op: Op
    phase: Phase
    axis: str
    """The axis of the mesh over whose groups it goes."""
    sent_bytes: int | Fraction
    """A fraction where an all-reduce does not divide by the ranks; a step's sum is rounded once."""
    behind: tuple[Kernel, ...] = ()
    """Kernels that are launched between its start and the wait for it: they may hide it. None for
    ``gradients``, which travel on a group of their own beside the rest of backward."""
    is_last: bool = False
    """Whether it is a sum of gradients that leaves when backward is over: nothing hides it."""


@final
@dataclass(frozen=True, kw_only=True)
class Memory:
    """Peak bytes of a rank in a step, by what holds them at the peak."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    """What forward saved for backward, and inputs."""
    temporaries: int

    @property
    def peak(self) -> int:
        held = self.parameters + self.gradients + self.optimizer
        return held + self.activations + self.temporaries


@final
@dataclass(frozen=True, kw_only=True)
class Work:
    """A step of one rank: kernels and messages with the number of times that each occurs."""

    mesh: tuple[tuple[str, int], ...]
    """The axes of the strategy's mesh and their sizes, outermost first."""
    dtype: str
    kernels: Mapping[Kernel, int]
    messages: Mapping[Message, int]
    calls: int = 0
    """Operations that the host calls, views too."""
    memory: Memory | None = None
    bubble: float = 0.0
    """What a stage of a pipeline waits for others, as a part of what it does."""

    @property
    def launches(self) -> int:
        """Kernels that are launched in a step."""
        return sum(self.kernels.values())

    @property
    def operations(self) -> int:
        """Those of products and attentions together."""
        return sum(each.flops * n for each, n in self.kernels.items())

    def flops(self, kind: KernelKind) -> int:
        """Operations of all kernels of a kind."""
        return sum(each.flops * n for each, n in self.kernels.items() if each.kind == kind)

    @property
    def sent_bytes(self) -> int:
        return round(sum(each.sent_bytes * n for each, n in self.messages.items()))


@final
@dataclass(frozen=True)
class Counted:
    """Kernels and messages of one or more steps, how often each occurs, and calls of the host."""

    kernels: Counter[Kernel]
    messages: Counter[Message]
    calls: int

    def plus(self, other: Counted, times: int = 1) -> Counted:
        """This and ``times`` the other, which may be negative; nothing occurs 0 times."""
        return Counted(
            _plus(self.kernels, other.kernels, times),
            _plus(self.messages, other.messages, times),
            self.calls + times * other.calls,
        )


def summed(parts: Iterable[Counted]) -> Counted:
    """All of them together."""
    return reduce(Counted.plus, parts, Counted(Counter(), Counter(), 0))


def _plus(one: Counter, other: Counter, times: int) -> Counter:  # type: ignore[type-arg]
    total = Counter(one)
    total.update({key: times * count for key, count in other.items()})
    return Counter({key: count for key, count in total.items() if count})


def as_bytes(sent: int | Fraction) -> int | Fraction:
    """A whole number where it is."""
    return sent.numerator if sent.denominator == 1 else sent
