"""The interval of a projected time: terms, the constants that bound them, and draws of both.

Each constant varies by its own spread, as a factor whose logarithm is normal, and so does what no
term holds; ``doubts`` says what varies together. Overlap varies around its middle. The seed is
fixed, so that a projection repeats.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

import numpy as np

from spbench.projection.costmodel.constants import DRAWS, Constant, Doubt, Drawing, Draws
from spbench.projection.costmodel.hardware import Cluster, Device
from spbench.projection.costmodel.message_cost import MessageCost, host_calls, message_cost
from spbench.projection.costmodel.operations import DeviceRates
from spbench.projection.costmodel.scatter import SHARED_PART, kind_of, own_scatter
from spbench.projection.dryrun.work import Message, Work
from spbench.workload.mesh import Mesh
from spbench.workload.traffic import Phase
from spbench.workload.weights import FSDP

OVERLAP = 0.7
"""Share of what kernels can hide that is hidden in the middle: kernels and copies slow each other
down, and a wait comes late by a launch."""
LOW, HIGH = 5.0, 95.0
"""Percentiles of the interval."""
SHARE = "share"
"""What a rank does besides messages, measured: it takes the place of ``MODELLED``."""
COMPUTE = ("gemm", "attention", "elementwise", SHARE)
HOST = "host"
"""What the host takes to launch kernels and collectives."""
MODELLED = (*COMPUTE[:3], HOST)
BUBBLE = "bubble"
"""What the stages of a pipeline wait for one another as it fills and empties."""
BEYOND = "beyond"
"""A factor of the whole step: what no term holds."""


@final
@dataclass(frozen=True, kw_only=True)
class Cost:
    """A projected time in seconds, its interval, and its terms."""

    step_s: float
    low_s: float
    high_s: float
    no_overlap_s: float
    full_overlap_s: float
    terms: Mapping[str, float]
    """Seconds of products, attention, elementwise, and of the host that launches them, or of the
    measured ``share`` in their place; of each collective by axis, exposed and hidden."""
    draws: Draws = field(repr=False, compare=False)
    """Seconds of each draw; in the same draw a constant is off by the same in every cost, but for
    what one strategy alone is off by."""


@final
@dataclass(frozen=True)
class Sums:
    """Seconds by term, each beside the doubt about the constant that bounds it."""

    doubts: dict[Doubt, int] = field(default_factory=dict)
    """The place of each, in the order in which they came."""
    parts: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, term: str, seconds: float, doubt: Doubt) -> int:
        """Adds to a term; returns the doubt's place."""
        place = self.doubts.setdefault(doubt, len(self.doubts))
        part = self.parts[term]
        part[place] = part.get(place, 0.0) + seconds
        return place

    def copy(self) -> Sums:
        """Equal sums, which may be added to."""
        parts = {term: dict(part) for term, part in self.parts.items()}
        return Sums(dict(self.doubts), defaultdict(dict, parts))

    def measured(self, share: Constant, of: str) -> None:
        """Puts a measured share, that of a strategy, in place of the modelled terms."""
        for term in MODELLED:
            self.parts.pop(term, None)
        self.add(SHARE, share.value, Doubt.of(f"share {of}", share))

    def total(self, term: str, factors: Draws) -> Draws:
        """The term's seconds for each draw of factors (draws, doubts)."""
        return _drawn_sum(self.parts.get(term, {}).items(), factors)


@final
@dataclass(frozen=True, kw_only=True)
class Hideable:
    """Messages of a term, each with kernels behind it."""

    term: str
    place: int
    seconds: float
    behind: tuple[tuple[int, float], ...]
    """Seconds of the kernels behind one message, by the constant that bounds them."""
    times: int
    overlap: float = OVERLAP
    """Part that is hidden, in the middle, of what those kernels can hide."""
    hides: float = 1.0
    """Part of the time of kernels, and of backward, that they hide at most."""
    beside: Phase | None = None
    """The phase whose kernels may hide it, whichever they are: backward's a sum of gradients that
    does not leave last."""


