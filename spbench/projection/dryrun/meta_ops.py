"""Runs torch's operations on tensors without data, each signature of them worked out once.

Tensors lie on torch's device ``meta``: shapes, strides and dtypes alone. What torch itself does
there takes up to milliseconds an operation; here a known signature costs as much as its result.
Attention is one operation where it is one on the device, in place of the products it would be here.

Private parts of torch: names of attention's operations, and the dispatch mode of ``WatchingMode``.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, final

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from spbench.errors import Failure
from spbench.layers.dispatch_modes import WatchingMode
from spbench.layers.kernels import AS_ON, like_queries
from spbench.projection.dryrun.work import BIASED, Kernel
from spbench.worker.memory import held_bytes
from spbench.workload.case import Device
from spbench.workload.traffic import Phase

META = torch.device("meta")
aten = torch.ops.aten
SHARE_MEMORY = ("aten::_unsafe_view", "fsdp::all_gather_copy_in")
"""Operations whose result is a view, though their schema does not say so."""
CPU_FLASH = "_scaled_dot_product_flash_attention_for_cpu"
EFFICIENT = "_scaled_dot_product_efficient_attention"
BACKWARD = "_backward"
"""How the name of an attention's backward ends, of (gradient, q, k, v, ...)."""
ATTENTION = {CPU_FLASH: 4, EFFICIENT: 6, CPU_FLASH + BACKWARD: 7, EFFICIENT + BACKWARD: 11}
"""Attentions of (q, k, v, ...) and their backwards, and the place of whether they are causal."""
MOST_OPERATIONS = 1_000_000
"""Operations of a pass, views included; a ring of 1,024 ranks has about 150,000 of them."""
Signature = tuple[Any, ...]
Metadata = tuple[Sequence[int], Sequence[int], torch.dtype]
"""Shape, strides and dtype of a tensor."""


@final
@dataclass(frozen=True, eq=False)
class Known:
    """What an operation gives for one signature, and what is noted of it."""

    note: Any
    outs: list[Metadata | None]
    is_single: bool

    def result(self) -> Any:
        """New tensors, as the operation would return them."""
        made = [
            None if out is None else torch.empty_strided(out[0], out[1], dtype=out[2], device=META)
            for out in self.outs
        ]
        return made[0] if self.is_single else tuple(made)


def load_compiler() -> None:
    """Has torch load its compiler, as operations on META do: what it leaves would hold tensors."""
    torch.cat([torch.empty(1, device=META)])


class TooManyOperationsError(Failure):
    """A step that would take minutes to run through."""


class Dataless(WatchingMode):
    """Runs operations on META. Of code that ``torch.compile`` would compile, too, each operation:
    no compiler has kernels for META."""

    supports_higher_order_operators = False

    def __init__(self, device: Device, known: dict[Signature, Known] | None = None) -> None:
        """``device``: whose kernels' results lie in memory as here. ``known``: what such runs on
        the same device have learnt, and learn."""
        super().__init__()
        self.device = device
        self.known = {} if known is None else known
        self._left = MOST_OPERATIONS
        self.phase: Phase = "forward"
        self.is_on = False
        """Whether what runs is counted."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return False

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Inside, what runs is noted, and no garbage is looked for, which would be in all notes."""
        collects = gc.isenabled()
        gc.disable()
        before = AS_ON.set(self.device)
        self.is_on = True
        try:
            yield
        finally:
            self.is_on = False
            AS_ON.reset(before)
            if collects:
                gc.enable()

    def noted(self, name: str, args: Sequence[Any], outs: Sequence[Tensor]) -> Any:
        """What is noted of a new signature that is not a view, with the tensors that it gives."""

    def created(self, out: Any) -> None:
        """Called with what an operation returns in new memory."""

    def called(self) -> None:
        """Called before each operation, a view too."""

    def launched(self, known: Known) -> None:
        """Called with each operation that is not a view, when its results are there."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._left -= 1
        if self._left < 0:
            raise TooManyOperationsError(
                f"a dry run of more than {MOST_OPERATIONS:,} operations, about as many for each "
                "rank of a ring, and of uneven shards; use fewer ranks"
            )
        self.called()
        kwargs = kwargs or {}
        way = _way_of(func)
        if way is VIEW:
            return func(*args, **kwargs)
        key = (func, *map(_signature, args), *[(k, _signature(v)) for k, v in kwargs.items()])
        known = self.known.get(key)
        if known is None:
            known = self.known[key] = self._learnt(func, args, kwargs, way)
        if way is NEW:
            self.created(out := known.result())
        else:
            out = written(way, args, kwargs)
        self.launched(known)
        return out

    def _learnt(self, func: Any, args: Any, kwargs: dict[str, Any], way: Any) -> Known:
        name = func.__name__.partition(".")[0]
        if way is not NEW:
            outs: Any = written(way, args, kwargs)
        elif name in ATTENTION:
            outs = (_gradients if BACKWARD in name else _attended)(name, args, self.device)
        else:
            outs = func(*args, **kwargs)
            if name == "native_layer_norm" and self.device == "cpu":  # whose means are as weights
                rows = args[0] if args[2] is None else args[2]
                outs = (outs[0], *(x.to(rows.dtype) for x in outs[1:]))
        flat = list(outs) if isinstance(outs, (tuple, list)) else [outs]
        note = self.noted(name, [*args, *kwargs.values()], [x for x in flat if x is not None])
        metadata = [None if x is None else _signature(x) for x in flat]
        return Known(note, metadata, is_single=flat[0] is outs)


VIEW, NEW = "view", "new"


@cache
def _way_of(func: Any) -> Any:
    """How a call is answered: VIEW, NEW, or the argument that is written to, by place and name."""
    schema = func._schema
    if schema.name in SHARE_MEMORY or not any("Tensor" in str(x.type) for x in schema.returns):
        return VIEW
    places = [i for i, x in enumerate(schema.arguments) if x.alias_info and x.alias_info.is_write]
    if places:
        return places[0], schema.arguments[places[0]].name
    return VIEW if any(x.alias_info for x in schema.returns) else NEW


def written(way: tuple[int, str], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The argument that an operation writes to, and returns."""
    place, name = way
    return args[place] if place < len(args) else kwargs[name]


