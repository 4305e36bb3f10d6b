"""Which single measurement would decide between strategies, and at which of its values which wins.

Each candidate is one quantity that bounds the time of a strategy which may be the fastest: an
operation's rate or latency at a level, as nccl-tests prints it; what the ranks of a block share; a
product, an attention, a pass over memory, a launch, a call, as ``calibrate`` times it.

    thresholds     the quantity is varied alone, by its spread to the power REACH up and down, and
                   all strategies are priced again; of links as a log with that value would have it
    chance_known   in each draw of all constants the quantity has a value, for which the thresholds
                   name a strategy: the share of draws in which that is the draw's fastest
    what decides   the quantity with the highest chance_known: measured, and taken as the tool takes
                   it, it names the right strategy most often

A measurement is thus judged by the answer that it leads to, with all else as unsure as before, not
by what it tells of other constants that are off together with it: importing it moves none of those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np

from spbench.errors import Failure
from spbench.projection.advise.project import Projection
from spbench.projection.costmodel.constants import Doubt, Level
from spbench.projection.costmodel.hardware import NETWORK, Cluster
from spbench.projection.costmodel.message_cost import MessageCost, message_cost
from spbench.projection.costmodel.operations import DeviceRates
from spbench.projection.costmodel.sensitivity import with_slower
from spbench.projection.costmodel.step_time import Mode, Prices, middle_s
from spbench.projection.dryrun.work import Kernel, Message
from spbench.projection.microbench.imported_links import with_run
from spbench.projection.microbench.nccl_logs import NAMES, factor, run_of
from spbench.projection.microbench.run_fit import latency_of
from spbench.text import counted, quoted, short
from spbench.workload.mesh import Mesh
from spbench.workload.traffic import Op

REACH = 1.5
"""The power of its spread by which a quantity is varied: one in 300 lies beyond."""
STEPS = 12
"""Steps in which it is looked who wins; between two with other winners the steps are halved."""
NEAR = 1.02
"""Factor between two values of which none lies between: a threshold is known to it."""
MUCH = 0.05
"""Share of draws in which it must name the fastest beyond what is named without, to be called what
decides."""
MIB = 2**20
SMALLEST = 2**10
"""Bytes of nccl-tests' smallest size, which tells the latency."""
LARGEST = 2**33
BEYOND = 1.2
"""A message's time beyond its latency over that, at least and at any value that is tried: in less a
log tells no rate."""
CALIBRATE = ("spbench", "calibrate", "mine")
TESTS: Mapping[Op, str] = {op: f"{test}_perf" for test, op in NAMES.items()}
WORDS: Mapping[Op, str] = {
    "all_to_all": "an all-to-all",
    "all_gather": "an all-gather",
    "reduce_scatter": "a reduce-scatter",
    "all_reduce": "an all-reduce",
    "p2p": "a send to the next rank",
}


