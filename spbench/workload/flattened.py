"""Axes that are only attended jointly, as the one axis that strategies cut.

Attention over time, height and width joined mixes the positions of all three, whichever is cut. So
their positions are cut in a row, in tensor order, as public code cuts them:

    axes {time: 21, height: 30, width: 52} on 24 ranks    32,760 positions are 1,365 a rank
    whole slices of one axis                              52 are 3 or 2 columns: 1,890 positions

Neighbours in tensor order are one axis where every attention has all of them or none. What belongs
to an axis of the model (positions, vectors of a condition) goes by ``Workload.grid``.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import groupby

from spbench.workload.block import Attention, Stack, Sublayer
from spbench.workload.fields import Grid
from spbench.workload.workload import Workload

JOINS = " x "
"""Between the names of axes in that of all of them as one."""


def flattened(workload: Workload, apart: Collection[str] = ()) -> Workload:
    """The workload with such axes as one each; itself where there are none.

    An axis that is named ``apart`` stays an axis, and so do those that it is attended with.
    """
    return _flattened(workload, tuple(apart))


@lru_cache(maxsize=100)
def _flattened(workload: Workload, apart: tuple[str, ...]) -> Workload:
    groups = [axes for axes in _attended_alike(workload) if not {*axes} & {*apart}]
    return merged(workload, [axes for axes in groups if len(axes) > 1])


def _attended_alike(workload: Workload) -> list[tuple[str, ...]]:
    """The axes in tensor order, neighbours that the same attentions have together."""

    def attentions(axis: str) -> tuple[bool, ...]:
        return tuple(axis in each.axes for each in workload.attentions)

    return [tuple(axes) for _, axes in groupby(workload.axes, key=attentions)]


def merged(workload: Workload, groups: Sequence[tuple[str, ...]]) -> Workload:
    """The workload with each of these groups of neighbours as one axis."""
    if not groups:
        return workload
    names = {axis: JOINS.join(axes) for axes in groups for axis in axes}
    grids: dict[str, Grid] = {}
    for axis in workload.axes:
        grids.setdefault(names.get(axis, axis), {}).update(workload.grid(axis))
    return _with_axes(workload, names, grids)


def as_given(workload: Workload) -> Workload:
    """The workload with the axes of the model: ``merged`` undone."""
    grids: dict[str, Grid] = {axis: {axis: n} for axis, n in workload.coordinates.items()}
    if [*grids] == [*workload.axes]:
        return workload
    names = {axis: tuple(workload.grid(axis)) for axis in workload.axes}
    return _with_axes(workload, names, grids)


def _with_axes(
    workload: Workload, names: Mapping[str, str | tuple[str, ...]], grids: Mapping[str, Grid]
) -> Workload:
    """The workload on the axes of ``grids``; ``names``: what its attentions name in their place."""

    def renamed(sublayer: Sublayer) -> Sublayer:
        if not isinstance(sublayer, Attention):
            return sublayer
        new: dict[str, None] = {}  # several axes may become one: a set that keeps its order
        for axis in sublayer.axes:
            name = names.get(axis, axis)
            new |= dict.fromkeys([name] if isinstance(name, str) else name)
        return sublayer.model_copy(update={"axes": tuple(new)})

    parts = [
        Stack.model_construct(depth=part.depth, block=tuple(map(renamed, part.block)))
        for part in workload.parts
    ]
    return workload.with_parts(parts).on_grids(grids)
