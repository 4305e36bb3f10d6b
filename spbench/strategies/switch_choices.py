"""What a strategy that switches may shard in each sublayer, and the settings that allow it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

from spbench.strategies.fixed_axis import AUTO, Known
from spbench.strategies.joint_attention import exchange, fitting, joint_alone, none_fits
from spbench.strategies.registry import EXCHANGES
from spbench.strategies.switch_refusals import no_two_axes, nothing_to_switch, too_short
from spbench.strategies.two_axes import TwoAxes
from spbench.workload.block import Sublayer
from spbench.workload.workload import Workload


class HasSettings(Protocol):
    """A strategy that has these as options."""

    @property
    def across(self) -> str: ...

    @property
    def inner(self) -> str: ...


class Settings(NamedTuple):
    """What attends to all axes joined, and the ranks of an inner group."""

    across: str
    inner: str

    @classmethod
    def of(cls, strategy: HasSettings) -> Settings:
        return cls(strategy.across, strategy.inner)


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
    """All that leave each sublayer a choice; without groups alone, where that is enough."""
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
    if joint and len(joint.kinds) == len(workload.attentions):
        return nothing_to_switch(workload)
    if given.inner not in (AUTO, "1"):
        return no_two_axes(given.inner, ranks)
    return too_short(workload, ranks) or (joint and none_fits(given.across, joint, ranks)) or ""


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