@final
@dataclass(frozen=True, kw_only=True)
class Step:
    """A step as sums of seconds, ready to be drawn."""

    sums: Sums
    messages: Sequence[Hideable]
    phases: Mapping[Phase, Mapping[int, float]]
    """Seconds of each phase's kernels, by the constant that bounds them."""
    own: tuple[int, ...]
    """Places of what this strategy alone is off by, and its variants with it."""
    is_gpu: bool
    """Whether the device computes behind the host's back."""
    drawing: Drawing
    bubble: float = 0.0
    """What a stage of a pipeline waits for others, as a part of what it does."""

    def seconds(self, factors: Draws, share: Draws | float) -> Draws:
        """Seconds for each draw of factors (draws, doubts), with this share of overlap."""
        step = self._without_bubble(factors, share) * (1 + self.bubble)
        own = np.prod(factors[:, self.own], axis=1)
        return step * self.sums.total(BEYOND, factors) * own

    def _without_bubble(self, factors: Draws, share: Draws | float) -> Draws:
        sums = self.sums
        compute = sum((sums.total(kind, factors) for kind in COMPUTE), np.zeros(len(factors)))
        hidden = self.hidden(factors, share)
        exposed = (np.maximum(sums.total(term, factors) - s, 0.0) for term, s in hidden.items())
        busy = sum(exposed, compute)
        host = sums.total(HOST, factors)
        return np.maximum(busy, host) if self.is_gpu else busy + host

    def hidden(self, factors: Draws, share: Draws | float) -> dict[str, Draws]:
        """Seconds of each collective that are hidden: by kernels behind it, or by those of a phase,
        which all that goes beside it share."""
        hidden = {each.term: np.zeros(len(factors)) for each in self.messages}
        wholes: dict[Phase | None, Draws] = {}
        kernels: dict[Phase | None, Draws] = {}
        for phase, seconds in self.phases.items():
            sent = [each for each in self.messages if each.beside == phase]
            parts = [(each.place, each.seconds * each.times) for each in sent]
            wholes[phase] = _drawn_sum(parts, factors)
            kernels[phase] = _drawn_sum(seconds.items(), factors)
        for each in self.messages:
            own = each.seconds * factors[:, each.place]
            beside = _drawn_sum(each.behind, factors)
            if each.beside in kernels:
                beside = kernels[each.beside] * own / wholes[each.beside]
            part = np.minimum(share * (each.overlap / OVERLAP), 1.0)  # of what can be hidden
            can = np.minimum(part * np.minimum(own, beside), each.hides * beside)
            hidden[each.term] += each.times * can
        return hidden

    def cost(self, repeats: float, fixed_s: float, fixed_spread: float) -> Cost:
        """The time of so many steps and a fixed time, with its interval and terms."""
        random = np.random.default_rng(0)
        drawn = np.column_stack([self.drawing.factors(doubt) for doubt in self.sums.doubts])
        shares = random.uniform(2 * OVERLAP - 1, 1.0, DRAWS)
        beside = np.exp(random.standard_normal(DRAWS) * np.log(fixed_spread) / 1.96)
        every = self.seconds(drawn, shares) * repeats + fixed_s * beside
        low, high = np.percentile(every, [LOW, HIGH])
        none, full, step = (self.middle_s(share, repeats, fixed_s) for share in (0.0, 1.0, OVERLAP))
        return Cost(
            step_s=step,
            low_s=float(low),
            high_s=float(high),
            no_overlap_s=none,
            full_overlap_s=full,
            terms=self._terms(repeats) | ({"fixed": fixed_s} if fixed_s else {}),
            draws=every,
        )

    def middle_s(self, share: float, repeats: float, fixed_s: float) -> float:
        """Seconds where no constant is off, with this share of overlap."""
        middle = np.ones((1, len(self.sums.doubts)))
        return float(self.seconds(middle, share)[0]) * repeats + fixed_s

    def _terms(self, repeats: float) -> dict[str, float]:
        middle = np.ones((1, len(self.sums.doubts)))
        terms = {
            kind: float(self.sums.total(kind, middle)[0]) * repeats
            for kind in (*COMPUTE, HOST)
            if kind != SHARE or kind in self.sums.parts
        }
        for term, hidden in self.hidden(middle, OVERLAP).items():
            whole, inside = float(self.sums.total(term, middle)[0]), float(hidden[0])
            terms[f"{term} exposed"] = (whole - inside) * repeats
            terms[f"{term} hidden"] = inside * repeats
        if self.bubble:
            terms[BUBBLE] = float(self._without_bubble(middle, OVERLAP)[0]) * self.bubble * repeats
        return terms


