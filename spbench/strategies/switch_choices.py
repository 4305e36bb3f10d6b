"""What a strategy that switches may shard in each sublayer, by which settings, or why nothing."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from spbench.strategies.fixed_axis import AUTO, Known
from spbench.strategies.joint_attention import exchange, fitting, joint_alone, none_fits
from spbench.strategies.registry import EXCHANGES
from spbench.strategies.two_axes import TwoAxes
from spbench.workload.block import Sublayer
from spbench.workload.workload import Workload


class Settings(NamedTuple):
    """What attends to all axes joined, and the ranks of an inner group."""

    across: str
    inner: str


@lru_cache(maxsize=100)
def two_axes(settings: Settings, known: Known, ranks: int) -> TwoAxes:
    """What may be sharded with these settings, one axis or two at once."""
    joint = joint_alone(known.workload)
    other = None if joint is None else (exchange(settings.across), joint)
    return TwoAxes(known.workload, ranks, int(settings.inner), other)


def choices(
    settings: Settings, sublayer: Sublayer, workload: Workload, ranks: int
) -> Sequence[str]:
    """Axes that are long enough and not attended; where all are attended, those of the exchange."""
    joint = joint_alone(workload)
    if joint is None or sublayer not in joint.kinds:
        return two_axes(settings, Known.of(workload), ranks).free(sublayer)
    return exchange(settings.across).choices(sublayer, joint, ranks)


def fitting_settings(given: Settings, workload: Workload, ranks: int) -> Iterator[Settings]:
    """Settings that leave each sublayer an axis to shard; only those without groups if any does."""
    joint = joint_alone(workload)
    if joint and len(joint.kinds) == len(workload.attentions):
        return
    sizes = [1, *(size for size in range(2, ranks // 2 + 1) if ranks % size == 0)]
    for size in sizes if given.inner == AUTO else [int(given.inner)]:
        names = EXCHANGES[:1] if joint is None else fitting(given.across, joint, ranks, size)
        each = [Settings(name, str(size)) for name in names]
        fit = [x for x in each if all(choices(x, s, workload, ranks) for s in workload.kinds)]
        yield from fit
        if size == 1 and fit:
            return


def none_is_enough(given: Settings, workload: Workload, ranks: int) -> str:
    """Why no setting leads through the stack."""
    joint = joint_alone(workload)
    if joint and len(joint.kinds) == len(workload.attentions):  # on any number of ranks
        if len(workload.coordinates) == 1:
            return "it shards an axis that is not attended, and needs a second sequence axis"
        axes = ", ".join(workload.coordinates)
        return (
            f"every attention joins {axes}, which leaves no axis to shard; "
            "strategies that share heads, pass keys or cut weights can run it"
        )
    if given.inner not in (AUTO, "1"):
        return (
            f"{ranks} ranks in groups of inner={given.inner} leave a sublayer without axes to "
            "shard, which are not attended and long enough; leave out the option inner"
        )
    return _too_short(workload, ranks) or (joint and none_fits(given.across, joint, ranks)) or ""


def notes_of(settings: Settings, given: Settings, workload: Workload) -> str:
    """What these settings do beyond switching between axes, and whether bytes decided."""
    notes = []
    if settings.inner != "1":
        notes.append("two axes are sharded at once where one is too short")
    if joint_alone(workload) is not None:
        joint = "attention over all axes joined leaves none to shard: it goes by"
        why = ", which sends the fewest bytes" if given.across == AUTO else ""
        notes.append(f"{joint} {settings.across}{why}")
    return "; ".join(notes)


def _too_short(workload: Workload, ranks: int) -> str | None:
    """Why some sublayer has no axis to shard: those not attended are all too short; or None."""
    kinds = [each for each in workload.kinds if {*workload.axes} - {*each.attended}]
    longest = {each: _longest(each, workload) for each in kinds}
    sublayer = min(kinds, key=lambda each: workload.axes[longest[each]])
    axis = longest[sublayer]
    if workload.axes[axis] >= ranks:
        return None
    attended = " and ".join(sublayer.attended)
    when = f" while {attended} is attended" if attended else ""
    return (
        f"no axis has {ranks} positions to shard{when}: the longest is {axis} with "
        f"{workload.axes[axis]}; use 1 to {workload.axes[axis]} ranks"
    )


def _longest(sublayer: Sublayer, workload: Workload) -> str:
    """The longest axis that is not attended."""
    free = (axis for axis in workload.axes if axis not in sublayer.attended)
    return max(free, key=workload.axes.__getitem__)
