"""A cluster: what its devices compute and its links carry, every constant with its source.

A file of ``configs/clusters/``, or of ``spbench calibrate``. Devices are joined by levels, the
innermost first: GPUs of a socket, of a node, of a network. Each joins blocks of the one before.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Annotated, Literal, Self, final

from pydantic import Field, NonNegativeInt, model_validator

from spbench.projection.costmodel.constants import (
    Constant,
    Curve,
    Drawing,
    Level,
    Positive,
    Together,
)
from spbench.text import did_you_mean
from spbench.workload.block import Frozen, Name, Size
from spbench.workload.case import Device as RunsOn
from spbench.workload.fields import Dtype
from spbench.workload.yaml_file import MisfitError

NETWORK = "network"
"""The level between hosts."""
NAME = r"^[a-z0-9_]+( [a-z]+)* \d+(x\d+)*$"
"""A timed kernel as a file names it: its label and shape, ``gemm 1x64x32x16``, or an elementwise
operation with the bytes that it moves, ``gelu 4096``."""
TimedName = Annotated[str, Field(pattern=NAME)]


@final
class Products(Frozen):
    """Rates of matrix products."""

    tflops: dict[Dtype, Curve] = Field(min_length=1)
    """Achieved rates by type; ``at`` is the size of a product in GFLOP."""
    tile: Annotated[tuple[Size, Size], Field(strict=False)] | None = None
    """Rows and columns of the result that one unit computes at a time; None: no quantisation."""
    units: Size = 1
    """Units that compute tiles side by side: multiprocessors of a GPU."""


@final
class AttentionRates(Frozen):
    """Achieved rates of one attention kernel for one head size and direction."""

    kernel: Name
    head_dim: Size
    is_backward: bool = False
    dtype: Dtype = "bfloat16"
    tflops: Curve
    """By keys in a row; operations are those that are not masked."""
    masked: Constant | None = None
    """What is left of the rate where half is masked; None: all."""

    @property
    def place(self) -> str:
        """The name of its rate within a cluster."""
        direction = "backward" if self.is_backward else "forward"
        return f"device.attention.{self.kernel}.{self.head_dim}.{direction}.{self.dtype}"


@final
class Device(Frozen):
    """One GPU, or what a rank has of a CPU."""

    name: Name
    kind: Literal["gpu", "cpu"] = "gpu"
    """A GPU computes behind the host's back; on a CPU a launch and its kernel follow each other."""
    memory_gb: Constant
    memory_gb_per_s: Curve
    """Achieved rate of kernels that only move; ``at`` is what one reads and writes, in MB."""
    products: Products
    attention: Annotated[tuple[AttentionRates, ...], Field(min_length=1, strict=False)]
    launch_us: Constant
    compiled_launch_us: Constant
    """Host time of a kernel's launch: run by Python, and of a compiled model."""
    operation_us: Constant | None = None
    """Host time of any operation, a view too, in place of a launch's; None: not timed."""
    kernel_us: Constant
    """Least time of a kernel on the device."""
    timed_us: dict[Dtype, dict[TimedName, Positive]] = Field(default_factory=dict)
    """Single kernels, by type and name, in place of rates."""
    in_step: Constant | None = None
    """Time of such a kernel in a step over that by itself; None: the same."""
    cpu_gflop_per_s: Positive | None = None
    """Rate of a fixed product at the speed at which kernels took that long; None: not known."""

    @property
    def runs_on(self) -> RunsOn:
        """The kind of device as torch names it."""
        return "cuda" if self.kind == "gpu" else "cpu"

    @property
    def kernels(self) -> list[str]:
        """Names of the attention kernels; the first is what our steps ask for first."""
        return list(dict.fromkeys(each.kernel for each in self.attention))


@final
class OnRanks(Frozen):
    """What ranks have of one machine while so many of them use it."""

    ranks: Size
    device: Device
    levels: Annotated[tuple[Level, ...], Field(strict=False)] = ()  # none for a single rank
    call_us: Constant | None = None
    """As of the cluster, on so many ranks; None: the cluster's own."""


