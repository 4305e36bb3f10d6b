"""Checks that the fields of a workload fit together, and names values that would.

Each error names the value, what works, and the keys to blame.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from spbench.text import did_you_mean
from spbench.workload.block import Attention, CrossAttention, Mlp, Sublayer
from spbench.workload.validation_errors import MisfitError
from spbench.workload.yaml_lines import KeyPath, short

if TYPE_CHECKING:
    from spbench.workload.workload import Workload

MIN_HIDDEN = 4
MAX_AXES = 8
MAX_NUMBERS = 2**60  # of 8 bytes
MAX_SUBLAYERS = 10_000
"""Sublayers of the whole stack: ten times as many as the deepest published models have."""
MAX_RATIO = 64  # published mlps have 2 to 6 times hidden
POSITIONS = ("none", "rotary", "learned")


def known_positions(value: Any) -> Any:
    """The word for all axes, or a mapping by axis. Raises ValueError for an unknown word."""
    for kind in value.values() if isinstance(value, dict) else [value]:
        if kind not in POSITIONS:
            raise ValueError(
                f"positions {kind!r}: each axis has {', '.join(POSITIONS)}; "
                "write one for all, or as in {time: rotary, space: learned}"
            )
    return value


def check(work: Workload) -> None:
    """Raises MisfitError for the first fields that do not fit together."""
    if work.hidden < MIN_HIDDEN:
        raise MisfitError(
            f"hidden {work.hidden}: a norm of so few numbers gives the same for any input, "
            f"and no gradient; use {MIN_HIDDEN} or more",
            ("hidden",),
        )
    if work.hidden % work.heads:
        message = f"hidden {work.hidden} is not a multiple of {_heads_that_fit(work, work.heads)}"
        raise MisfitError(message, ("heads",), ("hidden",))
    if work.heads % work.key_heads:
        fits = _divisors(work.heads)
        raise MisfitError(
            f"heads {work.heads} is not a multiple of kv_heads {work.kv_heads}; "
            f"kv_heads that fit: {', '.join(map(str, fits))}",
            ("kv_heads",),
            ("heads",),
        )
    for axis in work.positions if isinstance(work.positions, dict) else ():
        if axis not in work.axes:
            message = f"positions of unknown axis {_unknown_axis(axis, work)}"
            raise MisfitError(message, ("positions", axis), ("axes",))
    if work.modulation == "per_time" and "time" not in work.axes:
        message = "modulation per_time needs an axis named time"
        raise MisfitError(message, ("modulation",), ("axes",))
    if work.optimizer != "none" and work.mode != "train":
        message = f"optimizer {work.optimizer} needs mode train: mode {work.mode} has no gradients"
        raise MisfitError(message, ("optimizer",), ("mode",))
    _check_size(work)
    for i, sublayer in enumerate(work.block):
        _check_sublayer(sublayer, work, ("block", i))


def _check_size(work: Workload) -> None:
    """Raises MisfitError for more axes, sublayers or numbers than can be planned or indexed."""
    if len(work.axes) > MAX_AXES:
        message = f"{len(work.axes)} axes; at most {MAX_AXES} are planned for: join some into one"
        raise MisfitError(message, ("axes",))
    widths = [2 * work.columns(each) for each in work.block if isinstance(each, Mlp)]
    for what, numbers, *blamed in (
        ("batch x axes x hidden", work.batch * work.tokens * work.hidden, ("axes",), ("batch",)),
        ("the largest weight", work.hidden * max(3 * work.hidden, *widths, 0), ("hidden",)),
    ):
        if numbers > MAX_NUMBERS:
            limit = f"and a tensor has at most {MAX_NUMBERS:.2g}; make them smaller"
            raise MisfitError(f"{what}: {numbers:.2g} numbers, {limit}", *blamed, ("hidden",))
    sublayers = work.depth * len(work.block)
    if sublayers > MAX_SUBLAYERS:
        raise MisfitError(
            f"{len(work.block)} sublayers x depth {work.depth} are {sublayers}, and at most "
            f"{MAX_SUBLAYERS} are planned one by one; use less depth, or a shorter block",
            ("depth",),
            ("block",),
        )


def _check_sublayer(sublayer: Sublayer, work: Workload, path: KeyPath) -> None:
    match sublayer:
        case Attention():
            _check_attention(sublayer, work, path)
        case CrossAttention(heads=heads) if heads and work.hidden % heads:
            fits = _heads_that_fit(work, heads)
            message = f"hidden {work.hidden} is not a multiple of the cross_attention's {fits}"
            raise MisfitError(message, (*path, "heads"), ("hidden",))
        case Mlp() if work.columns(sublayer) < 1:
            message = f"mlp ratio {sublayer.ratio} leaves no columns of {work.hidden}"
            raise MisfitError(message, (*path, "mlp"), ("hidden",))
        case Mlp(ratio=ratio) if ratio > MAX_RATIO:
            message = (
                f"mlp {ratio:.15g} is a factor of hidden, at most {MAX_RATIO}, and looks like a "
                f"width; for {ratio:.15g} columns of hidden {work.hidden} write "
                f"mlp: {ratio / work.hidden:.6g}"
            )
            raise MisfitError(message, (*path, "mlp"), ("hidden",))


def _heads_that_fit(work: Workload, heads: int) -> str:
    """Heads that the hidden size allows, and the nearest hidden sizes that ``heads`` allows."""
    fits = _divisors(work.hidden)
    multiple = math.lcm(work.heads, heads)
    below = work.hidden // multiple * multiple
    hidden = [str(size) for size in (below, below + multiple) if size]
    return (
        f"heads {heads}; heads that fit: {', '.join(map(str, fits))}; "
        f"hidden that fits: {', '.join(hidden)}"
    )


def _unknown_axis(axis: str, work: Workload) -> str:
    if "," in axis:
        parts = ", ".join(part.strip() for part in axis.split(","))
        return f"{short(axis)}; for several axes write [{parts}]"
    known = f"{short(axis)}; the axes are {', '.join(work.axes)}"
    return f"{known}. {did_you_mean(axis, list(work.axes))}".removesuffix(". ")


def _check_attention(attention: Attention, work: Workload, path: KeyPath) -> None:
    for axis in attention.axes:
        if axis not in work.axes:
            message = f"attention over unknown axis {_unknown_axis(axis, work)}"
            raise MisfitError(message, (*path, "attention"), ("axes",))
        if attention.axes.count(axis) > 1:
            raise MisfitError(f"attention joins axis {axis!r} with itself", (*path, "attention"))
    special = [key for key in ("causal", "projection", "pair_bias") if getattr(attention, key)]
    if len(special) > 1:
        message = f"one attention cannot have both {' and '.join(special)}"
        raise MisfitError(message, (*path, special[-1]))
    if attention.pair_bias:
        _check_pair_bias(attention, work, (*path, "pair_bias"))
    rotary = work.rotary_axes(attention)
    if rotary and not _fits_rotary(work.head_dim, len(rotary)):
        raise MisfitError(
            f"rotary positions turn pairs of numbers, at least one pair for each of "
            f"{', '.join(rotary)}; a head of {work.head_dim} numbers cannot; "
            f"{_heads_for_rotary(work)}",
            ("positions",),
            ("heads",),
            ("hidden",),
            path,
        )


def _fits_rotary(head_dim: int, axes: int) -> bool:
    return head_dim % 2 == 0 and head_dim // 2 >= axes


def _heads_for_rotary(work: Workload) -> str:
    axes = max(len(work.rotary_axes(attention)) for attention in work.attentions)
    fits = [
        n
        for n in _divisors(work.hidden)
        if n % (work.kv_heads or 1) == 0 and _fits_rotary(work.hidden // n, axes)
    ]
    return f"heads that work: {', '.join(map(str, fits)) or 'none, use another hidden'}"


def _divisors(hidden: int) -> list[int]:
    """The numbers of heads, up to 128, that a hidden size allows."""
    return [n for n in range(1, 129) if hidden % n == 0]


def _check_pair_bias(attention: Attention, work: Workload, path: KeyPath) -> None:
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
