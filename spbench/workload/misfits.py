"""Checks that the fields of a workload, and its sublayers, fit together.

Each error names the value, what works, and the keys to blame.
"""

import math
from functools import lru_cache

from spbench.text import did_you_mean
from spbench.workload.block import (
    AXES,
    Attention,
    CrossAttention,
    DrawnDocuments,
    Mlp,
    StreamAttention,
    Sublayer,
)
from spbench.workload.fields import OF_AXES, WorkloadFields
from spbench.workload.yaml_file import FORMS, KeyPath, MisfitError, short

MIN_HIDDEN = 4
MAX_AXES = 8
TEXT_MODULATIONS = ("per_sample", "none")
MAX_NUMBERS = 2**60  # of 8 bytes
MAX_DOCUMENTS = 10_000
MAX_SUBLAYERS = 10_000
"""Sublayers of the whole stack: ten times as many as the deepest published models have."""


@lru_cache
def check(work: WorkloadFields) -> None:
    """Raises MisfitError for the first fields that do not fit together. Many cases share one."""
    _check_form(work)
    _check_widths(work)
    for axis in work.positions if isinstance(work.positions, dict) else ():
        if axis not in work.axes and axis not in work.streams:
            message = f"positions of unknown axis {unknown_axis(axis, work)}"
            raise MisfitError(message, ("positions", axis), ("axes",))
    if work.modulation == "per_time" and "time" not in work.axes:
        message = "modulation per_time needs an axis named time"
        raise MisfitError(message, ("modulation",), ("axes",))
    if work.optimizer != "none" and work.mode != "train":
        message = f"optimizer {work.optimizer} needs mode train: mode {work.mode} has no gradients"
        raise MisfitError(message, ("optimizer",), ("mode",))
    if work.zero and work.mode != "train":
        message = f"zero {work.zero} needs mode train: it shares out what training keeps"
        raise MisfitError(message, ("zero",), ("mode",))
    if work.is_attention_alone:
        check_alone(work)
    _check_size(work)
    _check_text(work)
    _check_streams(work)
    for n, part in enumerate(work.parts):
        path: KeyPath = ("block",) if work.stacks is None else ("stacks", n, "block")
        for i, sublayer in enumerate(part.block):
            check_sublayer(sublayer, work, (*path, i))
    _check_asked(work)


def _check_widths(work: WorkloadFields) -> None:
    """Raises MisfitError unless hidden, heads and key heads fit together."""
    if work.hidden < MIN_HIDDEN:
        raise MisfitError(
            f"hidden {work.hidden}: a norm of so few numbers gives the same for any input, "
            f"and no gradient; use {MIN_HIDDEN} or more",
            ("hidden",),
        )
    if work.head_dim is None and work.hidden % work.heads:
        known = heads_that_fit(work, work.heads)
        message = f"hidden {work.hidden} is not a multiple of {known}; or give head_dim"
        raise MisfitError(message, ("heads",), ("hidden",))
    if work.heads % work.key_heads:
        raise MisfitError(
            f"heads {work.heads} is not a multiple of kv_heads {work.kv_heads}; "
            f"kv_heads that fit: {', '.join(map(str, divisors(work.heads)))}",
            ("kv_heads",),
            ("heads",),
        )


def _check_form(work: WorkloadFields) -> None:
    """Raises MisfitError unless there are either depth and block or stacks."""
    for key in ("depth", "block"):
        if work.stacks is None and getattr(work, key) is None:
            is_given = key in work.model_fields_set
            message = f"{key} is None: {FORMS[key]}" if is_given else f"key {key!r} is missing"
            raise MisfitError(message, (key,))
        if work.stacks is not None and getattr(work, key) is not None:
            raise MisfitError(
                f"each of the stacks has a {key} of its own; leave out {key}, or give depth and "
                "block in place of stacks",
                (key,),
                ("stacks",),
            )