def _drawn_sum(parts: Iterable[tuple[int, float]], factors: Draws) -> Draws:
    """The sum of seconds, each bounded by the constant of its place, for each draw of factors."""
    zero: Draws = np.zeros(len(factors))
    return sum((seconds * factors[:, at] for at, seconds in parts), zero)


# The time of a step from its work and a cluster, with the terms that it is made of.
#
#     compute  products + attention + elementwise          on the device
#     issue    launches, or all operations, x launch time + collectives x call   on the host
#     exposed  sum over collectives of (time - what kernels behind it hide)
#     step     max(compute + exposed, issue)    on a GPU; their sum on a CPU
#     bubble   step x (P - 1) / m more, in a pipeline of P stages and m microbatches
#
# Overlap is bracketed: nothing is hidden, or all that kernels between start and wait can hide. The
# middle hides ``OVERLAP`` of that, or what was timed. The sum of gradients may hide behind
# backward, but for the bucket that leaves last, when backward is over.
#
# The interval is drawn: each constant varies by its own spread, all by what is unseen, and each
# strategy by what it alone is off by, with one seed: on GPUs as published ratios of such machines
# show (``scatter``), of which a part is one number for all variants of a strategy.

UNSEEN = Constant(value=1.0, source="clocks, allocator, other libraries", kind="model", spread=1.2)
UNSEEN_ON_CPU = Constant(
    value=1.0, source="equal steps minutes apart, docs/cost-model.md", kind="measured", spread=1.35
)
"""On a CPU other work of its host comes to what no term holds."""
OWN_ON_CPU = Constant(
    value=1.0, source="launches of equal work differ, docs/cost-model.md", kind="model", spread=1.18
)
"""What the launches of one strategy are off by and those of another are not: all else that no term
holds is the same for all, and drops out of their ratio. From the errors of ratios on a CPU."""
AROUND_SHARE = Constant(
    value=1.0, source="ranks wait for the slowest of them", kind="model", spread=1.05
)
"""What neither a measured share nor the messages hold."""
FUSED_LAUNCHES, FUSED_BYTES = 0.35, 0.5
"""Left of elementwise launches and of the bytes that they move in a compiled model: kernels
between two products become one, which reads its input and writes its result once."""


@final
@dataclass(frozen=True, kw_only=True)
class Mode:
    """How a model runs, beyond its strategy."""

    compiled: bool = False
    attention_kernel: str = ""
    fixed_s: float = 0.0
    """Time beside the steps, such as encoders and decoders; varies by ``fixed_spread``."""
    fixed_spread: float = 2.0
    repeats: float = 1
    """How often the work is done."""
    outer: tuple[tuple[str, int], ...] = ()
    """Groups around the strategy's mesh that do the same at the same time, outermost first."""
    payload: float = 1.0
    """Bytes of a message over those of the work."""
    products: float = 1.0
    """Rate of products over that of the work's type."""
    calls: float = 1.0
    """Collectives in place of one exchange or shift: queries, keys and values may go apart."""
    merges: float = 1.0
    """Bytes of elementwise kernels over those of the work."""
    beyond: Constant | None = None
    """The step over the sum of its terms; by default what is unseen on such a device."""
    hidden_exchange: float = 0.0
    """Share of an all-to-all that other kernels can hide, where its strategy hides none."""


def cost(
    work: Work,
    cluster: Cluster,
    mode: Mode | None = None,
    share: Constant | None = None,
    launches_of: str = "",
    own: Constant | None = None,
) -> Cost:
    """The time of a step on a cluster, with its interval.

    Parameters
    ----------
    work
        Kernels and messages of one rank's step.
    cluster
        Where it is to run.
    mode
        How the model runs.
    share
        Measured seconds of a rank without its messages, in place of modelled ones.
    launches_of
        The strategy, with its mesh, that is off by itself, apart from others.
    own
        How far; by default on a GPU the scatter of such machines, on a CPU that of launches.

    Raises
    ------
    Failure
        The cluster's file lacks a rate, or has too few ranks.
    """
    mode = mode or Mode()
    step = _step(work, cluster, mode, share, launches_of, own)
    return step.cost(mode.repeats, mode.fixed_s, mode.fixed_spread)


