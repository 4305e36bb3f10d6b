"""Checks that the fields of a workload fit together, and names values that would.

Each error names the value, what works, and the keys to blame.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

from spbench.workload.sublayer_checks import (
    check_alone,
    check_sublayer,
    divisors,
    heads_that_fit,
    unknown_axis,
)
from spbench.workload.validation_errors import FORMS, MisfitError
from spbench.workload.yaml_lines import KeyPath

if TYPE_CHECKING:
    from spbench.workload.workload import Workload

MIN_HIDDEN = 4
MAX_AXES = 8
TEXT_MODULATIONS = ("per_sample", "none")
MAX_NUMBERS = 2**60  # of 8 bytes
MAX_SUBLAYERS = 10_000
"""Sublayers of the whole stack: ten times as many as the deepest published models have."""


@lru_cache
def check(work: "Workload") -> None:
    """Raises MisfitError for the first fields that do not fit together. Many cases share one."""
    _check_form(work)
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
    for axis in work.positions if isinstance(work.positions, dict) else ():
        if axis not in work.axes:
            message = f"positions of unknown axis {unknown_axis(axis, work)}"
            raise MisfitError(message, ("positions", axis), ("axes",))
    if work.modulation == "per_time" and "time" not in work.axes:
        message = "modulation per_time needs an axis named time"
        raise MisfitError(message, ("modulation",), ("axes",))
    if work.optimizer != "none" and work.mode != "train":
        message = f"optimizer {work.optimizer} needs mode train: mode {work.mode} has no gradients"
        raise MisfitError(message, ("optimizer",), ("mode",))
    if work.is_attention_alone:
        check_alone(work)
    _check_size(work)
    _check_text(work)
    for n, part in enumerate(work.parts):
        path: KeyPath = ("block",) if work.stacks is None else ("stacks", n, "block")
        for i, sublayer in enumerate(part.block):
            check_sublayer(sublayer, work, (*path, i))


def _check_form(work: "Workload") -> None:
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


def _check_text(work: "Workload") -> None:
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


def _check_size(work: "Workload") -> None:
    """Raises MisfitError for more axes, sublayers or numbers than can be planned or indexed."""
    if len(work.axes) > MAX_AXES:
        message = f"{len(work.axes)} axes; at most {MAX_AXES} are planned for: join some into one"
        raise MisfitError(message, ("axes",))
    positions, width = work.samples * work.all_tokens, work.attention_width
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