def _signature(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype
    return tuple(map(_signature, value)) if isinstance(value, (list, tuple)) else value


def _attended(name: str, args: Sequence[Any], device: Device) -> tuple[Tensor, ...]:
    """Results (b, Z, S, Dv) in the memory order of q, as kernels write them, and log-sum-exps
    (b, Z, S), of a CPU's kernel as (b, S, Z); of the memory-efficient one seeds of dropout, too."""
    q, _, v = [x for x in args if isinstance(x, Tensor)][:3]
    by_position = device == "cpu"
    like = q[..., 0].transpose(1, 2) if by_position else q[..., 0]
    lse = like.new_empty(like.shape, dtype=torch.promote_types(q.dtype, torch.float32))
    seeds = [q.new_empty((), dtype=torch.int64) for _ in range(2)] if name == EFFICIENT else []
    return like_queries(q, v), lse.transpose(1, 2) if by_position else lse, *seeds


def _gradients(name: str, args: Sequence[Any], device: Device) -> tuple[Tensor, ...]:
    """dQ, dK and dV; of the memory-efficient kernel that of the bias, too. In the memory order of
    what they are gradients of; a CPU's always as (b, S, Z, D)."""
    _, *given = [x for x in args if isinstance(x, Tensor)][: 5 if name.startswith(EFFICIENT) else 4]
    if device == "cpu":
        return tuple(x.new_empty(x.transpose(1, 2).shape).transpose(1, 2) for x in given)
    return tuple(map(torch.empty_like, given))


# The kernel that a GPU launches for an operation: its kind, shape, operations and bytes.

GEMMS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "mv": 0, "addmv": 1}
"""Products by name, and the place of their left factor."""
NOTHING = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided")
"""Operations that launch nothing."""
LINE_BYTES, LINES = 64, 64
"""A line of a CPU's first cache, and how many of them one way of it has: 4 KiB."""
PACKED = 16
"""Head sizes from which on a CPU's attention copies keys before it multiplies them."""
ROWS = 32
"""Keys that are more than any set holds."""
CROWDED = {1: "on one set", 2: "on two sets"}
"""Attentions of short heads whose keys fall on so few sets of that cache: they take 1.4 to 2 times
as long."""
SHORT_ROW = 16
"""Numbers of a row below which a CPU takes two to seven times as long for each, and in a softmax
twenty times: it has no vectors for them."""
OVERWRITING = ("copy", "fill", "zero")
"""Operations that do not read what they write to."""


def kernel_of(
    name: str, args: Sequence[Any], outs: Sequence[Tensor], *, on_cpu: bool = True
) -> Kernel | None:
    """The kernel of an operation, as one of phase ``forward``; None: it launches nothing. ``name``:
    as torch names it, without overload; in place operations end in ``_``. ``on_cpu``: a GPU takes
    short rows as others."""
    if name in NOTHING or not any(out.numel() for out in outs):
        return None
    base = name.rstrip("_")
    if base in GEMMS:
        return _gemm(args[GEMMS[base] :][:2], _bytes_of(args, outs, base))
    if name in ATTENTION:
        return _attention(name, args, outs)
    return Kernel(
        kind="elementwise",
        phase="forward",
        name=base,
        has_short_rows=on_cpu and _has_short_rows(base, args, outs),
        shape=(),
        flops=0,
        moved_bytes=_bytes_of(args, outs, base),
    )


