"""Whether the fields of a workload fit together; if not, which values would.

Each message is a ValueError: it names the value and what works.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spbench.workload.sublayers import Attention, CrossAttention, Mlp

if TYPE_CHECKING:
    from spbench.workload.workload import Workload

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
    """Raises ValueError for the first thing that does not fit."""
    if work.hidden % work.heads:
        raise ValueError(f"hidden {work.hidden} is not a multiple of {_heads(work, work.heads)}")
    if work.heads % work.key_heads:
        fits = [n for n in range(1, work.heads + 1) if work.heads % n == 0]
        raise ValueError(
            f"heads {work.heads} is not a multiple of kv_heads {work.kv_heads}; "
            f"kv_heads that fit: {', '.join(map(str, fits))}"
        )
    if isinstance(work.positions, dict):
        for axis in work.positions:
            if axis not in work.axes:
                known = ", ".join(work.axes)
                raise ValueError(f"positions of unknown axis {axis!r}; the axes are {known}")
    if work.modulation == "per_time" and "time" not in work.axes:
        raise ValueError("modulation per_time needs an axis named time")
    for sublayer in work.block:
        match sublayer:
            case Attention():
                _check_attention(sublayer, work)
            case CrossAttention(heads=heads) if heads and work.hidden % heads:
                raise ValueError(
                    f"hidden {work.hidden} is not a multiple of the cross_attention's "
                    f"{_heads(work, heads)}"
                )
            case Mlp() if work.columns(sublayer) < 1:
                raise ValueError(f"mlp ratio {sublayer.ratio} leaves no columns of {work.hidden}")


def _heads(work: Workload, heads: int) -> str:
    fits = [n for n in range(1, 129) if work.hidden % n == 0]
    return f"heads {heads}; heads that fit: {', '.join(map(str, fits))}"


def _check_attention(one: Attention, work: Workload) -> None:
    for axis in one.axes:
        if axis not in work.axes:
            raise ValueError(
                f"attention over unknown axis {axis!r}; the axes are {', '.join(work.axes)}"
            )
        if one.axes.count(axis) > 1:
            raise ValueError(f"attention joins axis {axis!r} with itself")
    special = [key for key in ("causal", "projection", "pair_bias") if getattr(one, key)]
    if len(special) > 1:
        raise ValueError(f"one attention cannot have both {' and '.join(special)}")
    if one.pair_bias:
        _check_pair_bias(one, work)
    turned = work.rotary_axes(one)
    if turned and (work.head_dim % 2 or work.head_dim // 2 < len(turned)):
        raise ValueError(
            f"rotary positions turn pairs of numbers, at least one pair for each of "
            f"{', '.join(turned)}; a head of {work.head_dim} numbers cannot"
        )


def _check_pair_bias(one: Attention, work: Workload) -> None:
    if len(one.axes) > 1:
        raise ValueError(f"pair_bias needs one attended axis, not {', '.join(one.axes)}")
    (axis,) = one.axes
    if work.is_causal(axis):
        raise ValueError(f"pair_bias along {axis}, which another attention masks causal")
    same = [other.pair_bias for other in work.attentions if other.axes == one.axes]
    channels = sorted({count for count in same if count})
    if len(channels) > 1:
        raise ValueError(
            f"pair_bias of {' and '.join(map(str, channels))} channels along {axis}; "
            "one axis has one pair tensor"
        )
