"""Strategies that attend for another one, where all axes are joined and it has none to shard."""

from collections.abc import Sequence
from typing import cast

from spbench.strategies.fixed_axis import AUTO, FixedAxis
from spbench.strategies.registry import EXCHANGES, load
from spbench.workload.sharding import Shard
from spbench.workload.workload import Workload


def exchange(name: str) -> FixedAxis:
    """The strategy of that name."""
    return cast("FixedAxis", load(name))


def joint_alone(workload: Workload) -> Workload | None:
    """A block of the attentions that join all axes, and nothing else; None: there is none."""
    joint = [each for each in workload.attentions if set(each.axes) == set(workload.axes)]
    if not joint:
        return None
    return workload.model_copy(update={"stacks": None, "depth": 1, "block": tuple(joint)})


def fitting(across: str, joint: Workload, ranks: int, inner: int) -> list[str]:
    """Names among ``across`` (all for ``auto``) of strategies that can attend between switches; in
    groups of ``inner`` > 1 ranks only strategies without groups of their own."""
    fit = [name for name in _names(across) if _why_not(name, joint, ranks) is None]
    return [name for name in fit if inner == 1 or len(exchange(name).mesh(joint, ranks)) == 1]


def none_fits(across: str, joint: Workload, ranks: int) -> str | None:
    """Why none of ``across`` can attend among switches: what the first lacks; or None."""
    reasons = [_why_not(name, joint, ranks) for name in _names(across)]
    return None if None in reasons else reasons[0]


def _names(across: str) -> Sequence[str]:
    return EXCHANGES if across == AUTO else (across,)


def _why_not(name: str, joint: Workload, ranks: int) -> str | None:
    other = exchange(name)
    unfit = other.why_not(joint, ranks)
    if unfit is not None:
        return unfit
    mixed = [axis for axis in joint.axes if not _keeps_order(other.shard(joint, axis, ranks))]
    if not mixed:
        return None
    return (
        f"under a causal mask {name} gives each rank an early and a late chunk of {mixed[0]}, but "
        "a switch needs positions in their order; leave out the option across, or use 1 rank"
    )


def _keeps_order(shard: Shard) -> bool:
    """Whether rank order is the order of positions."""
    runs = [run for own in shard.runs for run in own if run[1]]
    return runs == sorted(runs)