@final
@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A quantity to measure, and which strategy is the fastest at which of its values."""

    constant: str
    """The constant that bounds it, by its name within the cluster."""
    what: str
    """In a sentence."""
    op: Op | None
    """None: it is no collective."""
    ranks: int
    mb: float | None
    """Size of a buffer as nccl-tests counts it, in 2 ** 20 bytes; None: it has none."""
    unit: str
    column: str
    """Of nccl-tests; blank: it does not measure this."""
    assumed: float
    """What the cluster has, in the unit."""
    thresholds: Sequence[float]
    """Rising, in the unit."""
    winners: Sequence[str]
    """The strategies that are the fastest below, between and above the thresholds."""
    chance: float
    """Share of draws in which what is the fastest now is the fastest."""
    chance_known: float
    """Share of draws in which the strategy that the thresholds name is."""
    spreads_away: float
    """How far the nearest threshold is from what is assumed: 1 at the end of the spread."""
    command: str
    """What measures it; of ``calibrate`` without the workload."""

    def command_for(self, asked: Sequence[str]) -> str:
        """The command; ``asked``: words that name the workload, which ``calibrate`` times."""
        if self.column or asked[:1] != ["-w"]:
            return self.command
        return f"{self.command} {quoted(*asked[:2])}"


@final
@dataclass(frozen=True, kw_only=True)
class Quantity:
    """What may be measured: its value, and the cluster that it makes."""

    doubt: Doubt
    """About the constant that bounds it."""
    what: str
    unit: str
    command: str
    value: Callable[[float], float]
    """In the unit, where it takes so many times as long as assumed."""
    cluster: Callable[[float], Cluster]
    """The cluster if that were measured."""
    op: Op | None = None
    ranks: int
    mb: float | None = None
    column: str = ""

    @property
    def reach(self) -> float:
        """How many times as long it takes at most, of what is tried."""
        return float(self.doubt.factor**REACH)


def measurements(runs: Sequence[Projection], cluster: Cluster, mode: Mode) -> list[Measurement]:
    """What would make another strategy the fastest, the most telling first: where the fastest is
    open what names it most often, else what needs to change least.

    Parameters
    ----------
    runs
        The strategies that fit, the fastest first, each with its work and its cost.
    cluster, mode
        What their costs are of.
    """
    best, *_ = runs
    base = cluster.used_by(best.ranks)
    draws = np.array([run.took.draws for run in runs])
    fastest = draws.argmin(axis=0)
    # What wins no draw of all constants together wins at no likely value of a single one.
    rivals = [run for at, run in enumerate(runs) if run is best or (fastest == at).any()]
    if len(rivals) == 1:
        return []
    names = np.array([run.strategy for run in runs])[fastest]
    prices = Prices()

    def winner(on: Cluster) -> str:
        took = {
            run.strategy: middle_s(run.work, on, mode, run.share, prices)
            for run in rivals
            if run.work
        }
        return min(took, key=lambda name: took[name])

    chance = float(np.mean(names == best.strategy))
    found = []
    for quantity in quantities(rivals, base, mode):
        slower, winners = _thresholds(quantity, winner)
        if not slower:
            continue
        factors = base.drawing.factors(quantity.doubt)
        named = np.array(winners)[np.searchsorted(slower, factors)]
        # Rates fall as times rise: of those the smallest value is the slowest.
        is_rate = quantity.value(2.0) < quantity.value(1.0)
        order = -1 if is_rate else 1
        nearest = min(abs(math.log(each)) for each in slower)
        found.append(
            Measurement(
                constant=quantity.doubt.name,
                what=quantity.what,
                op=quantity.op,
                ranks=quantity.ranks,
                mb=quantity.mb,
                unit=quantity.unit,
                column=quantity.column,
                assumed=quantity.value(1.0),
                thresholds=[quantity.value(each) for each in slower[::order]],
                winners=winners[::order],
                chance=chance,
                chance_known=float(np.mean(named == names)),
                spreads_away=nearest / math.log(quantity.doubt.factor),
                command=quantity.command,
            )
        )
    return sorted(found, key=lambda each: (-each.chance_known, each.spreads_away))


def _thresholds(
    quantity: Quantity, winner: Callable[[Cluster], str]
) -> tuple[list[float], list[str]]:
    """Factors of its time, rising, at which another strategy wins, and the winners between them."""
    known: dict[float, str] = {}

    def wins(slower: float) -> str:
        if slower not in known:
            known[slower] = winner(quantity.cluster(slower))
        return known[slower]

    def between(low: float, high: float) -> Iterator[float]:
        if wins(low) == wins(high):
            return
        middle = math.sqrt(low * high)
        if high / low < NEAR:
            yield middle
        else:
            yield from between(low, middle)
            yield from between(middle, high)

    steps = np.geomspace(1 / quantity.reach, quantity.reach, STEPS + 1)
    thresholds = [at for low, high in pairwise(map(float, steps)) for at in between(low, high)]
    winners = [wins(float(steps[0]))]
    winners += [wins(min(at for at in known if at > threshold)) for threshold in thresholds]
    return thresholds, winners


# What may be measured: of links by nccl-tests, of the rest by ``calibrate``.


def quantities(runs: Sequence[Projection], base: Cluster, mode: Mode) -> Iterator[Quantity]:
    """All that bounds these strategies' times and is not known exactly; ``base``: the cluster as so
    many ranks find it."""
    ranks = runs[0].ranks
    sent = _largest_messages(runs, base, mode)
    for (at, op), sent_bytes in sent.items():
        test = _Test(base, at, op, ranks, sent_bytes)
        yield from filter(_is_told, (test.rate(), test.latency()))
    for at in dict.fromkeys(at for at, _ in sent):
        if (level := base.levels[at]).shared_gb_per_s is not None and at > 0:
            yield _shared(base, at, level, ranks)
    if runs[0].share is None:  # else the share holds kernels and the host
        yield from _of_device(runs, base, mode, ranks)


def _is_told(quantity: Quantity) -> bool:
    """Whether a log may hold it at any value that is tried: else it refuses what is not told."""
    try:
        return all(quantity.cluster(slower) for slower in (1 / quantity.reach, quantity.reach))
    except Failure:
        return False


def _largest_messages(
    runs: Sequence[Projection], base: Cluster, mode: Mode
) -> dict[tuple[int, Op], float]:
    """Bytes that a rank sends of the message that takes most time, by its outermost level and
    operation."""
    seconds: dict[tuple[int, Op], dict[float, float]] = {}
    blocks = [
        1,
        *(level.ranks or 1 for level in base.levels[:-1]),
    ]  # ranks that a level's ends join
    for run in runs:
        assert run.work is not None
        mesh, own = Mesh((*mode.outer, *run.work.mesh)), [name for name, _ in run.work.mesh]
        for message, times in run.work.messages.items():
            named = message.axis.split("+")
            groups = mesh.groups(*(named if {*named} <= {*own} else own))
            joined = [at for at, block in enumerate(blocks) if _crosses(groups, block)]
            if not joined:  # a group of one rank sends nothing
                continue
            by_size = seconds.setdefault((joined[-1], message.op), {})
            sent = float(message.sent_bytes)
            took = message_cost(message, mesh, base, own).seconds * times
            by_size[sent] = by_size.get(sent, 0.0) + took
    return {key: max(by_size, key=lambda n: by_size[n]) for key, by_size in seconds.items()}


def _crosses(groups: Sequence[Sequence[int]], block: int) -> bool:
    """Whether a group has ranks of several blocks."""
    return any(len({rank // block for rank in group}) > 1 for group in groups)


@final
class _Test:
    """One operation at one level, as nccl-tests would time it, or ``calibrate`` where ranks are
    not GPUs."""

    def __init__(self, base: Cluster, at: int, op: Op, ranks: int, sent_bytes: float) -> None:
        self.base, self.at, self.op = base, at, op
        self.level = base.levels[at]
        self.ranks = _ranks_of_test(base, self.level, ranks)
        self.latency_s = self.level.collectives[op].latency_s(self.ranks, self.ranks)
        self.of_bus = factor(op, self.ranks)
        self.size = _size(sent_bytes / self.of_bus)
        while self.size < LARGEST and self.beyond_s(self.size) < self._least_s(self.size):
            self.size *= 2

    def _least_s(self, size: float) -> float:
        return BEYOND * self.latency_s * self.doubt(size).factor ** REACH

    def doubt(self, size: float) -> Doubt:
        """About the rate that bounds it."""
        cost = self._cost(size)
        # Of a message that is mostly latency the rate's doubt is asked for all the same.
        name = f"{self.level.name}.{self.op}.gb_per_s"
        is_rate = not cost.doubt.name.endswith("latency_us")
        return cost.doubt if is_rate else Doubt.of(name, self.level.collectives[self.op].gb_per_s)

    def _cost(self, size: float) -> MessageCost:
        sent = Message(op=self.op, phase="forward", axis="s", sent_bytes=round(size * self.of_bus))
        return message_cost(sent, Mesh((("s", self.ranks),)), self.base, ["s"])

    def beyond_s(self, size: float) -> float:
        """Seconds of it beyond the latency."""
        return float(self._cost(size).seconds - self.latency_s)

    def rate(self) -> Quantity:
        """Its rate, of the size that is sent most of the time."""
        sent, beyond_s = self.size * self.of_bus, self.beyond_s(self.size)

        def took_s(slower: float) -> float:
            return self.latency_s + beyond_s * slower

        def cluster(slower: float) -> Cluster:
            of_host = self.base.ranks_of_host
            points = [(sent, took_s(slower))]
            return with_run(self.base, run_of(self.op, self.ranks, of_host, points))

        return Quantity(
            doubt=self.doubt(self.size),
            what=self._what(f"{self.size // MIB:,} MB"),
            op=self.op,
            ranks=self.ranks,
            mb=self.size / MIB,
            unit="GB/s",
            column="busbw" if self._is_nccl else "",
            value=lambda slower: sent / took_s(slower) / 1e9,
            cluster=cluster,
            command=self._command(f"-b {_written(self.size)} -e {_written(self.size)}"),
        )

    def latency(self) -> Quantity:
        """Its time at the smallest size."""
        rates = self.level.collectives[self.op]
        sent_s = self.beyond_s(SMALLEST)

        def cluster(slower: float) -> Cluster:
            latency, hop = latency_of({self.ranks: self.latency_s * slower}, rates)
            own = rates.model_copy(update={"latency_us": latency, "hop_us": hop})
            level = self.level.model_copy(
                update={"collectives": self.level.collectives | {self.op: own}}
            )
            levels = [*self.base.levels]
            levels[self.at] = level
            return self.base.model_copy(update={"levels": tuple(levels)})

        return Quantity(
            doubt=Doubt.of(f"{self.level.name}.{self.op}.latency_us", rates.latency_us),
            what=self._what("1 KB"),
            op=self.op,
            ranks=self.ranks,
            mb=SMALLEST / MIB,
            unit="us",
            column="time" if self._is_nccl else "",
            value=lambda slower: 1e6 * (self.latency_s * slower + sent_s),
            cluster=cluster,
            command=self._command(f"-b 1K -e {_written(self.size)} -f 4"),
        )

    @property
    def _is_nccl(self) -> bool:
        return self.base.device.kind == "gpu"

    def _what(self, size: str) -> str:
        hosts = -(-self.ranks // self.base.ranks_of_host)
        where = f" of {counted(hosts, 'host')}" if hosts > 1 else ""
        return f"{WORDS[self.op]} of {size} over {counted(self.ranks, 'rank')}{where}"

    def _command(self, sizes: str) -> str:
        if not self._is_nccl:
            return quoted(*CALIBRATE, "-g", self.ranks, "--device", "cpu")
        return nccl_command(TESTS[self.op], sizes, self.base, self.ranks)


def nccl_command(test: str, sizes: str, cluster: Cluster, ranks: int) -> str:
    """The command of a test of nccl-tests: of one host one process, of several as many as ranks, in
    the order in which spbench numbers them."""
    of_host = cluster.ranks_of_host
    if ranks <= of_host:
        return f"{test} {sizes} -g {ranks}"
    start = f"mpirun -np {ranks} --hostfile HOSTS --map-by ppr:{of_host}:node"
    return f"{start} {test} {sizes} -g 1"


def _ranks_of_test(cluster: Cluster, level: Level, ranks: int) -> int:
    """Ranks that meet at the level, on whole hosts where they are of several."""
    of_host = cluster.ranks_of_host
    if level.to_each and level.ranks is not None:  # fewer would use some links alone
        return level.ranks
    if level.ranks is not None:
        ranks = min(ranks, level.ranks)
    if NETWORK in (cluster.link, level.name):
        ranks = max(ranks, 2 * of_host)
    return ranks if ranks <= of_host else -(-ranks // of_host) * of_host


def _size(size: float) -> int:
    """The power of two nearest to so many bytes, of a mebibyte at least."""
    power: int = 2 ** round(math.log2(max(size, MIB)))
    return min(power, LARGEST)


def _written(size: int) -> str:
    """Bytes as nccl-tests takes them: 64M, 2G."""
    return f"{size // 2**30}G" if size >= 2**30 else f"{size // MIB}M"


def _shared(base: Cluster, at: int, level: Level, ranks: int) -> Quantity:
    """What the ranks of a block send out of it together: pairs, or rings over hosts, of ranks that
    stand alike in each block, at the same time, each of which gets its part."""
    assert level.shared_gb_per_s is not None
    block, shared = base.levels[at - 1].ranks or 1, level.shared_gb_per_s
    ranks = _ranks_of_test(base, level, ranks)
    inside = base.levels[at - 1].name
    split = f'NCCL_TESTS_SPLIT="MOD {block}"'
    mapped = ""
    if ranks > base.ranks_of_host:
        mapped = f" --hostfile HOSTS --map-by ppr:{base.ranks_of_host}:node"
    test = "sendrecv_perf -b 64M -e 64M -g 1"
    return Quantity(
        doubt=Doubt.of(f"{level.name}.shared_gb_per_s", shared),
        what=f"sends of 64 MB out of each {inside} by its {block} ranks at once, a rank's part",
        op="p2p",
        ranks=ranks,
        mb=64,
        unit="GB/s",
        column="busbw",
        value=lambda slower: shared.value / slower / block,
        cluster=lambda slower: with_slower(base, f"{level.name}.shared_gb_per_s", slower),
        command=f"{split} mpirun -np {ranks}{mapped} -x NCCL_TESTS_SPLIT {test}",
    )


def _of_device(
    runs: Sequence[Projection], base: Cluster, mode: Mode, ranks: int
) -> Iterator[Quantity]:
    """Kernels by what bounds them, each the one that takes most time, and the host's times."""
    is_gpu = base.device.kind == "gpu"
    onto = ("-g", 1, "--onto", base.name) if is_gpu else ("-g", ranks, "--device", "cpu")
    command = quoted(*CALIBRATE, *onto)
    seconds: dict[Doubt, dict[Kernel, float]] = {}
    rates: DeviceRates | None = None
    for run in runs:
        assert run.work is not None
        rates = DeviceRates(
            device=base.device,
            dtype=run.work.dtype,
            attention_kernel=mode.attention_kernel,
            compiled=mode.compiled,
        )
        for kernel, times in run.work.kernels.items():
            cost = rates.cost(kernel)
            by_kernel = seconds.setdefault(cost.doubt, {})
            by_kernel[kernel] = by_kernel.get(kernel, 0.0) + cost.seconds * times
    for doubt, by_kernel in seconds.items():
        assert rates is not None
        if doubt.name.endswith("timed_us"):  # timed one by one: the run is what is left to time
            continue
        kernel = max(by_kernel, key=lambda one: by_kernel[one])
        yield _of_kernel(doubt, kernel, rates.cost(kernel).seconds, base, ranks, command)
    launch, what = _launch(base, mode)
    yield _of_host(base, launch, what, ranks, command)
    together = command
    if is_gpu:
        together = quoted(*CALIBRATE, "-g", min(max(ranks, 2), base.ranks_of_host))
    yield _of_host(base, "call_us", "the host's time of a collective", ranks, together)


