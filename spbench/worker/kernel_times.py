"""Products, attentions and passes over memory, each by itself against the clock.

All ranks compute the same at the same time, as in a step: ranks on one CPU share its cores and its
memory. Kernels are those that strategies call. Small steps tell what a step takes beside them.

An operation of a step is called again and again on tensors of its own: on several copies in turn,
which together exceed a core's caches, and what a call returns stays until its copy comes again. In
a step, too, an operation reads what others wrote meanwhile, and writes to new memory.
"""

import statistics
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, final

import torch
from torch import Tensor

from spbench.comm.fake import silent_transports
from spbench.comm.group import Group
from spbench.layers.kernels import kernel as attention
from spbench.strategies.registry import in_mesh
from spbench.worker.memory import held_bytes
from spbench.worker.observer import Observer
from spbench.worker.step import Step
from spbench.worker.timer import BLOCK_S, Call, ProcessorSpeed, seconds_of
from spbench.workload.case import GateCheck
from spbench.workload.timed import TimedKernel

ROUNDS = 3
"""How often all kernels are timed, one after another: what disturbs the machine for a second meets
a kernel once. The median counts."""
EVERY, NEAR = 4, 3
"""Kernels from one look at the processor's speed to the next, and looks on either side of a kernel
whose median is the speed there: single ones scatter by more than it changes in a second."""
STEPS_S = 0.03  # seconds of a block of small steps: a fit has few of them
LEAST = TimedKernel(kind="elementwise", shape=[1], dtype="float32")  # no time but a launch


