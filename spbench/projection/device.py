"""What one device computes, and at which rates: a GPU, or what a rank has of a CPU."""

from __future__ import annotations

from typing import Annotated, Literal, final

from pydantic import Field

from spbench.projection.constants import Constant, Curve, Positive
from spbench.projection.timed_kernels import TimedName
from spbench.workload.block import Frozen, Name, Size
from spbench.workload.case import Device as RunsOn
from spbench.workload.fields import Dtype


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
    """Host time of one operation: run by Python, and of a compiled model."""
    kernel_us: Constant
    """Least time of a kernel on the device."""
    timed_us: dict[Dtype, dict[TimedName, Positive]] = Field(default_factory=dict)
    """Single kernels, by type and name, in place of rates."""
    in_step: Constant | None = None
    """Time of such a kernel in a step over that by itself; None: the same."""

    @property
    def runs_on(self) -> RunsOn:
        """The kind of device as torch names it."""
        return "cuda" if self.kind == "gpu" else "cpu"

    @property
    def kernels(self) -> list[str]:
        """Names of the attention kernels; the first is torch's own choice."""
        return list(dict.fromkeys(each.kernel for each in self.attention))
