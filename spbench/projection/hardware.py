"""A cluster: what its devices compute and its links carry, every constant with its source.

A file of ``configs/clusters/``, or of ``spbench calibrate``. Devices are joined by levels, the
innermost first: GPUs of a socket, of a node, of a network. Each joins blocks of the one before.
"""

from itertools import pairwise
from typing import Annotated, Literal, Self, final

from pydantic import Field, NonNegativeInt, model_validator

from spbench.projection.constants import CollectiveRate, Constant, Curve, Level, Positive
from spbench.projection.timed_kernels import TimedName
from spbench.workload.block import Frozen, Name, Size
from spbench.workload.case import Device as RunsOn
from spbench.workload.catalogue import path_of
from spbench.workload.fields import Dtype
from spbench.workload.validation_errors import MisfitError, validated
from spbench.workload.yaml_lines import read_mapping

MOST_BYTES = 4_000_000  # of a file: each number of ranks that was timed takes some 30 KB


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
    link: Literal["nvlink", "pcie", "network", "memory"]
    """What joins the devices of a node: groups of published measurements go by it."""
    call_us: Constant
    """Host time of one collective, run by Python, beside the time of its transfer."""
    on_ranks: Annotated[tuple[OnRanks, ...], Field(strict=False)] = ()
    """What fewer ranks have of the machine, as timed: ranks that share cores get less each."""
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

    def used_by(self, ranks: int) -> "Cluster":
        """The cluster as so many ranks find it: as timed with as many, or with the next more."""
        if not (timed := [part for part in self.on_ranks if part.ranks >= ranks]):
            return self
        part = min(timed, key=lambda part: part.ranks)
        own = {"levels": part.levels or self.levels, "call_us": part.call_us or self.call_us}
        return self.model_copy(update={**own, "device": part.device, "on_ranks": ()})

    @property
    def most_ranks(self) -> int | None:
        """Ranks that all levels, or as many nodes, join; None: any number."""
        *inner, last = self.levels
        return last.ranks or (inner and self.nodes * (inner[-1].ranks or 0)) or None


def find(name_or_file: str) -> Cluster:
    """A packaged cluster by name, or that of a file. Raises WorkloadError with the wrong line."""
    path = path_of(name_or_file, "clusters")
    return validated(Cluster, read_mapping(path, "a cluster", MOST_BYTES), PARTS)


PARTS: dict[str, type[Frozen]] = {
    "device": Device,
    "products": Products,
    "attention": AttentionRates,
    "levels": Level,
    "collectives": CollectiveRate,
    "on_ranks": OnRanks,
}  # parts of a cluster that have keys of their own
