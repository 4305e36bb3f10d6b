"""What ranks time by itself: collectives and kernels, without a model."""

from typing import Any, Literal

from pydantic import Field, NonNegativeInt

from spbench.workload.block import Frozen
from spbench.workload.fields import Dtype
from spbench.workload.traffic import Op

LARGE = 1e12
"""Operations of a step from which on it is a large one, which keeps a GPU busy."""


class TimedKernel(Frozen):
    """A product, an attention or a pass over memory that every rank times by itself."""

    kind: Literal["gemm", "attention", "elementwise"]
    shape: list[NonNegativeInt]
    """gemm: batch, m, n, k; attention: batch, heads, key heads, queries, keys, head size;
    elementwise: the elements that it reads, and writes as many."""
    dtype: Dtype
    is_masked: bool = False
    is_backward: bool = False
    """Whether it is the backward of an attention."""
    name: str = ""
    """The name of an elementwise kernel, ``gelu``; blank: a plain pass. Of an attention how its
    keys lie in a cache, or that it has a bias."""
    has_short_rows: bool = False
    """Whether an elementwise kernel computes a few numbers at a time."""
    op: str = ""
    """The operation that is called, ``gelu.default`` of torch's aten; blank: the plain kernel of
    its kind."""
    given: list[Any] = Field(default_factory=list)
    """Its arguments: a tensor is an object of its ``shape``, ``stride`` and ``dtype``, a dtype
    one of itself alone."""
    named: dict[str, Any] = Field(default_factory=dict)
    """Its arguments by name, likewise."""


class TimedTransfer(Frozen):
    """A collective that ranks time by itself."""

    op: Op
    elements: list[NonNegativeInt]
    """Numbers that each rank sends in an all-to-all, or holds of the whole; of an all-reduce the
    length of the whole alone."""
    dtype: str
    gradients: bool = False
    """Whether it uses the group of the sum of gradients, in place of the strategy's."""
    between: TimedKernel | None = None
    """What ranks compute before each transfer, as in a step; None: transfers follow each other."""
    in_a_row: int = 1
    """Transfers that follow each other behind as many of those kernels: shifts of a ring."""