@final
class Cluster(Frozen):
    """Devices of one kind and the levels of links between them."""

    version: Literal[1] = 1
    name: Name
    source: str = ""
    nodes: NonNegativeInt = 0
    """Nodes at most; 0: any number."""
    host_ranks: Size | None = None
    """Devices of one host, where the innermost links join several hosts; None: all of them."""
    device: Device
    levels: Annotated[tuple[Level, ...], Field(min_length=1, strict=False)]
    link: Literal["nvlink", "mesh", "pcie", "network", "memory"]
    """What joins the devices of a node: a switch (nvlink), a link between each two (mesh), a tree.
    Groups of published measurements go by it."""
    call_us: Constant
    """Host time of one collective, run by Python, beside the time of its transfer."""
    on_ranks: Annotated[tuple[OnRanks, ...], Field(strict=False)] = ()
    """What fewer ranks have of the machine, as timed: ranks that share cores get less each."""
    drawn_together: Annotated[tuple[Together, ...], Field(strict=False)] = ()
    """Which constants are off together, and why; all others are off each by its own."""
    drawn_as: str = ""
    """The machine whose doubts it shares, as the same at another rate does; empty: none but its
    own."""
    sources: dict[str, str] = Field(default_factory=dict)
    """Texts of the sources that constants name."""

    @model_validator(mode="after")
    def _levels_rise(self) -> Self:
        for before, after in pairwise(self.levels):
            outer, inner = after.ranks, before.ranks
            if inner is None or (outer is not None and outer % inner):
                raise MisfitError(
                    f"level {after.name!r} joins {outer or 'any number of'} ranks, {before.name!r} "
                    f"{inner or 'any number'}; each level joins whole blocks of the one before",
                    ("levels",),
                )
        return self

    @model_validator(mode="after")
    def _is_drawn_once(self) -> Self:
        """What is drawn together exists, and no constant varies by more than its spread."""
        names = [*self.drawn_names()]
        for group in self.drawn_together:
            for pattern in group.constants:
                if not any(fnmatchcase(name, pattern) for name in names):
                    levels = ", ".join(level.name for level in self.levels)
                    raise MisfitError(
                        f"drawn_together names {pattern!r}, and no constant that is drawn is named "
                        f"so: write LEVEL.OPERATION.FIELD, with a level of {levels}, or leave it "
                        f"out. {did_you_mean(pattern, names)}".strip(),
                        ("drawn_together",),
                    )
        for name in names:
            whole = sum(group.part for group in self.drawn_together if group.holds(name))
            if whole > 1 + 1e-9:
                raise MisfitError(
                    f"drawn_together has parts of {name} that add up to {whole:g}; give 1 at most",
                    ("drawn_together",),
                )
        return self

    def drawn_names(self) -> Iterator[str]:
        """Names of the constants that bound times, as in ``doubts``."""
        device = self.device
        yield "device.memory_gb_per_s"
        yield from (f"device.products.{dtype}" for dtype in device.products.tflops)
        yield from (table.place for table in device.attention)
        yield from (f"device.{name}" for name in ("launch_us", "compiled_launch_us", "timed_us"))
        if device.operation_us is not None:
            yield "device.operation_us"
        for level in self.levels:
            for op in level.collectives:
                yield from (f"{level.name}.{op}.{name}" for name in ("latency_us", "gb_per_s"))
            if level.shared_gb_per_s is not None:
                yield f"{level.name}.shared_gb_per_s"
        yield "call_us"

    @property
    def drawing(self) -> Drawing:
        """How its constants are drawn."""
        return Drawing(machine=self.drawn_as or self.name, together=self.drawn_together)

    def used_by(self, ranks: int) -> Cluster:
        """The cluster as so many ranks find it: as timed with as many, or with the next more."""
        if not (timed := [part for part in self.on_ranks if part.ranks >= ranks]):
            return self
        part = min(timed, key=lambda part: part.ranks)
        own = {"levels": part.levels or self.levels, "call_us": part.call_us or self.call_us}
        return self.model_copy(update={**own, "device": part.device, "on_ranks": ()})

    @property
    def ranks_of_host(self) -> int:
        """Devices of one host, as far as the levels tell: all that links within hosts join."""
        *inner, last = self.levels
        if self.host_ranks is not None:
            return self.host_ranks
        if self.link == "network":  # ranks were calibrated on so many nodes, with one level for all
            return (self.most_ranks or 0) // (self.nodes or 1) or 1
        if last.ranks is not None and last.name != NETWORK:
            return last.ranks
        return (inner[-1].ranks if inner else None) or 1

    @property
    def most_ranks(self) -> int | None:
        """Ranks that all levels, or as many nodes, join; None: any number."""
        *inner, last = self.levels
        return last.ranks or (inner and self.nodes * (inner[-1].ranks or 0)) or None