def _check_text(work: WorkloadFields) -> None:
    """Raises MisfitError unless text tokens are attended and have the vectors that they need."""
    if not work.text:
        return
    if not work.attentions:
        axes = ", ".join(work.axes)
        message = (
            f"text {work.text} needs a self-attention; write '- attention: [{axes}]', or text: 0"
        )
        raise MisfitError(message, ("text",), ("block",), ("stacks",))
    if work.modulation not in TEXT_MODULATIONS:
        raise MisfitError(
            f"text {work.text} has no vectors under modulation {work.modulation}, which belong to "
            f"positions of the axes; use {' or '.join(TEXT_MODULATIONS)}, or text: 0",
            ("modulation",),
            ("text",),
        )


def _check_streams(work: WorkloadFields) -> None:
    """Raises MisfitError unless streams have names and sizes of their own, and are asked."""
    if not work.streams:
        return
    if len(work.streams) > MAX_AXES:
        message = f"{len(work.streams)} streams; at most {MAX_AXES} are planned for"
        raise MisfitError(message, ("streams",))
    if work.text:
        raise MisfitError(
            f"text {work.text} does not go with streams; write text: 0, and text as the context of "
            "a cross_attention, or as a stream",
            ("text",),
            ("streams",),
        )
    if work.modulation == "per_time":
        message = "modulation per_time does not go with streams, which have no time; "
        message += "use per_sample, per_token or none"
        raise MisfitError(message, ("modulation",), ("streams",))
    for name in work.streams:
        path: KeyPath = ("streams", name)
        if name == AXES or name in work.axes:
            what = "an axis" if name in work.axes else "what all axes together are called"
            raise MisfitError(f"stream {short(name)} has the name of {what}; use another", path)
        try:
            _check_widths(work.strands[name])
        except MisfitError as error:
            paths = [(*path, *blamed) for blamed in error.paths]
            raise MisfitError(f"stream {name}: {error}", *paths) from None


def _check_asked(work: WorkloadFields) -> None:
    """Raises MisfitError for a stream whose results go nowhere."""
    asked = {each.to for each in work.kinds if isinstance(each, StreamAttention)}
    for name in work.streams:
        if name not in asked:
            message = f"nothing asks stream {name}, so that all it computes would be dropped; "
            message += f"write '- cross_attention: {name}' where it is asked, or leave it out"
            raise MisfitError(message, ("streams", name), ("streams",))


def unknown_stream(name: str, work: WorkloadFields, *others: str) -> str:
    """What to write in place of a stream that there is not; ``others``: words that would do."""
    known = [*work.streams, *others]
    if not work.streams:
        return (
            f"unknown stream {short(name)}; say what it is, as in streams: {{{short(name)}: 126}}"
        )
    listed = f"unknown stream {short(name)}; it may be {', '.join(known)}"
    return f"{listed}. {did_you_mean(name, known)}".removesuffix(". ")


def _check_size(work: WorkloadFields) -> None:
    """Raises MisfitError for more axes, sublayers or numbers than can be planned or indexed."""
    if len(work.axes) > MAX_AXES:
        message = f"{len(work.axes)} axes; at most {MAX_AXES} are planned for: join some into one"
        raise MisfitError(message, ("axes",))
    positions = work.samples * work.all_tokens
    width = max(work.attention_width, work.result_width)
    mlps = [2 * work.columns(each) for each in work.mlps]
    hidden = positions * work.hidden
    for what, numbers, *blamed in (
        ("batch x guidance x axes x hidden", hidden, ("axes",), ("batch",), ("text",)),
        ("batch x axes x heads x head_dim", positions * width, ("head_dim",), ("axes",)),
        ("the largest weight", work.hidden * max(3 * width, *mlps, 0), ("head_dim",)),
    ):
        if numbers > MAX_NUMBERS:
            limit = f"and a tensor has at most {MAX_NUMBERS:.2g}; make them smaller"
            raise MisfitError(f"{what}: {numbers:.2g} numbers, {limit}", *blamed, ("hidden",))
    sublayers = sum(part.depth * len(part.block) for part in work.parts)
    if sublayers > MAX_SUBLAYERS:
        products = " + ".join(f"{len(x.block)} sublayers x depth {x.depth}" for x in work.parts)
        raise MisfitError(
            f"{products} are {sublayers}, and at most "
            f"{MAX_SUBLAYERS} are planned one by one; use less depth, or a shorter block",
            ("depth",),
            ("block",),
            ("stacks",),
        )