@final
@dataclass(frozen=True, kw_only=True)
class Kernels:
    """The kernels of a step on a device."""

    sums: Sums
    phases: Mapping[Phase, Mapping[int, float]]
    """Seconds of each phase's, by the constant that bounds them."""
    launched: float
    """Launches of the host; a compiled model has fewer."""


@final
class Prices:
    """Kernels and messages that were priced already, for works that are priced again and again as
    single constants of one cluster change.

    A price holds wherever the constants that it is made of are the same objects: the copies that
    ``sensitivity.scaled`` makes share all that it leaves alone. So a kernel is priced once for all
    strategies and all rates of links, and a message once for all rates of products.
    """

    def __init__(self) -> None:
        self._rates: dict[object, DeviceRates] = {}
        self._kernels: dict[object, Kernels] = {}
        self._messages: dict[object, MessageCost] = {}
        self._kept: list[object] = []  # an id tells an object only while that is alive

    def rates(self, device: Device, dtype: str, mode: Mode) -> DeviceRates:
        """Rates of the device in this type, which know what was priced by equal ones."""
        bounds = (device.products, device.attention, device.memory_gb_per_s, device.kernel_us)
        timed = (device.timed_us, device.in_step)
        key = dtype, mode.attention_kernel, mode.compiled, self._same(*bounds, *timed)
        if key not in self._rates:
            self._rates[key] = DeviceRates(
                device=device,
                dtype=dtype,
                attention_kernel=mode.attention_kernel,
                compiled=mode.compiled,
            )
        return self._rates[key]

    def kernels(self, work: Work, rates: DeviceRates, mode: Mode) -> Kernels:
        """All kernels of a work at these rates."""
        key = mode, self._same(work, rates)
        if key not in self._kernels:
            self._kernels[key] = _kernels(work, rates, mode)
        return self._kernels[key]

    def message(
        self, message: Message, mesh: Mesh, cluster: Cluster, own: Sequence[str]
    ) -> MessageCost:
        """As ``message_cost``. Raises Failure where the cluster has too few ranks."""
        sends = message.op, message.axis, message.sent_bytes
        key = sends, mesh, tuple(own), self._same(cluster.levels)
        if key not in self._messages:
            self._messages[key] = message_cost(message, mesh, cluster, own)
        return self._messages[key]

    def _same(self, *parts: object) -> tuple[int, ...]:
        """What tells these objects from all others that were seen."""
        self._kept.extend(parts)
        return tuple(map(id, parts))


def middle_s(
    work: Work,
    cluster: Cluster,
    mode: Mode,
    share: Constant | None = None,
    prices: Prices | None = None,
) -> float:
    """The time of ``cost`` alone, in seconds, without draws, which take most of its time.

    Parameters
    ----------
    work
        Kernels and messages of one rank's step.
    cluster
        Where it is to run.
    mode
        How the model runs.
    share
        Measured seconds of a rank without its messages, in place of modelled ones.
    prices
        What was priced for the same cluster with other constants, and is added to.

    Raises
    ------
    Failure
        The cluster's file lacks a rate, or has too few ranks.
    """
    step = _step(work, cluster, mode, share, prices=prices)
    return step.middle_s(OVERLAP, mode.repeats, mode.fixed_s)


def _step(
    work: Work,
    cluster: Cluster,
    mode: Mode,
    share: Constant | None,
    of: str = "",
    own: Constant | None = None,
    prices: Prices | None = None,
) -> Step:
    prices = prices or Prices()
    ranks = Mesh((*mode.outer, *work.mesh)).size
    cluster = cluster.used_by(Mesh(work.mesh).size)
    device, is_gpu = cluster.device, cluster.device.kind == "gpu"
    rates = prices.rates(device, work.dtype, mode)
    kernels = prices.kernels(work, rates, mode)
    sums = kernels.sums.copy()
    _add_host(sums, work, device, kernels.launched, mode)
    messages = _add_messages(sums, work, cluster, rates, mode, prices)
    beyond = mode.beyond or (UNSEEN if is_gpu else UNSEEN_ON_CPU)
    if is_gpu:
        doubts = _own_doubts(of, own or own_scatter(cluster, ranks))
    else:
        doubts = [Doubt.of(f"launches of {of}", own or OWN_ON_CPU)]
    if share is not None:
        sums.measured(share, of)
        beyond, doubts = AROUND_SHARE, []  # a share has the scatter of its own launches
    sums.add(BEYOND, beyond.value, Doubt.of(BEYOND, beyond))
    return Step(
        sums=sums,
        messages=messages,
        phases=kernels.phases,
        own=tuple(sums.add("", 0.0, doubt) for doubt in doubts),
        is_gpu=is_gpu,
        drawing=cluster.drawing,
        bubble=work.bubble,
    )


