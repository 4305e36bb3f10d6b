"""The fields of a workload, as its file has them, and its blocks one after another."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field

from spbench.workload.block import (
    Attention,
    Block,
    Depth,
    Frozen,
    Mlp,
    Name,
    Place,
    Size,
    Stack,
    Sublayer,
)

ACROSS_HEADS = "across_heads"
POSITIONS = ("none", "rotary", "learned")
Dtype = Literal["float32", "float64", "bfloat16", "float16"]
Mode = Literal["train", "forward"]
Modulation = Literal["none", "per_sample", "per_time", "per_token"]
Checkpointing = Literal["none", "full"]
Optimizer = Literal["none", "adamw"]
Norm = Literal["layer", "rms"]


def known_positions(value: Any) -> Any:
    """The word for all axes, or a mapping by axis. Raises ValueError for an unknown word."""
    for kind in value.values() if isinstance(value, dict) else [value]:
        if kind not in POSITIONS:
            raise ValueError(
                f"positions {kind!r}: each axis has {', '.join(POSITIONS)}; "
                "write one for all, or as in {time: rotary, space: learned}"
            )
    return value


def known_qk_norm(value: Any) -> Any:
    """True, False or across_heads. Raises ValueError for anything else."""
    if not isinstance(value, bool) and value != ACROSS_HEADS:
        raise ValueError(
            f"qk_norm {value!r}: it may be true (a norm of each head), {ACROSS_HEADS} or false"
        )
    return value


class WorkloadFields(Frozen):
    """A transformer and how it is run; ``batch`` counts the samples of all ranks together."""

    version: Literal[1] = 1
    name: Name
    source: str = ""
    axes: dict[Name, Size] = Field(min_length=1)
    hidden: Size
    heads: Size
    kv_heads: Size | None = None
    """Heads of keys and values in self-attention (grouped-query); None: as many as ``heads``."""
    head_dim: Size | None = None
    """Numbers of a head; None: hidden over heads."""
    depth: Depth | None = None
    block: Block | None = None
    """The block that is repeated ``depth`` times; with ``stacks`` neither is given."""
    stacks: Annotated[tuple[Stack, ...], Field(min_length=1, strict=False)] | None = None
    """Stacks of blocks of several kinds, one after another."""
    text: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Text tokens of a sample that take part in every self-attention."""
    norm: Norm = "layer"
    qk_norm: Annotated[bool | str, BeforeValidator(known_qk_norm)] = False
    """RMS norms of self-attention's queries and keys: of each head by itself (true), of all heads
    together (across_heads), or none."""
    positions: Annotated[str | dict[str, str], BeforeValidator(known_positions)] = "none"
    """Positions of all axes or of each: rotary ones turn queries and keys, learned ones are
    added to the input."""
    modulation: Modulation = "none"
    batch: Size = 1
    guidance: Size = 1
    """Branches of classifier-free guidance: so many times the batch are computed together."""
    dtype: Dtype = "float32"
    mode: Mode = "train"
    checkpointing: Checkpointing = "none"
    optimizer: Optimizer = "none"
    """What a train step ends with: the update of the weights, or nothing."""

    def __eq__(self, other: object) -> bool:
        """Whether all is equal, the order of the axes too, which is the tensor's."""
        return super().__eq__(other) and [*self.axes] == [*getattr(other, "axes", ())]

    def __hash__(self) -> int:
        return hash((self.name, self.batch, *self.axes.items()))

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The self-attentions of the model, each kind once, in order."""
        return tuple(s for s in self.kinds if isinstance(s, Attention))

    @property
    def is_attention_alone(self) -> bool:
        """Whether it is one attention, without anything around it."""
        return any(each.alone for each in self.attentions)

    @property
    def mlps(self) -> tuple[Mlp, ...]:
        """The mlps of the model, each kind once, also those beside an attention."""
        given = [each.beside if isinstance(each, Attention) else each for each in self.kinds]
        return tuple(each for each in given if isinstance(each, Mlp))

    @property
    def parts(self) -> tuple[Stack, ...]:
        """The stacks that run one after another: one where ``depth`` and ``block`` are given."""
        if self.stacks is not None:
            return self.stacks
        return (Stack.model_construct(depth=self.depth, block=self.block),)

    @property
    def blocks(self) -> int:
        """Number of blocks in all stacks."""
        return sum(part.depth for part in self.parts)

    @property
    def depth_in_words(self) -> str:
        """Blocks of each stack, as in '20 + 40'."""
        return " + ".join(str(part.depth) for part in self.parts)

    @property
    def places(self) -> tuple[Place, ...]:
        """All sublayers of the model, each at its place in its block."""
        return tuple(place for part in self.parts for place in part.places * part.depth)

    @property
    def stack(self) -> tuple[Sublayer, ...]:
        """All sublayers of the model: every block of every stack."""
        return tuple(place.sublayer for place in self.places)

    @property
    def kinds(self) -> tuple[Sublayer, ...]:
        """The sublayers that differ, in order."""
        return tuple(dict.fromkeys(each for part in self.parts for each in part.block))

    def with_depths(self, depths: Sequence[int]) -> Self:
        """This workload with other depths of its stacks."""
        pairs = zip(self.parts, depths, strict=True)
        return self.with_parts([part.model_copy(update={"depth": n}) for part, n in pairs])

    def with_parts(self, parts: Sequence[Stack]) -> Self:
        """This workload with other stacks, written as it is: as stacks or as depth and block."""
        if self.stacks is not None:
            return self.model_copy(update={"stacks": tuple(parts)})
        (part,) = parts
        return self.model_copy(update={"depth": part.depth, "block": part.block})