MAX_RATIO = 64  # published mlps have 2 to 6 times hidden


def check_sublayer(sublayer: Sublayer, work: WorkloadFields, path: KeyPath) -> None:
    if isinstance(sublayer, StreamAttention):
        _check_stream_attention(sublayer, work, path)
        return
    if isinstance(sublayer, Attention):
        _check_axes(sublayer, work, path)
    elif sublayer.stream is not None and sublayer.stream not in work.streams:
        raise MisfitError(unknown_stream(sublayer.stream, work), (*path, "stream"))
    if work.streams:
        sublayer, work = work.at_home(sublayer)
    match sublayer:
        case Attention(double=True) | Mlp(double=True) if not work.text:
            message = "double gives text tokens weights of their own; say how many, as in text: 256"
            raise MisfitError(message, (*path, "double"))
        case Attention():
            _check_attention(sublayer, work, path)
        case CrossAttention(heads=heads) if heads and work.hidden % heads:
            fits = heads_that_fit(work, heads)
            message = f"hidden {work.hidden} is not a multiple of the cross_attention's {fits}"
            raise MisfitError(message, (*path, "heads"), ("hidden",))
        case Mlp() if work.columns(sublayer) < 1:
            message = f"mlp ratio {sublayer.ratio} leaves no columns of {work.hidden}"
            raise MisfitError(message, (*path, "mlp"), ("hidden",))
        case Mlp(ratio=ratio) if ratio > MAX_RATIO:
            message = (
                f"mlp {ratio:.15g} is a factor of hidden, at most {MAX_RATIO}, and looks like a "
                f"width; for {ratio:.15g} columns of hidden {work.hidden} write "
                f"mlp: {ratio_of(ratio, work.hidden)}"
            )
            raise MisfitError(message, (*path, "mlp"), ("hidden",))


def _check_stream_attention(sublayer: StreamAttention, work: WorkloadFields, path: KeyPath) -> None:
    if sublayer.stream is not None and sublayer.stream not in work.streams:
        raise MisfitError(unknown_stream(sublayer.stream, work), (*path, "stream"))
    if sublayer.to != AXES and sublayer.to not in work.streams:
        others = [AXES] if sublayer.stream is not None else []
        message = f"cross_attention to {unknown_stream(sublayer.to, work, *others)}"
        raise MisfitError(message, (*path, "cross_attention"))
    if sublayer.to == (sublayer.stream or AXES):
        what = ", ".join(work.axes) if sublayer.to == AXES else sublayer.to
        raise MisfitError(
            f"cross_attention of {sublayer.to} to itself; write '- attention: [{what}]', or with "
            "stream: who asks",
            (*path, "cross_attention"),
        )
    asking = work.strands[sublayer.stream or OF_AXES]
    if sublayer.heads and sublayer.head_dim is None and asking.hidden % sublayer.heads:
        fits = heads_that_fit(asking, sublayer.heads)
        message = f"hidden {asking.hidden} is not a multiple of the cross_attention's {fits}"
        raise MisfitError(f"{message}; or give head_dim", (*path, "heads"), ("hidden",))