def _own_doubts(of: str, own: Constant) -> list[Doubt]:
    """What a strategy alone is off by on GPUs: with its variants, and by itself. The logarithms'
    variances add up to that of ``own``, since factors of a spread to the root of a part do."""
    shared, alone = (own.factor**part**0.5 for part in (SHARED_PART, 1 - SHARED_PART))
    return [Doubt(f"strategy {kind_of(of)}", shared), Doubt(f"launches of {of}", alone)]


def _kernels(work: Work, rates: DeviceRates, mode: Mode) -> Kernels:
    """The device's time of all kernels, and what the host launches for them."""
    sums, launched = Sums(), 0.0
    phases: dict[Phase, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for kernel, times in work.kernels.items():
        one = rates.cost(kernel)
        faster = mode.products if kernel.kind == "gemm" else 1.0
        fused = mode.compiled and kernel.kind == "elementwise"
        passes = (FUSED_BYTES if fused else mode.merges) if kernel.kind == "elementwise" else 1.0
        seconds = one.seconds * times * passes / faster
        place = sums.add(kernel.kind, seconds, one.doubt)
        phases[kernel.phase][place] += seconds
        launched += times * (FUSED_LAUNCHES if fused else 1.0)
    return Kernels(sums=sums, phases=phases, launched=launched)


def _add_host(sums: Sums, work: Work, device: Device, launched: float, mode: Mode) -> None:
    """Adds the host's time of launches, or of all operations where that was timed."""
    name = "compiled_launch_us" if mode.compiled else "launch_us"
    launch = device.compiled_launch_us if mode.compiled else device.launch_us
    if device.operation_us is not None and not (mode.compiled and device.kind == "gpu"):
        name, launch = "operation_us", device.operation_us
        launched += work.calls - work.launches
    sums.add(HOST, launched * launch.value / 1e6, Doubt.of(f"device.{name}", launch))


def _add_messages(
    sums: Sums, work: Work, cluster: Cluster, rates: DeviceRates, mode: Mode, prices: Prices
) -> list[Hideable]:
    """Adds the links' and the host's time of all messages; returns them with what can hide them."""
    mesh, own = Mesh((*mode.outer, *work.mesh)), [name for name, _ in work.mesh]
    messages, of_call = [], Doubt.of("call_us", cluster.call_us)
    for message, times in work.messages.items():
        sent = replace(message, sent_bytes=round(message.sent_bytes * mode.payload), behind=())
        priced = prices.message(sent, mesh, cluster, own)
        term = f"{message.op} {message.axis}"
        place = sums.add(term, priced.seconds * times, priced.doubt)
        calls = times * (mode.calls if message.op in ("all_to_all", "p2p") else 1.0)
        calls *= host_calls(message.op)
        sums.add(HOST, calls * cluster.call_us.value / 1e6, of_call)
        behind = [rates.cost(kernel) for kernel in message.behind]
        beside = tuple((sums.add("", 0.0, each.doubt), each.seconds) for each in behind)
        if message.op == "all_to_all" and not beside:
            beside = ((place, priced.seconds * mode.hidden_exchange),)
        messages.append(
            Hideable(
                term=term,
                place=place,
                seconds=priced.seconds,
                behind=beside,
                hides=priced.hides,
                times=times,
                overlap=_overlap(message, times) if priced.hidden is None else priced.hidden,
                beside=_beside(message, cluster.device),
            )
        )
    return messages


def _beside(message: Message, device: Device) -> Phase | None:
    """The phase whose kernels may hide a message that none are behind: a sum of gradients, or where
    a GPU computes behind the host's back a gather of weights, which torch starts one unit ahead."""
    if message.phase == "gradients":
        return None if message.is_last else "backward"
    return message.phase if message.axis == FSDP and device.kind == "gpu" else None


def _overlap(message: Message, times: int) -> float:
    """The part that is hidden, in the middle, of what can be: of units of weights all but one."""
    return OVERLAP * ((times - 1) / times if message.axis == FSDP else 1.0)
