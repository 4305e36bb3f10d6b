"""From a calibration's times of collectives to the constants of a level of links.

The smallest message, of 1 KiB, gives the latency, and each larger one the rate of what is left.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression, nnls

from spbench.errors import UNFIT, Failure
from spbench.projection.costmodel.constants import (
    CollectiveRate,
    Constant,
    Curve,
    Level,
    constant,
    curve,
    rounded,
)
from spbench.projection.costmodel.hardware import AttentionRates, Device, Products
from spbench.projection.costmodel.message_cost import host_calls
from spbench.projection.costmodel.operations import (
    DeviceRates,
    in_tiles,
    label_of,
    name_of,
    operations,
)
from spbench.projection.dryrun.trace import work
from spbench.projection.dryrun.work import BIASED
from spbench.projection.microbench.calibration_plan import Timed, TimedCollective
from spbench.strategies.registry import in_mesh
from spbench.text import counted, grouped
from spbench.workload.fields import DTYPE_BYTES, Dtype
from spbench.workload.flops import step_flops
from spbench.workload.timed import LARGE, TimedKernel
from spbench.workload.traffic import OPS

LEAST_PART = 0.05
"""Part of the latency that a message takes beyond it, at least: less is not told from none."""
LEAST_S = 1e-7
"""A time that is shorter is not told from none."""


def level(name: str, timed: Timed, fewest: Timed | None) -> Level:
    """The links between ranks; ``fewest``: times of two ranks, if ``timed`` is of more."""
    rates = {}
    for op in OPS:
        few = None if fewest is None or op == "p2p" else fewest.collective(op)
        rates[op] = collective_rate(timed.collective(op), few)
    return Level(name=name, ranks=timed.plan.ranks, collectives=rates)


def collective_rate(timed: TimedCollective, fewest: TimedCollective | None) -> CollectiveRate:
    """Latency and rates; ``fewest``: the same of fewer ranks, from which the time of each further
    rank follows, as far as the latency has room for it."""
    latency_s, rates = _latency_and_rates(timed)
    hop: Constant | None = None
    if fewest is not None and fewest.ranks < timed.ranks:
        few_s, _ = _latency_and_rates(fewest)
        each_s = (latency_s - few_s) / (timed.ranks - fewest.ranks)
        hop = constant(1e6 * each_s) if each_s > LEAST_S else None
    hops_s = hop.value / 1e6 * (timed.ranks - 2) if hop else 0.0
    if hops_s >= latency_s - LEAST_S:
        hop, hops_s = None, 0.0
    latency = constant(1e6 * (latency_s - hops_s))
    return CollectiveRate(latency_us=latency, hop_us=hop, gb_per_s=rates)


def _latency_and_rates(timed: TimedCollective) -> tuple[float, Curve]:
    """The smallest message's time, and rates by what all take beyond it, those as fast as it too. A
    message that took longer than a larger one shares its time, as chance moved both: their mean."""
    sizes, taken = zip(*sorted(timed.points), strict=True)
    seconds = isotonic_regression(taken).x
    rates = np.array(sizes) / np.maximum(seconds - seconds[0], LEAST_PART * seconds[0]) / 1e9
    return float(seconds[0]), curve(zip(np.array(sizes) / 1e6, rates, strict=True))


# From times of kernels to the constants of a cluster's devices.

LEAST_BYTES = 4 * 2**20
"""What a GPU reads and writes in less time than a launch takes: such a pass tells of its host."""
UNTOLD = 3.0
"""The factor of a constant that small steps do not tell apart from another."""
HOST_BOUND = 0.5
"""Kernels' part of a step's time below which a GPU waits for its host."""
MEMORY_BOUND = 0.5
"""What reading and writing takes of a product's time on a GPU from which on it tells no rate of
products."""
BUSY = 3.0
"""Factor of a pass's time over that of a larger one from which on the machine is not idle: a clock
that changes, or a neighbour's cache, moves it by less."""
FALLS = 20.0
"""Part to which no cache's end lets a rate fall from one size to the next: registers and the first
cache against memory are some ten."""
GUESSED = tuple(
    Constant(value=us, source="as of hosts of hgx-h100, not timed", kind="inferred", spread=spread)
    for us, spread in ((30.0, 2.0), (6.0, 2.0), (120.0, 3.0))
)
"""Microseconds of a GPU's launch, of a compiled model's, and of a collective's call, until small
steps tell."""