def _check_axes(attention: Attention, work: WorkloadFields, path: KeyPath) -> None:
    """Raises MisfitError unless it goes along axes, or along one stream."""
    for axis in attention.axes:
        if axis not in work.axes and axis not in work.streams:
            message = f"attention over unknown axis {unknown_axis(axis, work)}"
            raise MisfitError(message, (*path, "attention"), ("axes",))
        if attention.axes.count(axis) > 1:
            raise MisfitError(f"attention joins axis {axis!r} with itself", (*path, "attention"))
    streams = [axis for axis in attention.axes if axis in work.streams]
    if not streams:
        return
    if len(attention.axes) > 1:
        raise MisfitError(
            f"attention joins stream {streams[0]} with {', '.join(attention.axes)}; attend along "
            f"'{streams[0]}' alone, and write '- cross_attention: {streams[0]}' for what asks it",
            (*path, "attention"),
        )
    if attention.pair_bias:
        message = f"pair_bias goes along an axis, and {streams[0]} is a stream; leave it out"
        raise MisfitError(message, (*path, "pair_bias"))


def ratio_of(columns: float, hidden: int) -> str:
    """The ratio of fewest digits that gives exactly these columns."""
    ratios = (f"{columns / hidden:.{digits}g}" for digits in range(1, 18))
    return next(x for x in ratios if round(float(x) * hidden) == round(columns))


def heads_that_fit(work: WorkloadFields, heads: int) -> str:
    """Heads that the hidden size allows, and the nearest hidden sizes that ``heads`` allows."""
    fits = divisors(work.hidden)
    multiple = math.lcm(work.heads, heads)
    below = work.hidden // multiple * multiple
    return (
        f"heads {heads}; heads that fit: {', '.join(map(str, fits))}; "
        f"hidden that fits: {', '.join(str(size) for size in (below, below + multiple) if size)}"
    )


def unknown_axis(axis: str, work: WorkloadFields) -> str:
    if "," in axis:
        parts = ", ".join(part.strip() for part in axis.split(","))
        return f"{short(axis)}; for several axes write [{parts}]"
    known = f"{short(axis)}; the axes are {', '.join(work.axes)}"
    known += f", and the streams {', '.join(work.streams)}" if work.streams else ""
    return f"{known}. {did_you_mean(axis, [*work.axes, *work.streams])}".removesuffix(". ")


def _check_attention(attention: Attention, work: WorkloadFields, path: KeyPath) -> None:
    special = [key for key in ("causal", "projection", "pair_bias") if getattr(attention, key)]
    if len(special) > 1:
        message = f"one attention cannot have both {' and '.join(special)}"
        raise MisfitError(message, (*path, special[-1]))
    banded = [key for key in ("window", "sinks", "documents") if getattr(attention, key)]
    if banded and set(special) - {"causal"}:
        message = f"one attention cannot have both {special[-1]} and {banded[0]}"
        raise MisfitError(message, (*path, banded[0]))
    _check_window(attention, work, path)
    _check_documents(attention, work, (*path, "documents"))
    special += banded
    if work.text:
        _check_joint(attention, special, work, path)
    if attention.pair_bias:
        _check_pair_bias(attention, work, (*path, "pair_bias"))
    if attention.beside and attention.beside.stream:
        message = "an mlp beside an attention takes what that takes; leave out its stream"
        raise MisfitError(message, (*path, "beside", "stream"))
    if attention.beside and attention.beside.double:
        message = "an mlp beside an attention is double where that is; write double one level up"
        raise MisfitError(message, (*path, "beside", "double"))
    if attention.beside:
        check_sublayer(attention.beside, work, (*path, "beside"))
    rotary = work.rotary_axes(attention)
    if rotary and not _fits_rotary(work.head_size, len(rotary)):
        raise MisfitError(
            f"rotary positions turn pairs of numbers, at least one pair for each of "
            f"{', '.join(rotary)}; a head of {work.head_size} numbers cannot; "
            f"{_heads_for_rotary(work)}",
            ("positions",),
            ("head_dim",) if work.head_dim else ("heads",),
            ("hidden",),
            path,
        )