def _gemm(factors: Sequence[Tensor], moved: int) -> Kernel:
    left, right = factors
    batch = left.shape[0] if left.ndim == 3 else 1
    m, k = left.shape[-2:]
    n = right.shape[-1] if right.ndim > 1 else 1
    return Kernel(
        kind="gemm",
        phase="forward",
        shape=(batch, m, n, k),
        flops=2 * batch * m * n * k,
        moved_bytes=moved,
    )


def _attention(name: str, args: Sequence[Any], outs: Sequence[Tensor]) -> Kernel:
    """Two products of queries and keys in forward, five in backward, which has scores anew."""
    is_backward, place = BACKWARD in name, ATTENTION[name]
    is_masked = place < len(args) and bool(args[place])
    q, k, v = [each for each in args if isinstance(each, Tensor)][is_backward:][:3]
    is_far = k.shape[-1] < PACKED and k.shape[2] >= ROWS
    batch, heads, queries, size = q.shape
    key_heads, keys = k.shape[1:3]
    pairs = queries * keys
    if is_masked:  # query i sees keys 0 to i: a triangle, and all keys from the last of them on
        triangle = min(queries, keys)
        pairs = triangle * (triangle + 1) // 2 + (queries - triangle) * keys
    return Kernel(
        kind="attention",
        phase="forward",
        shape=(batch, heads, key_heads, queries, keys, size),
        flops=2 * batch * heads * pairs * _numbers_of_a_pair(size, v.shape[-1], is_backward),
        moved_bytes=_bytes_of(args, outs, ""),
        is_masked=is_masked,
        is_backward=is_backward,
        name=BIASED if name.startswith(EFFICIENT) else CROWDED.get(_sets(k), "") if is_far else "",
    )


def _numbers_of_a_pair(key_size: int, value_size: int, is_backward: bool) -> int:
    """Over which products go for a query and a key: scores and results; backward scores once more,
    the gradients of queries and of keys, and that of the weights and of the values."""
    return 3 * key_size + 2 * value_size if is_backward else key_size + value_size


def _sets(rows: Tensor) -> int:
    """Sets of a CPU's first cache that rows of keys lie on: one where 4 KiB divides the stride."""
    lines, rest = divmod(rows.stride(2) * rows.element_size(), LINE_BYTES)
    return LINES if rest else LINES // math.gcd(LINES, lines or 1)


def _has_short_rows(base: str, args: Sequence[Any], outs: Sequence[Tensor]) -> bool:
    """Whether few numbers lie next to each other in all tensors of an elementwise kernel, in the
    order of the largest of its arguments; of a softmax, whether few are in a row."""
    given = [x for x in tree_leaves(args) if isinstance(x, Tensor)] or [*outs]
    whole = max(given, key=Tensor.numel)
    if "softmax" in base:
        return whole.shape[-1] < SHORT_ROW
    every = [_strides(x, whole.ndim) for x in (*given, outs[0]) if x.ndim <= whole.ndim]
    dims = (d for d in range(whole.ndim) if whole.shape[d] > 1)
    row, nearest = 1, [1] * len(every)
    for d in sorted(dims, key=lambda d: max(strides[d] for strides in every)):
        steps = [strides[d] for strides in every]
        nearest = [min(step, 1) for step in steps] if row == 1 else nearest
        if steps != [row * step for step in nearest]:
            break
        row *= whole.shape[d]
    return row < min(SHORT_ROW, whole.numel())


def _strides(x: Tensor, dims: int) -> list[int]:
    """In so many dims, as broadcast: 0 where numbers repeat."""
    own = [step if n > 1 else 0 for n, step in zip(x.shape, x.stride(), strict=True)]
    return [0] * (dims - x.ndim) + own


def _bytes_of(args: Sequence[Any], outs: Sequence[Tensor], base: str) -> int:
    """Bytes that are read, of arguments, and written, of results."""
    written = {id(out) for out in outs}
    overwrites = base in OVERWRITING
    given = (x for x in tree_leaves(args) if isinstance(x, Tensor))
    read = (x for x in given if not (overwrites and id(x) in written))
    return sum(map(held_bytes, read)) + sum(map(held_bytes, outs))