def _of_kernel(
    doubt: Doubt, kernel: Kernel, seconds: float, base: Cluster, ranks: int, command: str
) -> Quantity:
    """A kernel's rate: of operations, or of the bytes that it moves."""
    is_pass = kernel.kind == "elementwise"
    done = kernel.moved_bytes / 1e9 if is_pass else kernel.flops / 1e12
    what = f"a pass over {short(kernel.moved_bytes / 1e6)} MB"
    if kernel.kind == "gemm":
        what = f"a product of {' x '.join(f'{n:,}' for n in kernel.shape[1:])}"
    elif kernel.kind == "attention":
        direction, (*_, keys, size) = (
            ("backward" if kernel.is_backward else "forward"),
            kernel.shape,
        )
        what = f"attention, {direction}, to {keys:,} keys of {size}"
    return Quantity(
        doubt=doubt,
        what=what,
        ranks=ranks,
        unit="GB/s" if is_pass else "TFLOP/s",
        value=lambda slower: done / seconds / slower,
        cluster=lambda slower: with_slower(base, doubt.name, slower),
        command=command,
    )


def _launch(base: Cluster, mode: Mode) -> tuple[str, str]:
    """The constant that the host's launches go by, and its words."""
    if base.device.operation_us is not None and not (mode.compiled and base.device.kind == "gpu"):
        return "device.operation_us", "the host's time of an operation"
    name = "compiled_launch_us" if mode.compiled else "launch_us"
    return f"device.{name}", "the host's time of a launch"


