"""What is computed, as frozen data: axes, sizes and the block as a list of sublayers.

A transformer over named sequence axes. The activation is (batch, *axes, hidden), its axes
in tensor order; one, two and three dimensions differ only in this data. Nothing here knows
of ranks, strategies or devices, and nothing imports torch.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
OUT_RATIO = 36  # hidden over output channels: 1152 over 32 in the DiT family
MIN_OUT_CHANNELS = 8
MAX_DEPTH = 1000  # blocks; every sublayer of the stack is planned one by one

Size = Annotated[int, Field(gt=0, lt=2**31)]

Dtype = Literal["float32", "float64", "bfloat16", "float16"]
Mode = Literal["train", "forward"]
Modulation = Literal["none", "per_sample", "per_time"]
Checkpointing = Literal["none", "full"]


class Frozen(BaseModel):
    """Immutable, no unknown keys, no silent coercion of strings to numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)


class Attention(Frozen):
    """Self-attention along one axis; the other axes are batch."""

    axis: str = Field(alias="attention")


class CrossAttention(Frozen):
    """Attention from every position to a context of ``length`` tokens."""

    length: Size = Field(alias="cross_attention")


class Mlp(Frozen):
    """Two linear layers with gelu between them, ``ratio`` times ``hidden`` wide."""

    ratio: float = Field(alias="mlp", gt=0, le=1000)


SUBLAYERS = {"attention": Attention, "cross_attention": CrossAttention, "mlp": Mlp}


def _kind(value: object) -> str | None:
    """Which sublayer a mapping such as ``{attention: time}`` or a model means."""
    if isinstance(value, Frozen):
        return next(kind for kind, model in SUBLAYERS.items() if isinstance(value, model))
    keys = set(value) if isinstance(value, dict) else set()
    return next((kind for kind in SUBLAYERS if kind in keys), None)


Sublayer = Annotated[
    Annotated[Attention, Tag("attention")]
    | Annotated[CrossAttention, Tag("cross_attention")]
    | Annotated[Mlp, Tag("mlp")],
    Discriminator(_kind),
]


class Workload(Frozen):
    """One transformer and how it is run. Times ``batch``, all ranks together."""

    version: Literal[1] = 1
    name: str = Field(min_length=1)
    source: str = ""
    axes: dict[str, Size] = Field(min_length=1)
    hidden: Size
    heads: Size
    depth: int = Field(gt=0, le=MAX_DEPTH)
    block: tuple[Sublayer, ...] = Field(min_length=1, strict=False)
    modulation: Modulation = "none"
    batch: Size = 1
    dtype: Dtype = "float32"
    mode: Mode = "train"
    checkpointing: Checkpointing = "none"

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.hidden % self.heads:
            fits = [n for n in range(1, 129) if self.hidden % n == 0]
            raise ValueError(
                f"hidden {self.hidden} is not a multiple of heads {self.heads}; "
                f"heads that fit: {', '.join(map(str, fits))}"
            )
        for axis in self.attended_axes:
            if axis not in self.axes:
                raise ValueError(
                    f"attention over unknown axis {axis!r}; the axes are {', '.join(self.axes)}"
                )
        if self.modulation == "per_time" and "time" not in self.axes:
            raise ValueError("modulation per_time needs an axis named time")
        for sublayer in self.block:
            if isinstance(sublayer, Mlp) and round(sublayer.ratio * self.hidden) < 1:
                raise ValueError(f"mlp ratio {sublayer.ratio} leaves no columns of {self.hidden}")
        return self

    @property
    def attended_axes(self) -> tuple[str, ...]:
        """The axis of each self-attention of one block, in order."""
        return tuple(s.axis for s in self.block if isinstance(s, Attention))

    @property
    def stack(self) -> tuple[Sublayer, ...]:
        """Every sublayer of the whole model: the block, ``depth`` times."""
        return self.block * self.depth

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def tokens(self) -> int:
        """Positions of one sample."""
        return math.prod(self.axes.values())

    @property
    def out_channels(self) -> int:
        """Of the final projection: 36 times fewer than hidden, but not fewer than 8."""
        return max(MIN_OUT_CHANNELS, self.hidden // OUT_RATIO)

    @property
    def context_tokens(self) -> int:
        """The longest context that a cross-attention of the block reads; 0 without one."""
        return max((s.length for s in self.block if isinstance(s, CrossAttention)), default=0)

    @property
    def activation_bytes(self) -> int:
        """M of the papers: the whole (batch, *axes, hidden) in the workload's dtype."""
        return self.batch * self.tokens * self.hidden * DTYPE_BYTES[self.dtype]

    def columns(self, mlp: Mlp) -> int:
        return round(mlp.ratio * self.hidden)

    def dim(self, axis: str) -> int:
        """The tensor position of an axis in (batch, *axes, hidden)."""
        return 1 + list(self.axes).index(axis)

    def reduced(self, ranks: int) -> Workload:
        """A workload of the same kind, small enough to check anywhere, on ``ranks``.

        Each axis keeps its remainder modulo ``ranks`` and so its uneven shards; the heads
        keep their number and so theirs. Lengths, head size, context and depth shrink.
        """
        axes = {name: min(n, 2 * ranks + n % ranks) for name, n in self.axes.items()}
        block = tuple(
            s.model_copy(update={"length": min(s.length, 7)})
            if isinstance(s, CrossAttention)
            else s
            for s in self.block
        )
        update = {"axes": axes, "block": block, "hidden": self.heads * min(8, self.head_dim)}
        return self.model_copy(
            update=update | {"depth": min(2, self.depth), "name": f"{self.name} (reduced)"}
        )
