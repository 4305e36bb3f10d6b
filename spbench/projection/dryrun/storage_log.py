"""The memory of a step on tensors without data: when storages appear and die, and what they are.

Sizes are rounded up to 512 bytes, as the CUDA allocator rounds them. Torch's own kernels may need
more for a moment than what they return: that is known of a CPU's attention, and not of a GPU's.

Torch's flash attention on a CPU goes through scores in blocks of queries and keys, which it has
room for once, in float32 at least; numbers of 16 bits are rounded in a second room. Each thread has
its own rooms; ranks that share a machine's cores have few, and one is counted. Backward copies a
gradient that does not lie in memory as (b, S, Z, D). Blocks and rooms are those of torch's source,
aten/src/ATen/native/cpu/FlashAttentionKernel.cpp. The softmax of an attention with a bias notes
which scores are masked, a byte each.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, final

from torch import Tensor, UntypedStorage

from spbench.projection.dryrun.meta_ops import BACKWARD, CPU_FLASH, Dataless
from spbench.worker.memory import rounded

Part = Literal["parameters", "gradients", "activations", "temporaries"]
Level = Counter[Part]
"""Bytes by part."""


@final
@dataclass(frozen=True)
class Stretch:
    """A stretch of a step: what is alive as it begins, and at its peak."""

    start: Level
    peak: Level


@final
@dataclass(eq=False, slots=True)
class _Held:
    """A storage that was alive."""

    size: int
    part: Part
    in_forward: bool = False
    """Whether forward made it, or its recomputation: what outlives that is an activation."""
    watch: weakref.ref[UntypedStorage] | None = None


@final
class StorageLog:
    """Notes storages as they come and go, in stretches of the step that are named."""

    def __init__(self, run: Dataless) -> None:
        """``run``: where the operations of the step run."""
        self.run = run
        self.in_forward = False
        """Whether forward is running, or the recomputation of a block or an attention."""
        self.resized: Callable[[], Iterable[Tensor]] = tuple
        """Tensors whose memory comes and goes without an operation."""
        self._alive: dict[int, _Held] = {}
        self._events: list[object] = []
        """A storage that appears or dies, or the name of the stretch that begins."""

    def hold(self, tensors: Iterable[Tensor], part: Part) -> None:
        """Tensors that are there before the step begins, and outlive it."""
        for tensor in tensors:
            self._see(tensor, part)

    def begin(self, name: object) -> None:
        """A stretch begins."""
        self.look_at_resized()
        self._events.append(name)

    def look_at_resized(self) -> None:
        """Notes what has become larger or smaller by itself."""
        for tensor in self.resized():
            storage = tensor.untyped_storage()
            held, size = self._alive.get(storage._cdata), rounded(storage.nbytes())
            if held is not None and held.size != size:
                now = _Held(size, "temporaries", watch=held.watch)
                self._alive[storage._cdata] = now
                self._events += [held, now]
            if held is not None:
                held.in_forward = False  # what it holds belongs to no activation

    def forward_ends(self) -> None:
        """Forward, or a recomputation, is over: what it made and is alive, stays."""
        self.in_forward = False
        for held in self._alive.values():
            if held.in_forward:
                held.part, held.in_forward = "activations", False

    def settle(self, gradients: Iterable[Tensor | None]) -> None:
        """What the step has left: gradients, in buckets or not."""
        for each in gradients:
            if each is not None:
                self._alive[each.untyped_storage()._cdata].part = "gradients"

    def created(self, out: Any) -> None:
        """An operation has returned new tensors."""
        if self.run.is_on:
            for each in out if isinstance(out, tuple) else (out,):
                if each is not None:
                    self._see(each, "gradients" if self.run.phase == "gradients" else "temporaries")

    def inside(self, size: int) -> None:
        """An operation took so much while it ran."""
        inside = _Held(rounded(size), "temporaries")
        self._events += [inside, inside]

    def _see(self, tensor: Tensor, part: Part) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return
        watch = weakref.ref(storage, partial(self._forget, key))
        held = _Held(rounded(storage.nbytes()), part, self.in_forward, watch)
        self._alive[key] = held
        self._events.append(held)

    def _forget(self, key: int, _: object) -> None:
        held = self._alive.pop(key)
        held.watch = None
        if self.run.is_on and self.run.phase == "gradients":
            held.part = "gradients"  # it was packed into a bucket
        self._events.append(held)

    def stretches(self) -> dict[object, Stretch]:
        """Every stretch by its name, from what parts storages turned out to be; of one that comes
        again, with another microbatch, the highest peak."""
        found: dict[object, Stretch] = {}
        alive: set[_Held] = set()
        now: Level = Counter()
        name: object = None
        start, peak, most, total = Level(now), Level(now), 0, 0
        for event in [*self._events, None]:
            if isinstance(event, _Held) and event not in alive:
                alive.add(event)
                now[event.part] += event.size
                total += event.size
                continue
            if total > most:  # as nothing more is added
                peak, most = Level(now), total
            if isinstance(event, _Held):
                alive.remove(event)
                now[event.part] -= event.size
                total -= event.size
                continue
            before = found.get(name, Stretch(start, peak))
            highest = max(before.peak, peak, key=Counter.total)
            found[name] = Stretch(before.start, highest)
            name, start, peak, most = event, Level(now), Level(now), total
        return found


KEY_BLOCK = 512
QUERY_BLOCKS = ((768, 256), (192, 64), (0, 32))
"""Queries from which on, and how many of them make a block."""


def workspace_bytes(name: str, args: Sequence[Any]) -> int:
    """Bytes for a moment of an operation of this name; 0 of one that needs none."""
    if name == CPU_FLASH:
        return _forward(*args[:2])
    if name == CPU_FLASH + BACKWARD:
        return _backward(*args[:3])
    if name == "_safe_softmax":
        scores = args[0]
        return scores.numel() + scores.numel() // scores.shape[-1]
    return 0


def _forward(q: Tensor, k: Tensor) -> int:
    """Scores, their largest and their sum of each row, and the rows' results."""
    rows, columns = _block(q, k)
    wide = rows * (columns + 2 + q.shape[-1]) * max(4, q.element_size())
    return wide + _rounded(q, rows * columns)


def _backward(grad: Tensor, q: Tensor, k: Tensor) -> int:
    """Scores and their gradients, and a sum of each row."""
    rows, columns = _block(q, k)
    wide = rows * (2 * columns + 1) * max(4, q.element_size())
    copied = 0 if grad.transpose(1, 2).is_contiguous() else grad.nbytes
    return copied + wide + _rounded(q, 2 * rows * columns)


def _block(q: Tensor, k: Tensor) -> tuple[int, int]:
    queries, keys = q.shape[2], k.shape[2]
    rows = next(size for least, size in QUERY_BLOCKS if queries >= least)
    return min(rows, queries), min(KEY_BLOCK, keys)


def _rounded(q: Tensor, numbers: int) -> int:
    """Bytes of numbers of 16 bits, where q has such."""
    return numbers * q.element_size() if q.element_size() < 4 else 0