@final
class KernelTimer:
    """Times kernels and small steps on the ranks of ``group``, side by side. A processor's speed
    changes meanwhile: on a CPU all those times are as at one speed, the middle one. ``even_s``: the
    ranks' ``even_clock``."""

    def __init__(self, group: Group, observer: Observer, even_s: Callable[[], float]) -> None:
        self._group, self._observer = group, observer
        self._speed = None if group.device.type == "cuda" else ProcessorSpeed(group)
        self._even_s = even_s
        self.cpu_gflop_per_s: float | None = None
        """The speed of those times, the same on all ranks; None on a GPU, and until it is known."""

    def times(
        self, kernels: Sequence[TimedKernel], steps: Sequence[GateCheck]
    ) -> tuple[list[float], list[float], list[float]]:
        """Seconds of each kernel, of each small step of which this rank does all, and of those of
        which it does its share, with messages that are packed and not sent. Steps come between
        kernels, which they are compared with: a neighbour on the core slows all of them."""
        places = (0, 1), (self._group.rank, self._group.size)
        both = [partial(self._step, each, *place) for each in steps for place in places]
        calls = [(partial(prepared, each, self._group.device), BLOCK_S) for each in kernels]
        calls += [(each, STEPS_S) for each in both]
        evenly = [at / len(part) for part in (kernels, both) for at in range(len(part))]
        order = sorted(range(len(calls)), key=evenly.__getitem__)
        taken_s = dict(zip(order, self._medians([calls[at] for at in order]), strict=True))
        of_all = [taken_s[at] for at in range(len(calls))]
        of_steps = of_all[len(kernels) :]
        return of_all[: len(kernels)], of_steps[::2], of_steps[1::2]

    def launch(self) -> float:
        """Seconds of the host for a launch."""
        with self._observer.phase("launches"):
            least = prepared(LEAST, self._group.device)
            return seconds_of(least, self._group, self._even_s, waits=False)

    def _step(self, asked: GateCheck, rank: int, ranks: int) -> Callable[[], object]:
        strategy, transports = in_mesh(asked.strategy, asked.mesh), silent_transports(rank, ranks)
        step = Step(asked.workload, strategy, transports, self._group.device)
        return partial(step, *step.seeded_inputs())

    def _medians(self, calls: Sequence[tuple[Callable[[], Call], float]]) -> list[float]:
        """Seconds of each call, prepared anew in each round, over a block of so many seconds."""
        rounds, every = [], []
        torch.set_flush_denormal(True)  # what shrinks in place ends at 0, not among slower numbers
        try:
            for _ in range(ROUNDS):
                took_s, looks = [], []
                for number, (prepare, block_s) in enumerate(calls, start=1):
                    with self._observer.phase(f"kernel or step {number} of {len(calls)}"):
                        took_s.append(seconds_of(prepare(), self._group, self._even_s, block_s))
                    if number % EVERY == 1:
                        looks.append(self._speed.look() if self._speed is not None else 0.0)
                every += looks
                around = (looks[max(0, at - NEAR) : at + NEAR + 1] for at in range(len(looks)))
                speeds = [statistics.median(each) or 1.0 for each in around]
                rounds.append([took * speeds[at // EVERY] for at, took in enumerate(took_s)])
        finally:
            torch.set_flush_denormal(False)
        if every:
            of_ranks = map(float, self._group.gather_text(str(statistics.median(every))))
            self.cpu_gflop_per_s = statistics.median(of_ranks) or None
        middle_s = map(statistics.median, zip(*rounds, strict=True))
        return [each / (self.cpu_gflop_per_s or 1.0) for each in middle_s]


def prepared(kernel: TimedKernel, device: torch.device) -> Callable[[], object]:
    """The call of a kernel on tensors of its own."""
    if kernel.op:
        return repeated_call(kernel, device)
    match kernel.kind:
        case "gemm":
            batch, m, n, k = kernel.shape
            left, right = _random(kernel, device, batch, m, k), _random(kernel, device, batch, k, n)
            out = _random(kernel, device, batch, m, n)
            if batch == 1:  # as of a projection: no batch
                left, right, out = left[0], right[0], out[0]
            return lambda: torch.matmul(left, right, out=out)
        case "attention":
            return _attention(kernel, device)
        case "elementwise":
            (count,) = kernel.shape
            there, here = _random(kernel, device, count), _random(kernel, device, count)
            return lambda: here.copy_(there)


def _attention(kernel: TimedKernel, device: torch.device) -> Callable[[], object]:
    batch, heads, key_heads, queries, keys, size = kernel.shape
    q = _random(kernel, device, batch, heads, queries, size)
    k, v = (_random(kernel, device, batch, key_heads, keys, size) for _ in range(2))
    if not kernel.is_backward:
        return lambda: attention(q, k, v, is_causal=kernel.is_masked)
    qkv = [x.requires_grad_() for x in (q, k, v)]
    out = attention(*qkv, is_causal=kernel.is_masked)
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, qkv, gradient, retain_graph=True)


def _random(kernel: TimedKernel, device: torch.device, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=getattr(torch, kernel.dtype), device=device)


COLD_BYTES = 4 * 2**20
"""Bytes of all copies together, at least: more than a core's second cache. A GPU's is larger."""
MOST_COPIES = 32


def repeated_call(kernel: TimedKernel, device: torch.device) -> Callable[[], object]:
    """The call of ``kernel.op``. Raises AttributeError where torch has none."""
    name, _, overload = kernel.op.partition(".")
    operation = getattr(getattr(torch.ops.aten, name), overload)
    first = _made(kernel.given, device)
    own = torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else 0
    cold = max(COLD_BYTES, 2 * own)
    copies = min(MOST_COPIES, max(1, cold // max(1, _bytes(first))))
    given = [first, *(_made(kernel.given, device) for _ in range(copies - 1))]
    named = {key: _made(value, device) for key, value in kernel.named.items()}
    if "device" in {each.name for each in operation._schema.arguments}:
        named["device"] = device
    kept: list[object] = [None] * copies
    turn = 0

    def call() -> None:
        nonlocal turn
        turn = (turn + 1) % copies
        kept[turn] = operation(*given[turn], **named)

    return call


def _made(value: Any, device: torch.device) -> Any:
    """The value, with tensors for their descriptions."""
    if isinstance(value, list):
        return [_made(each, device) for each in value]
    if not isinstance(value, dict):
        return value
    dtype = getattr(torch, value["dtype"])
    return _tensor(value["shape"], value["stride"], dtype, device) if "shape" in value else dtype


def _tensor(
    shape: list[int], stride: list[int], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Random numbers, of integers zeros, which are indices of everything."""
    if not dtype.is_floating_point:
        return torch.empty_strided(shape, stride, dtype=dtype, device=device).zero_()
    held = 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True) if n)
    some = _some_numbers(dtype, device)[:held]
    return some.repeat(-(-held // len(some))).as_strided(shape, stride)


@cache
def _some_numbers(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Random ones: as many as a kernel reads would take longer to make than the kernel takes."""
    return torch.randn(2**14, dtype=dtype, device=device)


def _bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return held_bytes(value)
    return sum(map(_bytes, value)) if isinstance(value, list) else 0