def _of_host(base: Cluster, name: str, what: str, ranks: int, command: str) -> Quantity:
    """A time of the host."""
    constant = base.call_us
    if name != "call_us":
        constant = getattr(base.device, name.rpartition(".")[2])
    return Quantity(
        doubt=Doubt.of(name, constant),
        what=what,
        ranks=ranks,
        unit="us",
        value=lambda slower: constant.value * slower,
        cluster=lambda slower: with_slower(base, name, slower),
        command=command,
    )


# In a sentence.


def thresholds_in_words(measurement: Measurement) -> str:
    """Which strategy is the fastest at which values: 'below 9 GB/s ring is the fastest, above that
    ulysses'."""
    values = [f"{short(each)} {measurement.unit}" for each in measurement.thresholds]
    first, *between, last = measurement.winners
    middle = [f"to {value} {name}" for value, name in zip(values[1:], between, strict=True)]
    return ", ".join([f"below {values[0]} {first} is the fastest", *middle, f"above that {last}"])


def what_decides(advised: Sequence[Measurement], asked: Sequence[str]) -> Iterator[str]:
    """What decides where the fastest is open, and the command; ``advised``: the most telling first.
    Where none names the fastest much more often, that is said."""
    first = next((each for each in advised if each.chance_known > each.chance), None)
    if first is None:
        yield "no single measurement would name the fastest more often: others are as unsure"
        return
    was, now = (f"{100 * each:.0f} %" for each in (first.chance, first.chance_known))
    is_much = first.chance_known >= first.chance + MUCH
    head = "what one measurement would decide" if is_much else "no single measurement decides much"
    yield f"{head}: {_in_words(first)}"
    yield (
        f"that names the fastest in {now} of draws, in place of {was}; to measure it: "
        f"{first.command_for(asked)}"
    )


def what_changes(advised: Sequence[Measurement], asked: Sequence[str]) -> Iterator[str]:
    """What would make another the fastest where that is not open, at the least change."""
    if not advised:
        yield (
            "no single measurement would change that: no constant that is off by its spread, nor by "
            "half as much again, makes another the fastest"
        )
        return
    first = min(advised, key=lambda each: each.spreads_away)
    yield f"what would change that: {_in_words(first)}"
    yield f"to measure it: {first.command_for(asked)}"


def _in_words(measurement: Measurement) -> str:
    column = f" ({measurement.column})" if measurement.column else ""
    assumed = f"{short(measurement.assumed)} {measurement.unit}"
    return f"{measurement.what}{column}: {thresholds_in_words(measurement)}; assumed now: {assumed}"