def _check_window(attention: Attention, work: WorkloadFields, path: KeyPath) -> None:
    """Raises MisfitError for a window, or a shift of one, that does not go with the axes."""
    if isinstance(attention.window, tuple):
        _check_boxes(attention, attention.window, work, path)
    elif attention.window and len(attention.axes) > 1:
        lengths = ", ".join(str(min(6, work.axes[axis])) for axis in attention.axes)
        message = (
            f"window {attention.window} goes along one axis, not {', '.join(attention.axes)}; "
            f"name one, or write a length for each axis, as in window: [{lengths}]"
        )
        raise MisfitError(message, (*path, "window"))
    for key in ("shift", "wraps"):
        if getattr(attention, key) and not isinstance(attention.window, tuple):
            message = f"{key} moves boxes along several axes; write window: [...] beside it"
            raise MisfitError(message, (*path, key))


def _check_boxes(
    attention: Attention, window: tuple[int, ...], work: WorkloadFields, path: KeyPath
) -> None:
    """Raises MisfitError for boxes that do not go with the axes, or with what else is there."""
    # Of one axis they are a mask of documents, inside of which there may be another.
    excluded = ("causal", "sinks") if len(attention.axes) > 1 or attention.wraps else ()
    others = [key for key in (*excluded, "documents") if getattr(attention, key)]
    if others:
        message = f"boxes of window {[*window]} go without {others[0]}; leave out one of the two"
        raise MisfitError(message, (*path, others[0]))
    axes = [axis for axis in work.axes if axis in attention.axes]
    if [*attention.axes] != axes:
        message = f"axes of a window are named as in the tensor; write [{', '.join(axes)}]"
        raise MisfitError(message, (*path, "attention"))
    for key, lengths in (("window", window), ("shift", attention.shift)):
        if lengths is not None and len(lengths) != len(axes):
            message = f"{key} {[*lengths]} needs a number for each of {', '.join(axes)}"
            raise MisfitError(message, (*path, key))
    for axis, length, first in zip(axes, window, attention.shift or (0,) * len(axes), strict=True):
        if length > work.axes[axis]:
            message = f"a window of {length} is longer than the {work.axes[axis]} of {axis}"
            raise MisfitError(f"{message}; use at most that", (*path, "window"), ("axes", axis))
        if first >= length:
            message = f"a shift of {first} along {axis} is not below its window of {length}"
            raise MisfitError(f"{message}; use 0 to {length - 1}", (*path, "shift"))
    for axis in attention.wraps:
        if axis not in axes:
            message = f"wraps names {axis!r}, and the attention has {', '.join(axes)}"
            raise MisfitError(message, (*path, "wraps"))


def _check_documents(attention: Attention, work: WorkloadFields, path: KeyPath) -> None:
    documents = attention.documents
    if documents is None:
        return
    if len(attention.axes) > 1:
        message = f"documents lie along one axis, not {', '.join(attention.axes)}; name one"
        raise MisfitError(message, path)
    (axis,) = attention.axes
    length = work.axes[axis]
    if isinstance(documents, DrawnDocuments):
        if documents.mean > length:
            raise MisfitError(
                f"documents of mean {documents.mean} are longer than the {length} positions of "
                f"{axis}; use 1 to {length}, or a longer axis",
                path,
                ("axes", axis),
            )
        count = length // documents.mean
    else:
        count, total = len(documents), sum(documents)
        if total != length:
            last = documents[-1] + length - total
            fit = f"; with a last one of {last} they would" if last > 0 else ""
            raise MisfitError(
                f"documents have {total} positions together and do not fill the {length} of {axis}"
                f"{fit}",
                path,
                ("axes", axis),
            )
    if count > MAX_DOCUMENTS:
        message = f"about {count} documents along {axis}; at most {MAX_DOCUMENTS} are planned"
        raise MisfitError(f"{message}: use longer ones", path)
    others = [
        each.documents
        for each in work.attentions
        if each.axes == attention.axes and each.documents not in (None, documents)
    ]
    if others:
        message = f"documents along {axis} differ; one axis has one packing, the same everywhere"
        raise MisfitError(message, path)


