"""Whether the fields of a workload fit together; if not, which values would.

Each message names the value and what works, and knows which key is to blame.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from spbench.text import did_you_mean
from spbench.workload.block import Attention, CrossAttention, Mlp
from spbench.workload.validation_errors import MisfitError
from spbench.workload.yaml_lines import KeyPath, short

if TYPE_CHECKING:
    from spbench.workload.workload import Workload

LEAST_HIDDEN = 4
POSITIONS = ("none", "rotary", "learned")


def known_positions(value: Any) -> Any:
    """One word for all axes, or one for each. Raises ValueError for any other."""
    given = value.values() if isinstance(value, dict) else [value]
    for one in given:
        if one not in POSITIONS:
            raise ValueError(
                f"positions {one!r}: each axis has {', '.join(POSITIONS)}; "
                "write one for all, or as in {time: rotary, space: learned}"
            )
    return value


def check(work: Workload) -> None:
    """Raises MisfitError for the first thing that does not fit."""
    if work.hidden < LEAST_HIDDEN:
        raise MisfitError(
            f"hidden {work.hidden}: a norm of so few numbers gives the same whatever they are, "
            f"and no gradient; use {LEAST_HIDDEN} or more",
            ("hidden",),
        )
    if work.hidden % work.heads:
        raise MisfitError(
            f"hidden {work.hidden} is not a multiple of {_heads(work, work.heads)}",
            ("heads",),
            ("hidden",),
        )
    if work.heads % work.key_heads:
        fits = [n for n in range(1, work.heads + 1) if work.heads % n == 0]
        raise MisfitError(
            f"heads {work.heads} is not a multiple of kv_heads {work.kv_heads}; "
            f"kv_heads that fit: {', '.join(map(str, fits))}",
            ("kv_heads",),
            ("heads",),
        )
    if isinstance(work.positions, dict):
        for axis in work.positions:
            if axis not in work.axes:
                raise MisfitError(
                    f"positions of unknown axis {_unknown(axis, work)}",
                    ("positions", axis),
                    ("axes",),
                )
    if work.modulation == "per_time" and "time" not in work.axes:
        said = "modulation per_time needs an axis named time"
        raise MisfitError(said, ("modulation",), ("axes",))
    for i, sublayer in enumerate(work.block):
        path: KeyPath = ("block", i)
        match sublayer:
            case Attention():
                _check_attention(sublayer, work, path)
            case CrossAttention(heads=heads) if heads and work.hidden % heads:
                raise MisfitError(
                    f"hidden {work.hidden} is not a multiple of the cross_attention's "
                    f"{_heads(work, heads)}",
                    (*path, "heads"),
                    ("hidden",),
                )
            case Mlp() if work.columns(sublayer) < 1:
                raise MisfitError(
                    f"mlp ratio {sublayer.ratio} leaves no columns of {work.hidden}",
                    (*path, "mlp"),
                    ("hidden",),
                )


def _heads(work: Workload, heads: int) -> str:
    """Heads that the hidden size allows, and the next hidden sizes that these heads do."""
    fits = [n for n in range(1, 129) if work.hidden % n == 0]
    every = math.lcm(work.heads, heads)
    below = work.hidden // every * every
    hidden = [str(size) for size in (below, below + every) if size]
    return (
        f"heads {heads}; heads that fit: {', '.join(map(str, fits))}; "
        f"hidden that fits: {', '.join(hidden)}"
    )


def _unknown(axis: str, work: Workload) -> str:
    if "," in axis:
        several = ", ".join(part.strip() for part in axis.split(","))
        return f"{short(axis)}; for several axes write [{several}]"
    known = f"{short(axis)}; the axes are {', '.join(work.axes)}"
    return f"{known}. {did_you_mean(axis, list(work.axes))}".removesuffix(". ")


def _check_attention(one: Attention, work: Workload, path: KeyPath) -> None:
    for axis in one.axes:
        if axis not in work.axes:
            said = f"attention over unknown axis {_unknown(axis, work)}"
            raise MisfitError(said, (*path, "attention"), ("axes",))
        if one.axes.count(axis) > 1:
            said = f"attention joins axis {axis!r} with itself"
            raise MisfitError(said, (*path, "attention"))
    special = [key for key in ("causal", "projection", "pair_bias") if getattr(one, key)]
    if len(special) > 1:
        said = f"one attention cannot have both {' and '.join(special)}"
        raise MisfitError(said, (*path, special[-1]))
    if one.pair_bias:
        _check_pair_bias(one, work, (*path, "pair_bias"))
    turned = work.rotary_axes(one)
    if turned and not _turns(work.head_dim, len(turned)):
        raise MisfitError(
            f"rotary positions turn pairs of numbers, at least one pair for each of "
            f"{', '.join(turned)}; a head of {work.head_dim} numbers cannot; "
            f"{_heads_that_turn(work)}",
            ("positions",),
            ("heads",),
            ("hidden",),
            path,
        )


def _turns(head_dim: int, axes: int) -> bool:
    return head_dim % 2 == 0 and head_dim // 2 >= axes


def _heads_that_turn(work: Workload) -> str:
    most = max(len(work.rotary_axes(one)) for one in work.attentions)
    fits = [
        n
        for n in range(1, min(128, work.hidden) + 1)
        if work.hidden % n == 0 and n % (work.kv_heads or 1) == 0 and _turns(work.hidden // n, most)
    ]
    return f"heads that work: {', '.join(map(str, fits)) or 'none, give another hidden'}"


def _check_pair_bias(one: Attention, work: Workload, path: KeyPath) -> None:
    if len(one.axes) > 1:
        said = f"pair_bias needs one attended axis, not {', '.join(one.axes)}"
        raise MisfitError(said, path)
    (axis,) = one.axes
    if work.is_causal(axis):
        said = f"pair_bias along {axis}, which another attention masks causal"
        raise MisfitError(said, path)
    same = [other.pair_bias for other in work.attentions if other.axes == one.axes]
    channels = sorted({count for count in same if count})
    if len(channels) > 1:
        raise MisfitError(
            f"pair_bias of {' and '.join(map(str, channels))} channels along {axis}; "
            "one axis has one pair tensor",
            path,
        )
