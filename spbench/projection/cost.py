"""The time of a step from its work and a cluster, with the terms that it is made of.

    compute  products + attention + elementwise          on the device
    issue    launches, or all operations, x launch time + collectives x call   on the host
    exposed  sum over collectives of (time - what kernels behind it hide)
    step     max(compute + exposed, issue)    on a GPU; their sum on a CPU

Overlap is bracketed: nothing is hidden, or all that kernels between start and wait can hide. The
middle hides ``OVERLAP`` of that, or what was timed. The sum of gradients may hide behind backward,
but for the bucket that leaves last, when backward is over.

The interval is drawn: each constant varies by its own spread, all by what is unseen, and each
strategy by what its own launches are off by, with one seed.
"""

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import final

from spbench.projection.constants import Constant
from spbench.projection.doubts import Doubt
from spbench.projection.hardware import Cluster
from spbench.projection.interval import BEYOND, HOST, OVERLAP, Cost, Hideable, Step, Sums
from spbench.projection.kernel_cost import DeviceRates
from spbench.projection.message_cost import host_calls, message_cost
from spbench.projection.work import Work
from spbench.workload.mesh import Mesh

UNSEEN = Constant(value=1.0, source="clocks, allocator, other libraries", kind="model", spread=1.2)
UNSEEN_ON_CPU = Constant(
    value=1.0, source="equal steps minutes apart, docs/cost-model.md", kind="measured", spread=1.35
)
"""On a CPU other work of its host comes to what no term holds."""
OWN = Constant(
    value=1.0, source="launches of equal work differ, docs/cost-model.md", kind="model", spread=1.03
)
OWN_ON_CPU = OWN.model_copy(update={"spread": 1.18})
"""What the launches of one strategy are off by and those of another are not: all else that no term
holds is the same for all, and drops out of their ratio. On a CPU from the errors of ratios."""
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
) -> Cost:
    """The time of a step on a cluster; ``share``: measured seconds of a rank without its messages,
    in place of modelled ones; ``launches_of``: whose launches are apart from those of others.
    Raises Failure where the cluster's file lacks a rate."""
    mode = mode or Mode()
    step = _step(work, cluster, mode, share, launches_of)
    return step.cost(mode.repeats, mode.fixed_s, mode.fixed_spread)


def middle_s(work: Work, cluster: Cluster, mode: Mode, share: Constant | None = None) -> float:
    """The time of ``cost`` alone, without draws, which take most of its time."""
    return _step(work, cluster, mode, share).middle_s(OVERLAP, mode.repeats, mode.fixed_s)


def _step(work: Work, cluster: Cluster, mode: Mode, share: Constant | None, of: str = "") -> Step:
    cluster = cluster.used_by(Mesh(work.mesh).size)
    device, is_gpu, sums = cluster.device, cluster.device.kind == "gpu", Sums()
    rates = DeviceRates(
        device=device,
        dtype=work.dtype,
        attention_kernel=mode.attention_kernel,
        compiled=mode.compiled,
    )
    backward = _add_kernels(sums, work, rates, mode)
    messages = _add_messages(sums, work, cluster, rates, mode)
    unseen, own = (UNSEEN, OWN) if is_gpu else (UNSEEN_ON_CPU, OWN_ON_CPU)
    beyond = mode.beyond or unseen
    if share is not None:
        sums.measured(share, of)
        beyond, own = AROUND_SHARE, OWN.model_copy(update={"spread": 1.0})
    sums.add(BEYOND, beyond.value, Doubt.of(BEYOND, beyond))
    at = sums.add("", 0.0, Doubt.of(f"launches of {of}", own))
    return Step(
        sums=sums,
        messages=messages,
        backward=backward,
        own=at,
        is_gpu=is_gpu,
        drawing=cluster.drawing,
    )


def _add_kernels(sums: Sums, work: Work, rates: DeviceRates, mode: Mode) -> dict[int, float]:
    """Adds the device's and the host's time of all kernels; returns the seconds of backward's by
    the constant that bounds them."""
    device = rates.device
    name = "compiled_launch_us" if mode.compiled else "launch_us"
    launch = device.compiled_launch_us if mode.compiled else device.launch_us
    issued = 0.0
    backward: dict[int, float] = defaultdict(float)
    for kernel, times in work.kernels.items():
        one = rates.cost(kernel)
        faster = mode.products if kernel.kind == "gemm" else 1.0
        fused = mode.compiled and kernel.kind == "elementwise"
        passes = (FUSED_BYTES if fused else mode.merges) if kernel.kind == "elementwise" else 1.0
        seconds = one.seconds * times * passes / faster
        place = sums.add(kernel.kind, seconds, one.doubt)
        if kernel.phase == "backward":
            backward[place] += seconds
        issued += times * (FUSED_LAUNCHES if fused else 1.0)
    if device.operation_us is not None and not (mode.compiled and device.kind == "gpu"):
        name, launch = "operation_us", device.operation_us
        issued += work.calls - work.launches
    sums.add(HOST, issued * launch.value / 1e6, Doubt.of(f"device.{name}", launch))
    return backward


def _add_messages(
    sums: Sums, work: Work, cluster: Cluster, rates: DeviceRates, mode: Mode
) -> list[Hideable]:
    """Adds the links' and the host's time of all messages; returns them with what can hide them."""
    mesh, own = Mesh((*mode.outer, *work.mesh)), [name for name, _ in work.mesh]
    messages, of_call = [], Doubt.of("call_us", cluster.call_us)
    for message, times in work.messages.items():
        sent = replace(message, sent_bytes=round(message.sent_bytes * mode.payload))
        priced = message_cost(sent, mesh, cluster, own)
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
                overlap=OVERLAP if priced.hidden is None else priced.hidden,
                behind_backward=message.phase == "gradients" and not message.is_last,
            )
        )
    return messages