def device(name: str, kind: str, memory_gb: float, timed: Timed) -> Device:
    """What a rank has of a machine, while as many ranks as in the plan compute. Raises Failure
    where its passes over memory show that others compute, too."""
    passes = [(k, s) for k, s in timed.kernels("elementwise") if not k.name]
    memory = _memory_rates([(_moved(k), s) for k, s in passes], timed.plan.ranks)
    products = timed.kernels("gemm")
    if kind == "gpu":
        told = [(k, s) for k, s in products if not _is_memory_bound(k, s, memory)]
        known = {kernel.dtype for kernel, _ in told}
        products = told + [each for each in products if each[0].dtype not in known]
    rates = {
        dtype: curve((_flops(k) / 1e9, _flops(k) / s / 1e12) for k, s in of_type)
        for dtype, of_type in grouped(products, lambda pair: pair[0].dtype).items()
    }
    attentions = timed.kernels("attention")
    plain = [(k, s) for k, s in attentions if k.name != BIASED]
    bare = constant(1e6 * timed.launch_s, UNTOLD)
    launch, compiled, _ = GUESSED if kind == "gpu" else (bare, bare, bare)
    return Device.model_validate(
        {
            "name": name,
            "kind": kind,
            "memory_gb": constant(memory_gb, spread=1.02),
            "memory_gb_per_s": memory,
            "products": Products(tflops=rates),
            "attention": tuple(_attention(plain or attentions, kind)),
            "launch_us": launch,
            "compiled_launch_us": compiled,
            "kernel_us": constant(1e6 * min(s for _, s in passes)),
            "timed_us": timed_us(timed, kind),
            "cpu_gflop_per_s": timed.cpu_gflop_per_s,
        }
    )


def _memory_rates(passes: Iterable[tuple[int, float]], ranks: int) -> Curve:
    """GB/s of passes over memory, by bytes and seconds of each. A pass that takes longer than one
    over more bytes waited for something else meanwhile: by so much the rates are in doubt. Raises
    Failure where that is much, or a rate is a small part of the one before, which no cache does."""
    rising = sorted(passes)
    apart = 1.0
    for i, (moved, seconds) in enumerate(rising[:-1]):
        larger, less_s = min(rising[i + 1 :], key=lambda each: each[1])
        apart = max(apart, seconds / less_s)
        if seconds > BUSY * less_s:
            raise Failure(_busy(ranks, (moved, seconds), (larger, less_s)), UNFIT)
        after, after_s = rising[i + 1]
        if after_s / after > FALLS * seconds / moved:
            raise Failure(_busy(ranks, (after, after_s), (moved, seconds)), UNFIT)
    made = curve((moved / 1e6, moved / seconds / 1e9) for moved, seconds in rising)
    return made.model_copy(update={"spread": rounded(max(made.factor, apart))})


def _busy(ranks: int, slow: tuple[int, float], other: tuple[int, float]) -> str:
    """Why two passes, by bytes and seconds, are not of an idle machine."""
    (moved, seconds), (known, known_s) = slow, other
    return (
        f"on {counted(ranks, 'rank')} a pass over {moved / 1e6:,.3g} MB of memory took "
        f"{1e3 * seconds:,.3g} ms ({moved / seconds / 1e9:,.2g} GB/s), and one over "
        f"{known / 1e6:,.3g} MB {1e3 * known_s:,.3g} ms: others use this machine; "
        f"calibrate when they are done"
    )


def in_steps(found: Device, timed: Timed) -> tuple[Device, Constant]:
    """The device with what a kernel takes in a step over its time by itself, and the host's time of
    any operation, a view too; and that of a collective beside its transfer. They hold Python and
    autograd. Small steps of one rank, and of a rank of many, have the least squares of relative
    errors with these three.
    On a GPU the host's time is of steps in which kernels are too short for it to wait, and the
    kernels' of large ones, under a power cap that few kernels reach alone."""
    rows, is_gpu = _terms(found, timed), found.kind == "gpu"
    if is_gpu:
        are_large = 2 * [step_flops(each.workload) > LARGE for each in timed.plan.steps]
        if any(are_large):
            in_step = constant(1 / statistics.fmean(rows[are_large, 0]))
            found = found.model_copy(update={"in_step": in_step})
        rows = rows[rows[:, 0] < HOST_BOUND] * [0, 1, 1]
    if not len(rows):
        return (found, GUESSED[-1]) if is_gpu else (found, found.launch_us)
    in_step, launch_s, call_s = _least_squares(rows)
    spreads = (1.5, 2.0) if is_gpu else (1.2, 1.2) if len(rows) > 2 else (UNTOLD, UNTOLD)
    if not (launch_s and call_s):
        in_step, together_s = _least_squares(np.column_stack([rows[:, 0], rows[:, 1:].sum(axis=1)]))
        spreads = (spreads[0] if launch_s and not rows[:, 2].any() else UNTOLD, UNTOLD)
        launch_s = call_s = together_s or timed.launch_s
    launch, call = (constant(1e6 * s, x) for s, x in zip((launch_s, call_s), spreads, strict=True))
    own = {"operation_us": launch}
    if not is_gpu:
        own["in_step"] = constant(in_step)
    return found.model_copy(update=own), call


