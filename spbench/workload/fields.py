"""The fields of a workload, as its file has them, and the sizes that follow from them.

The activation is (batch, *axes, hidden), with the axes in tensor order; one, two and three
dimensions differ only in this data. It knows no ranks, strategies or devices.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BeforeValidator, Field, PrivateAttr

from spbench.workload.band import Band
from spbench.workload.block import (
    Attention,
    Block,
    CrossAttention,
    Depth,
    DrawnDocuments,
    Frozen,
    Mlp,
    Name,
    NamedStream,
    Place,
    Size,
    Stack,
    StreamAttention,
    Sublayer,
)
from spbench.workload.documents import chunked, drawn, resized
from spbench.workload.mask import Mask
from spbench.workload.sharding import Sizes, Stretch

ACROSS_HEADS = "across_heads"
OF_AXES = ""
"""The name of the strand of the axes, which no stream has."""
POSITIONS = ("none", "rotary", "learned")
Dtype = Literal["float32", "float64", "bfloat16", "float16"]
Mode = Literal["train", "forward"]
Modulation = Literal["none", "per_sample", "per_time", "per_token"]
Checkpointing = Literal["none", "full", "selective"]
Optimizer = Literal["none", "adamw"]
Zero = Literal[0, 1, 2, 3]
Norm = Literal["layer", "rms"]
DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
OUT_RATIO = 36  # hidden over output channels: 1152 over 32 in the DiT family
MIN_OUT_CHANNELS = 8
Grid = dict[str, int]
"""Axes of the model and their lengths, in tensor order: the positions of one axis of a tensor."""


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
    v_head_dim: Size | None = None
    """Numbers of a self-attention head's values, and of its results; None: those of a head."""
    depth: Depth | None = None
    block: Block | None = None
    """The block that is repeated ``depth`` times; with ``stacks`` neither is given."""
    stacks: Annotated[tuple[Stack, ...], Field(min_length=1, strict=False)] | None = None
    """Stacks of blocks of several kinds, one after another."""
    text: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Text tokens of a sample that take part in every self-attention."""
    streams: dict[Name, NamedStream] = Field(default_factory=dict)
    """Positions beside the axes with an activation of their own, by name."""
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
    zero: Zero = 0
    """What ranks that hold the same weights share out in training: nothing; what the optimizer
    keeps (1), gradients too (2), weights too (3). By torch's ``fully_shard``."""
    microbatches: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Parts in which a pipeline takes the samples of a group of ranks; 0: each by itself."""
    _grids: dict[str, Grid] = PrivateAttr(default_factory=dict)
    """The axes of the model that are one here, by its name (``flattened.py``). No field: what is
    written or read has the axes of the model."""

    def __eq__(self, other: object) -> bool:
        """Whether all is equal, the order of the axes too, which is the tensor's."""
        return super().__eq__(other) and [*self.axes] == [*getattr(other, "axes", ())]

    def __hash__(self) -> int:
        return hash((self.name, self.batch, *self.axes.items()))

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The self-attentions along the axes, each kind once, in order."""
        kinds = (s for s in self.kinds if isinstance(s, Attention))
        return tuple(s for s in kinds if s.axes[0] not in self.streams)

    @property
    def is_attention_alone(self) -> bool:
        """Whether it is one attention, without anything around it."""
        return any(each.alone for each in self.attentions)

    @property
    def mlps(self) -> tuple[Mlp, ...]:
        """The mlps of the axes' positions, each kind once, also those beside an attention."""
        kinds = [each for each in self.kinds if not isinstance(each, Attention)]
        given = [*(each.beside for each in self.attentions), *kinds]
        return tuple(each for each in given if isinstance(each, Mlp) and each.stream is None)

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

    def strand_of(self, sublayer: Sublayer) -> str:
        """The strand whose positions a sublayer takes; of attention to another the one that
        asks."""
        if isinstance(sublayer, Attention):
            return sublayer.axes[0] if sublayer.axes[0] in self.streams else OF_AXES
        return sublayer.stream or OF_AXES

    @property
    def strands(self) -> Mapping[str, Self]:
        """The workload as workloads side by side: one of the axes, then one of each stream, with
        the sublayers of its positions.

        Attention from one to another is in none of them, so that a block may have no sublayer.
        Without streams there is but the workload itself.
        """
        return cast(Mapping[str, Self], _strands(self)) if self.streams else {OF_AXES: self}

    def at_home(self, sublayer: Sublayer) -> tuple[Sublayer, Self]:
        """A sublayer as its strand has it, and that strand."""
        return _of_strand(sublayer), self.strands[self.strand_of(sublayer)]

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

    @property
    def head_size(self) -> int:
        """Numbers of a head, those of ``head_dim`` or hidden over heads."""
        return self.head_dim or self.hidden // self.heads

    @property
    def all_heads(self) -> tuple[int, int]:
        """The dims of a position's queries: heads, and the numbers of each."""
        return self.heads, self.head_size

    @property
    def attention_width(self) -> int:
        """Numbers of all heads' queries at one position."""
        return self.heads * self.head_size

    @property
    def value_size(self) -> int:
        """Numbers of a self-attention head's values, and of its results."""
        return self.v_head_dim or self.head_size

    @property
    def result_width(self) -> int:
        """Numbers of all heads' results of self-attention at one position."""
        return self.heads * self.value_size

    @property
    def qkv_widths(self) -> tuple[int, int, int]:
        """Numbers of all queries, of all keys and of all values of self-attention at one
        position."""
        return (
            self.attention_width,
            self.key_heads * self.head_size,
            self.key_heads * self.value_size,
        )

    @property
    def key_heads(self) -> int:
        """Heads of keys and of values in self-attention."""
        return self.kv_heads or self.heads

    @property
    def tokens(self) -> int:
        """Positions of one sample, those of its text left out."""
        return math.prod(self.axes.values())

    @property
    def all_tokens(self) -> int:
        """Positions of one sample with its text tokens: a self-attention with text has them all."""
        return self.tokens + self.text

    @property
    def samples(self) -> int:
        """Samples that are computed together: the batch, once for each branch of the guidance."""
        return self.batch * self.guidance

    @property
    def recomputes(self) -> bool:
        """Whether backward runs each block's forward again."""
        return self.mode == "train" and self.checkpointing == "full"

    @property
    def recomputes_attention(self) -> bool:
        """Whether backward runs again what self-attentions do with q, k and v, and nothing else."""
        return self.mode == "train" and self.checkpointing == "selective"

    @property
    def qkv_stretches(self) -> tuple[Stretch, Stretch, Stretch]:
        """Numbers of queries, keys and values end to end, as weights are cut: a unit is a key head,
        with its queries; where ranks are more, query heads, each with a copy of its key head."""
        units, group = self.key_heads, self.heads // self.key_heads
        # 8 heads of 16 numbers on 2 key heads, values of 4: units of 64 numbers, of 16 and of 4.
        q, k, v = (width // units for width in self.qkv_widths)
        keys, values = (Stretch(units, width, group, is_copied=True) for width in (k, v))
        return Stretch(units, q, group), keys, values

    def result_stretch(self, width: int) -> Stretch:
        """The heads' results, cut as queries are, if each head has ``width`` places."""
        group = self.heads // self.key_heads
        return Stretch(self.key_heads, group * width, group)

    @property
    def out_channels(self) -> int:
        """Channels of the output: 36 times fewer than hidden, at least 8, by a final projection;
        of an attention alone its width."""
        if self.is_attention_alone:
            return self.result_width
        return max(MIN_OUT_CHANNELS, self.hidden // OUT_RATIO)

    @property
    def context_tokens(self) -> int:
        """The most tokens that a cross-attention of the axes attends to; 0 without any."""
        crosses = (s for s in self.kinds if isinstance(s, CrossAttention) and s.stream is None)
        return max((cross.length for cross in crosses), default=0)

    @property
    def activation_bytes(self) -> int:
        """M of the papers: bytes of the whole activation (batch, *axes, hidden)."""
        return self.samples * self.tokens * self.hidden * DTYPE_BYTES[self.dtype]

    @property
    def head_bytes(self) -> int:
        """Bytes of one head's queries, or of its keys, of all positions."""
        return self.samples * self.all_tokens * self.head_size * DTYPE_BYTES[self.dtype]

    @property
    def value_head_bytes(self) -> int:
        """Bytes of one head's values, or of its results, of all positions."""
        return self.samples * self.all_tokens * self.value_size * DTYPE_BYTES[self.dtype]

    @property
    def query_bytes(self) -> int:
        """Bytes of all queries of a self-attention; M without ``head_dim``."""
        return self.heads * self.head_bytes

    @property
    def result_bytes(self) -> int:
        """Bytes of all results of a self-attention: those of queries without ``v_head_dim``."""
        return self.heads * self.value_head_bytes

    @property
    def key_bytes(self) -> int:
        """K of the papers: bytes of all keys of a self-attention."""
        return self.key_heads * self.head_bytes

    @property
    def value_bytes(self) -> int:
        """Bytes of all values of a self-attention: those of keys without ``v_head_dim``."""
        return self.key_heads * self.value_head_bytes

    @property
    def key_value_bytes(self) -> int:
        """Bytes of all keys and of all values of a self-attention."""
        return self.key_bytes + self.value_bytes

    @property
    def conditioned_axes(self) -> Grid:
        """Axes of which each position has a vector of the condition, and their lengths; none: a
        sample has one."""
        if self.modulation == "per_time":
            return {axis: n for axis, n in self.coordinates.items() if axis == "time"}
        return dict(self.axes) if self.modulation == "per_token" else {}

    @property
    def pairs(self) -> dict[str, int]:
        """Axes whose attention takes a bias from a pair tensor, and that tensor's channels."""
        return {each.axes[0]: each.pair_bias for each in self.attentions if each.pair_bias}

    def bias_bytes(self, axis: str) -> int:
        """Bytes of the whole bias (batch, length, length, heads) of attention along ``axis``."""
        return self.samples * self.axes[axis] ** 2 * self.heads * DTYPE_BYTES[self.dtype]

    def columns(self, mlp: Mlp) -> int:
        return round(mlp.ratio * self.hidden)

    def cross_heads(self, cross: CrossAttention) -> tuple[int, int]:
        """Heads of a cross-attention and their size: the workload's, or ``hidden`` over its own."""
        return (cross.heads, self.hidden // cross.heads) if cross.heads else self.all_heads

    def grid(self, axis: str) -> Grid:
        """The axes of the model that ``axis`` is: itself, or several in a row."""
        return self._grids.get(axis, {axis: self.axes[axis]})

    @property
    def coordinates(self) -> Grid:
        """All axes of the model; ``axes`` but for those that are several as one."""
        return {name: n for axis in self.axes for name, n in self.grid(axis).items()}

    def home(self, coordinate: str) -> str:
        """The axis that ``coordinate`` is, or, where that is one of the model, is part of."""
        if coordinate in self.axes:
            return coordinate
        homes = [axis for axis in self.axes for _ in self.grid(axis)]
        return homes[list(self.coordinates).index(coordinate)]

    def on_grids(self, grids: Mapping[str, Grid]) -> Self:
        """This workload on axes that are these of the model; its attentions name them already."""
        lengths = {axis: math.prod(grid.values()) for axis, grid in grids.items()}
        on = self.model_copy(update={"axes": lengths})
        on._grids = {axis: grid for axis, grid in grids.items() if len(grid) > 1}
        return on

    def dim(self, axis: str) -> int:
        """The tensor position of an axis in (batch, *axes, hidden)."""
        return 1 + list(self.axes).index(axis)

    def dims(self, attention: Attention) -> tuple[int, ...]:
        """The tensor positions that an attention goes along, in tensor order."""
        return tuple(sorted(self.dim(axis) for axis in attention.axes))

    def length(self, attention: Attention) -> int:
        """Positions of the sequence that an attention goes along."""
        return math.prod(self.axes[axis] for axis in attention.axes) + self.text

    def documents(self, attention: Attention) -> Sizes:
        """Lengths of the documents that an attention stays inside of; none where there is but one.

        They fill its axis, also that of a workload that was made longer or shorter unchecked.
        """
        if attention.documents is None:
            return ()
        length = self.axes[attention.axes[0]]
        if isinstance(attention.documents, DrawnDocuments):
            lengths = drawn(length, attention.documents.mean, attention.documents.seed)
        else:
            lengths = resized(attention.documents, length)
        return lengths if len(lengths) > 1 else ()

    def packing(self, axis: str) -> Sizes:
        """Lengths of the documents along an axis; none where no attention stays inside of any."""
        along = (self.documents(each) for each in self.attentions if each.axes == (axis,))
        return next(filter(None, along), ())

    def position_of(self, axis: str) -> str:
        """Kind of positions of ``axis``, one of the model: none, rotary or learned."""
        if isinstance(self.positions, dict):
            return self.positions.get(axis, "none")
        return self.positions

    def rotary_axes(self, attention: Attention) -> tuple[str, ...]:
        """The axes of the model that turn queries and keys where it attends, in tensor order."""
        attended = self.coordinates_of(attention)
        return tuple(name for name in attended if self.position_of(name) == "rotary")

    def mask(self, attention: Attention) -> Mask | None:
        """Which keys a query sees where it attends; None: all, or all up to its position."""
        names, documents = self.coordinates_of(attention), self.documents(attention)
        if isinstance(attention.window, tuple):
            if len(names) > 1 or attention.wraps:
                return self._boxes(attention, attention.window)
            (size,), (first,) = attention.window, attention.shift or (0,)
            documents = chunked(self.length(attention), size, first)
        length = self.length(attention)
        if attention.reach is None and not documents:
            return None
        before, after = attention.reach or (length, 0 if attention.causal else length)
        return Band(documents=documents or (length,), before=before, after=after)

    def _boxes(self, attention: Attention, window: tuple[int, ...]) -> Mask:
        from spbench.workload.boxes import Boxes  # and numpy, which no other workload needs

        names = self.coordinates_of(attention)
        return Boxes(
            lengths=tuple(self.coordinates[name] for name in names),
            window=window,
            shift=attention.shift or (0,) * len(window),
            wraps=tuple(name in attention.wraps for name in names),
        )

    def coordinates_of(self, attention: Attention) -> tuple[str, ...]:
        """The axes of the model that it goes along, in tensor order."""
        return tuple(
            name for axis in self.axes if axis in attention.axes for name in self.grid(axis)
        )

    def is_causal(self, axis: str) -> bool:
        """Whether some attention along ``axis`` is causal."""
        return any(each.causal and axis in each.axes for each in self.attentions)

    def grows_along(self, axis: str) -> bool:
        """Whether later positions of ``axis`` see more keys: some attention along it is causal, and
        has no window."""
        along = [each for each in self.attentions if axis in each.axes]
        return any(each.causal and each.reach is None for each in along)


@lru_cache(maxsize=100)
def _strands(work: WorkloadFields) -> Mapping[str, WorkloadFields]:
    axes = _alone(OF_AXES, work).model_copy(update={"streams": {}})
    return {OF_AXES: axes} | {name: _stream(name, work) for name in work.streams}


def _alone(name: str, work: WorkloadFields) -> WorkloadFields:
    """The workload with the sublayers of one strand alone."""

    def is_own(sublayer: Sublayer) -> bool:
        return not isinstance(sublayer, StreamAttention) and work.strand_of(sublayer) == name

    return work.with_parts(
        [
            Stack.model_construct(
                depth=part.depth, block=tuple(map(_of_strand, filter(is_own, part.block)))
            )
            for part in work.parts
        ]
    )


def _of_strand(sublayer: Sublayer) -> Sublayer:
    """A sublayer that takes the positions of the workload it is in."""
    is_named = not isinstance(sublayer, Attention) and sublayer.stream is not None
    return sublayer.model_copy(update={"stream": None}) if is_named else sublayer


def _stream(name: str, work: WorkloadFields) -> WorkloadFields:
    own = work.streams[name]
    # A head's size goes with the width and the heads: with others of either it is another.
    inherits = (own.hidden, own.heads, own.head_dim) == (None, None, None)
    sizes = {
        "hidden": own.hidden or work.hidden,
        "heads": own.heads or work.heads,
        "kv_heads": own.kv_heads or (work.kv_heads if own.heads is None else None),
        "head_dim": work.head_dim if inherits else own.head_dim,
        "v_head_dim": work.v_head_dim if inherits else None,
    }
    alone = _alone(name, work).on_grids({name: {name: own.length}})
    given = {"name": f"{work.name}, {name}", "streams": {}, "positions": work.position_of(name)}
    return alone.model_copy(update={**given, **sizes})
