"""The sublayers of a block, and stacks of blocks, as frozen data.

Self-attention, cross-attention and mlp are the sublayers.

Self-attention goes along one axis, with the others as batch, or along several axes joined
into one sequence. Streams are positions beside the axes, with sublayers of their own among the
others of a block, and attention from the one to the other.
"""

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    field_serializer,
    model_serializer,
)

from spbench.workload.band import Reach


def _printable(text: str) -> str:
    """Names go into tables and file names, where an escape code or a line end would do harm."""
    if not text.isprintable():
        raise ValueError(f"{text[:40]!a} has characters that do not print; use another name")
    return text


MAX_DEPTH = 1000  # blocks
Size = Annotated[int, Field(gt=0, lt=2**31)]
Name = Annotated[str, Field(min_length=1), AfterValidator(_printable)]
Activation = Literal["gelu", "swiglu"]


class Frozen(BaseModel):
    """Immutable data without unknown keys and without silent coercion of strings to numbers."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, populate_by_name=True, defer_build=True
    )


def _axes(value: Any) -> Any:
    """The axes of an attention, from a word or a list of words."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, (list, tuple)) and value and all(isinstance(axis, str) for axis in value):
        return tuple(value)
    raise ValueError(f"attention is {value!r}: name an axis, or several as in [time, height]")


