"""Quantities that a person may measure, and the cluster that a value of one of them makes.

An operation's rate or latency at a level, as nccl-tests prints it; what the ranks of a block share;
a product, an attention, a pass over memory, a launch, a call, as ``calibrate`` times it. Of a link
the cluster is what a log with that value would make, by the code that reads logs. All values are
told by how many times as long a thing takes as the cluster has it: above 1 rates are lower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from spbench.errors import Failure
from spbench.projection.advise.project import Projection
from spbench.projection.costmodel.constants import Doubt, Level
from spbench.projection.costmodel.hardware import NETWORK, Cluster
from spbench.projection.costmodel.message_cost import MessageCost, message_cost
from spbench.projection.costmodel.operations import DeviceRates
from spbench.projection.costmodel.sensitivity import with_slower
from spbench.projection.costmodel.step_time import Mode
from spbench.projection.dryrun.work import Kernel, Message
from spbench.projection.microbench.imported_links import with_run
from spbench.projection.microbench.nccl_logs import NAMES, factor, run_of
from spbench.projection.microbench.run_fit import latency_of
from spbench.text import counted, quoted, short
from spbench.workload.mesh import Mesh
from spbench.workload.traffic import Op

REACH = 1.5
"""The power of its spread by which a quantity is varied: one in 300 lies beyond."""
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
class Quantity:
    """What may be measured: its value, and the cluster that it makes."""

    doubt: Doubt
    """The doubt about the constant that bounds it."""
    what: str
    unit: str
    command: str
    value: Callable[[float], float]
    """The value, in the unit, at which it takes so many times as long as assumed."""
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


def quantities(runs: Sequence[Projection], base: Cluster, mode: Mode) -> Iterator[Quantity]:
    """All that bounds these strategies' times and is not known exactly; ``base``: the cluster as so
    many ranks find it."""
    ranks = max(run.ranks for run in runs)
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
        """The doubt about the rate that bounds the test."""
        cost = self._cost(size)
        # Of a message that is mostly latency the rate's doubt is asked for all the same.
        name = f"{self.level.name}.{self.op}.gb_per_s"
        is_rate = not cost.doubt.name.endswith("latency_us")
        return cost.doubt if is_rate else Doubt.of(name, self.level.collectives[self.op].gb_per_s)

    def _cost(self, size: float) -> MessageCost:
        sent = Message(op=self.op, phase="forward", axis="s", sent_bytes=round(size * self.of_bus))
        return message_cost(sent, Mesh((("s", self.ranks),)), self.base, ["s"])

    def beyond_s(self, size: float) -> float:
        """Seconds of the test beyond its latency."""
        return float(self._cost(size).seconds - self.latency_s)

    def rate(self) -> Quantity:
        """The rate of the test at the size that is sent most of the time."""
        sent, beyond_s = self.size * self.of_bus, self.beyond_s(self.size)

        def took_s(slower: float) -> float:
            return self.latency_s + beyond_s * slower

        def cluster(slower: float) -> Cluster:
            of_host = self.base.ranks_of_host
            points = [(sent, took_s(slower))]
            return with_run(self.base, run_of(self.op, self.ranks, of_host, points))

        return Quantity(
            doubt=self.doubt(self.size),
            what=self._what(_written(self.size).replace("M", " MB").replace("G", " GB")),
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
        """The time of the test at the smallest size."""
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
        what=f"sends of 64 MB out of level {inside} by its {block} ranks at once, each a part in "
        f"{block} of {level.name}.shared_gb_per_s",
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
    # A product of few rows is bounded by the memory, too, and as long as a pass over its bytes.
    is_pass = doubt.name.endswith("memory_gb_per_s")
    done = kernel.moved_bytes / 1e9 if is_pass else kernel.flops / 1e12
    what = f"a pass over {short(kernel.moved_bytes / 1e6)} MB"
    if kernel.kind == "gemm" and not is_pass:
        what = f"a product of {' x '.join(f'{n:,}' for n in kernel.shape[1:])}"
    elif kernel.kind == "attention" and not is_pass:
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