def _terms(found: Device, timed: Timed) -> NDArray[np.float64]:
    """For each step, of one rank and of a rank of many: seconds of its kernels, operations, and
    calls of collectives, each over the seconds that it took."""
    rows = []
    for ranks, seconds in ((1, timed.steps_s), (timed.plan.ranks, timed.shares_s)):
        for step, took_s in zip(timed.plan.steps, seconds, strict=True):
            strategy = in_mesh(step.strategy, step.mesh)
            done = work(step.workload, strategy, ranks, 0, device=found.runs_on)
            rates = DeviceRates(device=found, dtype=done.dtype)
            kernels_s = sum(n * rates.cost(kernel).seconds for kernel, n in done.kernels.items())
            calls = sum(host_calls(message.op) * n for message, n in done.messages.items())
            rows.append([term / took_s for term in (kernels_s, done.calls, calls)])
    return np.array(rows).reshape(-1, 3)


def _least_squares(terms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Factors at or above 0 whose sum of terms is nearest to 1 in each row. Where the first term's
    would be 0, it is 1: rows cannot tell the terms apart, and kernels do take their time."""
    fitted, _ = nnls(terms, np.ones(len(terms)))
    if fitted[0]:
        return fitted
    rest, _ = nnls(terms[:, 1:], np.maximum(1 - terms[:, 0], 0))
    return np.array([1.0, *rest])


def timed_us(timed: Timed, kind: str) -> dict[Dtype, dict[str, float]]:
    """Microseconds of every kernel, by type and name, but for a GPU's short passes."""
    known: dict[Dtype, dict[str, float]] = {}
    for kernel, seconds in zip(timed.plan.kernels, timed.kernels_s, strict=True):
        if kernel.kind == "elementwise" and kind == "gpu" and _moved(kernel) < LEAST_BYTES:
            continue
        shape = (_moved(kernel),) if kernel.kind == "elementwise" else _computed(kernel, kind)
        name = name_of(label_of(kernel), shape)
        known.setdefault(kernel.dtype, {})[name] = rounded(1e6 * seconds)
    return known


def _computed(kernel: TimedKernel, kind: str) -> tuple[int, ...]:
    """The shape of a product, or of an attention that a device of such a kind computes."""
    shape = (*kernel.shape,)
    return in_tiles(shape) if kind == "gpu" and kernel.kind == "attention" else shape


def _attention(kernels: Sequence[tuple[TimedKernel, float]], kind: str) -> Iterable[AttentionRates]:
    """Rates by head size, direction and type, with what a mask leaves of them."""
    whole = ((k.model_copy(update={"shape": [*_computed(k, kind)]}), s) for k, s in kernels)
    rated = [(kernel, _flops(kernel) / seconds / 1e12) for kernel, seconds in whole]
    groups = grouped(rated, lambda pair: (pair[0].shape[-1], pair[0].is_backward, pair[0].dtype))
    for (size, backward, dtype), of_group in sorted(groups.items()):
        plain = [(k.shape[4], rate) for k, rate in of_group if not k.is_masked]
        rates = curve(plain or [(k.shape[4], rate) for k, rate in of_group])
        left = [rate / rates(k.shape[4]) for k, rate in of_group if k.is_masked and plain]
        yield AttentionRates(
            kernel="torch",
            head_dim=size,
            is_backward=backward,
            dtype=dtype,
            tflops=rates,
            masked=constant(statistics.geometric_mean(left)) if left else None,
        )


def _moved(kernel: TimedKernel) -> int:
    return 2 * kernel.shape[0] * DTYPE_BYTES[kernel.dtype]


def _is_memory_bound(product: TimedKernel, seconds: float, memory: Curve) -> bool:
    batch, m, n, k = product.shape
    moved = batch * (m * k + k * n + m * n) * DTYPE_BYTES[product.dtype]
    return moved / memory(moved / 1e6) / 1e9 > MEMORY_BOUND * seconds


def _flops(kernel: TimedKernel) -> float:
    return operations(label_of(kernel), (*kernel.shape,))