def _is_whole(number: Any, least: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and least <= number < 2**31


def _window(value: Any) -> Any:
    """A number of keys, or a length for each axis. Raises ValueError for anything else."""
    if value is None or _is_whole(value, 1):
        return value
    if isinstance(value, (list, tuple)) and value and all(_is_whole(n, 1) for n in value):
        return tuple(value)
    raise ValueError(
        f"window is {value!r}: write the keys that a position sees, as in 128, or the lengths of a "
        "box along each axis, as in [2, 6, 12]"
    )


def _shift(value: Any) -> Any:
    """Positions along each axis. Raises ValueError for anything else."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)) and value and all(_is_whole(n, 0) for n in value):
        return tuple(value)
    raise ValueError(
        f"shift is {value!r}: write where the first box begins along each axis, as in [1, 3, 6]"
    )


def _words(value: Any) -> Any:
    """Names of axes, from a word or a list of words. Raises ValueError for anything else."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, (list, tuple)) and all(isinstance(word, str) for word in value):
        return tuple(value)
    raise ValueError(f"wraps is {value!r}: name an axis, or several as in [lat, lon]")


class DrawnDocuments(Frozen):
    """Lengths of documents that are drawn, with this mean, until they fill the sequence."""

    mean: Size
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0


Documents = tuple[int, ...] | DrawnDocuments
"""The lengths of documents in a sequence, or how they are drawn."""
DOCUMENTS = "write their lengths, as in [4000, 3000, 1192], or how to draw them, as in "
DOCUMENTS += "{mean: 4096, seed: 1}"


def _documents(value: Any) -> Any:
    """Documents from a list of lengths or from a mapping. Raises ValueError for anything else."""
    if value is None or isinstance(value, DrawnDocuments):
        return value

    if isinstance(value, dict):
        if not {"mean"} <= value.keys() <= {"mean", "seed"}:
            keys = ", ".join(map(str, value)) or "nothing"
            raise ValueError(f"documents has {keys}: {DOCUMENTS}")
        if not _is_whole(value["mean"], 1):
            raise ValueError(f"documents of mean {value['mean']!r}: write 1 or more positions")
        if not _is_whole(value.get("seed", 0), 0):
            raise ValueError(
                f"documents of seed {value['seed']!r}: write a whole number, 0 or more"
            )
        return DrawnDocuments(**value)
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError(f"documents is {value!r}: {DOCUMENTS}")
    for length in value:
        if not _is_whole(length, 1):
            raise ValueError(f"a document of {length!r} positions: each has 1 or more")
    return tuple(value)


class Brief(Frozen):
    """Data that is written without fields at their defaults."""

    @model_serializer(mode="wrap")
    def _as_written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        for name, field in type(self).model_fields.items():
            if not field.is_required() and getattr(self, name) == field.default:
                data.pop(name, None)
        return data


class BlockItem(Brief):
    """A sublayer."""

    @property
    def attended(self) -> tuple[str, ...]:
        """Axes along which the sublayer mixes positions."""
        return ()


class Mlp(BlockItem):
    """Two linear layers, ``ratio`` x hidden wide; swiglu adds a third as its gate."""

    ratio: float = Field(alias="mlp", gt=0, lt=2**31)
    activation: Activation = "gelu"
    double: bool = False
    """Whether text tokens have weights of their own here; beside an attention as that one says."""
    stream: Name | None = None
    """The stream whose positions it takes; None: those of the axes."""

    @property
    def ways_in(self) -> int:
        """Projections into it, each as wide as it is: swiglu has a second one."""
        return 2 if self.activation == "swiglu" else 1


class Attention(BlockItem):
    """Self-attention. Heads, key heads, qk-norm and positions are properties of the workload.

    Joined axes form one sequence in tensor order, in whatever order they are listed. At most
    one of ``causal``, ``projection`` and ``pair_bias`` is set; a window, sinks and documents go
    with neither of the latter two.
    """

    axes: Annotated[tuple[str, ...], BeforeValidator(_axes)] = Field(alias="attention")
    causal: bool = False
    """Whether a position sees only itself and earlier ones."""
    window: Annotated[int | tuple[int, ...] | None, BeforeValidator(_window)] = None
    """Keys that a position sees, itself among them: those up to it where ``causal``, else as many
    on both sides. A length for each axis instead: boxes of such lengths that fill the axes, in each
    of which all positions see each other; of one axis chunks, where ``causal`` may be set."""
    shift: Annotated[tuple[int, ...] | None, BeforeValidator(_shift)] = None
    """The first position of each axis where a box begins; None: 0."""
    wraps: Annotated[tuple[str, ...], BeforeValidator(_words)] = ()
    """Axes whose ends are neighbours: the box that a shift parts there is one."""
    sinks: bool = False
    """Whether each head has a learned score that takes part in every softmax, without a value."""
    documents: Annotated[Documents | None, BeforeValidator(_documents)] = None
    """Documents packed end to end along the one axis, in each of which a position sees no other."""
    projection: Size | None = None
    """Length to which keys and values are projected along the sequence (Linformer)."""
    pair_bias: Size | None = None
    """Channels of the pair tensor that gives each pair of positions a bias of its scores
    (AlphaFold 2, supplement, algorithm 7)."""
    alone: bool = False
    """Whether it is all there is: no norm, residual or projections, q, k and v being the input's
    channels end to end."""
    beside: Mlp | None = None
    """An mlp of the same normed input, whose result is added to the attention's."""
    double: bool = False
    """Whether text tokens have weights of their own here and beside it, as in blocks of two
    streams."""

    @field_serializer("axes", "wraps")
    def _word_or_list(self, axes: tuple[str, ...]) -> str | list[str]:
        return axes[0] if len(axes) == 1 else list(axes)

    @property
    def attended(self) -> tuple[str, ...]:
        return self.axes

    @property
    def reach(self) -> Reach | None:
        """Keys before its own position and behind it that a position sees; None: no window."""
        if not isinstance(self.window, int):
            return None
        if self.causal:
            return self.window - 1, 0
        return self.window // 2, (self.window - 1) // 2  # of four two before, itself, one behind


class CrossAttention(BlockItem):
    """Attention from every position to ``length`` text tokens, which every rank holds whole."""

    length: Size = Field(alias="cross_attention")
    heads: Size | None = None
    """Heads of this sublayer; None: as many as the workload's."""
    stream: Name | None = None
    """The stream whose positions ask; None: those of the axes."""


AXES = "axes"
"""What an attention of a stream asks if it asks all positions of the axes."""


class StreamAttention(BlockItem):
    """Attention from every position of one stream to every position of another, sharded as well."""

    to: Name = Field(alias="cross_attention")
    """The stream that is asked, or ``axes``."""
    stream: Name | None = None
    """The stream whose positions ask; None: those of the axes."""
    heads: Size | None = None
    """Heads; None: those of the stream that asks."""
    head_dim: Size | None = None
    """Numbers of a head; None: with ``heads`` the asking stream's hidden size over them, else those
    of its heads."""


class Stream(Brief):
    """Positions beside the axes, with an activation of their own; what is None is the
    workload's."""

    length: Size
    hidden: Size | None = None
    heads: Size | None = None
    kv_heads: Size | None = None
    """Heads of keys and values; None: the workload's, or with ``heads`` as many as those."""
    head_dim: Size | None = None
    """Numbers of a head; None: the workload's, or with ``hidden`` or ``heads`` the one over the
    other."""


def _stream(value: Any) -> Any:
    """A stream from its length alone."""
    is_length = isinstance(value, int) and not isinstance(value, bool)
    return {"length": value} if is_length else value


NamedStream = Annotated[Stream, BeforeValidator(_stream)]


SUBLAYERS: dict[str, type[Frozen]] = {
    "attention": Attention,
    "cross_attention": CrossAttention,
    "mlp": Mlp,
}


TO_STREAM = "stream_attention"
KINDS: dict[str, type[Frozen]] = SUBLAYERS | {TO_STREAM: StreamAttention}
PARTS: dict[str, type[Frozen]] = KINDS | {"beside": Mlp, "streams": Stream}
"""Parts of a workload that have keys of their own."""


def _kind(value: object) -> str | None:
    """The kind of a sublayer given as a mapping, such as ``{attention: time}``, or as a model."""
    if isinstance(value, Frozen):
        return next(kind for kind, model in KINDS.items() if isinstance(value, model))
    keys = value if isinstance(value, dict) else {}
    kind = next((kind for kind in SUBLAYERS if kind in keys), None)
    # {cross_attention: audio} asks a stream, {cross_attention: 120} a context of so many tokens.
    is_name = kind == "cross_attention" and isinstance(keys[kind], str)
    return TO_STREAM if is_name else kind


Sublayer = Annotated[
    Annotated[Attention, Tag("attention")]
    | Annotated[CrossAttention, Tag("cross_attention")]
    | Annotated[StreamAttention, Tag(TO_STREAM)]
    | Annotated[Mlp, Tag("mlp")],
    Discriminator(_kind),
]
Block = Annotated[tuple[Sublayer, ...], Field(min_length=1, strict=False)]
Depth = Annotated[int, Field(gt=0, le=MAX_DEPTH)]


class Place(NamedTuple):
    """A sublayer, and whether a block begins or ends with it."""

    sublayer: Sublayer
    is_first: bool
    is_last: bool


class Stack(Frozen):
    """Blocks of one kind, ``depth`` of them one after another."""

    depth: Depth
    block: Block

    @property
    def places(self) -> tuple[Place, ...]:
        """The sublayers of one block."""
        last = len(self.block) - 1
        return tuple(Place(each, i == 0, i == last) for i, each in enumerate(self.block))