def _check_joint(
    attention: Attention, special: list[str], work: WorkloadFields, path: KeyPath
) -> None:
    """Text has no place along an axis: it is attended where all axes are, with no order."""
    if special:
        message = f"text {work.text} cannot take part in an attention with {special[0]}; "
        raise MisfitError(f"{message}leave that out, or write text: 0", (*path, special[0]))
    if len(attention.axes) < len(work.axes):
        raise MisfitError(
            f"text {work.text} takes part in attention over all axes, not over "
            f"{', '.join(attention.axes)} alone; write attention: [{', '.join(work.axes)}], "
            "or text: 0",
            (*path, "attention"),
            ("text",),
        )


def check_alone(work: WorkloadFields) -> None:
    """Raises MisfitError for anything beside an attention alone, and for channels not its own."""
    if len(work.stack) > 1 or work.mlps:
        raise MisfitError(
            "an attention alone is all that is computed; leave out other sublayers, beside, and "
            "more blocks than depth 1",
            ("block",),
            ("depth",),
        )
    words = dict.fromkeys(("modulation", "optimizer", "checkpointing"), "none")
    plain: dict[str, str | int] = {**words, "text": 0, "zero": 0, "microbatches": 0}
    for key, none in plain.items():
        # There is no block to recompute, and an attention is.
        if getattr(work, key) not in (none, "selective"):
            message = f"{key} {getattr(work, key)} has nothing to act on in an attention alone"
            raise MisfitError(f"{message}; write {key}: {none}", (key,))
    learned = [axis for axis in work.axes if work.position_of(axis) == "learned"]
    if learned:
        message = f"learned positions of {', '.join(learned)} are added to no activation"
        raise MisfitError(f"{message} in an attention alone; leave them out", ("positions",))
    width = sum(work.qkv_widths)
    if work.hidden != width:
        sizes = f"heads {work.heads}, kv_heads {work.key_heads} and head_dim {work.head_size}"
        if work.v_head_dim:
            sizes = f"{sizes}, values of {work.v_head_dim},"
        raise MisfitError(
            f"hidden {work.hidden} of an attention alone is its q, k and v end to end: with "
            f"{sizes} write {width}",
            ("hidden",),
            ("head_dim",),
        )


def _fits_rotary(head_dim: int, axes: int) -> bool:
    return head_dim % 2 == 0 and head_dim // 2 >= axes


def _heads_for_rotary(work: WorkloadFields) -> str:
    axes = max(len(work.rotary_axes(attention)) for attention in work.attentions)
    if work.head_dim:
        return f"head_dim that works: even numbers from {2 * axes} on"
    fits = [
        n
        for n in divisors(work.hidden)
        if n % (work.kv_heads or 1) == 0 and _fits_rotary(work.hidden // n, axes)
    ]
    return f"heads that work: {', '.join(map(str, fits)) or 'none, use another hidden'}"


def divisors(hidden: int) -> list[int]:
    """The numbers of heads, up to 128, that a hidden size allows."""
    return [n for n in range(1, 129) if hidden % n == 0]


def _check_pair_bias(attention: Attention, work: WorkloadFields, path: KeyPath) -> None:
    if len(attention.axes) > 1:
        message = f"pair_bias needs one attended axis, not {', '.join(attention.axes)}"
        raise MisfitError(message, path)
    (axis,) = attention.axes
    if work.is_causal(axis):
        raise MisfitError(f"pair_bias along {axis}, which another attention masks causal", path)
    channels = sorted(
        {a.pair_bias for a in work.attentions if a.axes == attention.axes and a.pair_bias}
    )
    if len(channels) > 1:
        raise MisfitError(
            f"pair_bias of {' and '.join(map(str, channels))} channels along {axis}; "
            "one axis has one pair tensor",
            path,
        )
