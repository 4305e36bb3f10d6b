"""Bytes of heads that are shared out in groups of ranks, with another exchange across the groups.

Thousands of ranks send the same few amounts: each is worked out once.
"""

from collections.abc import Callable
from functools import cache, partial

from spbench.layers.head_parallel import traffic_by_heads
from spbench.layers.head_shares import all_heads, share_heads
from spbench.workload.block import Attention
from spbench.workload.mesh import Members, Mesh
from spbench.workload.sharding import Sizes
from spbench.workload.traffic import Traffic, along, along_held
from spbench.workload.workload import Workload

HEADS = "heads"
"""The axis of a mesh whose groups share out heads: its last."""
Across = Callable[[Attention, Workload, str], Traffic]
"""What an attention along an axis sends across the groups, of a workload with a rank's heads."""


def traffic_in_groups(
    attention: Attention,
    workload: Workload,
    axis: str,
    held: Sizes,
    mesh: Mesh,
    across: Across,
    pads: bool = False,
) -> Traffic:
    """Transfers of the groups and across them, over all ranks; ``held``: what each rank holds."""
    workload = all_heads(workload, mesh.size_of(HEADS), pads)
    inside = partial(traffic_by_heads, attention, workload, axis)
    shares = share_heads(workload.heads, workload.key_heads, mesh.size_of(HEADS))

    def heads_of(place: int) -> tuple[int, int]:
        return shares.queries[place], shares.matched_size(place)

    (there, out), (back, home) = along_held(HEADS, mesh, held, inside)
    forward, backward = traffic_across(
        workload, mesh, heads_of, lambda part: across(attention, part, axis)
    )
    return [there, *forward, out], [back, *backward, home]


def traffic_across(
    workload: Workload,
    mesh: Mesh,
    heads_of: Callable[[int], tuple[int, int]],
    across: Callable[[Workload], Traffic],
) -> Traffic:
    """Transfers across the groups of the mesh's last axis, over all ranks.

    ``heads_of``: the query and key heads of a rank, by its place in its group.
    """
    others, size = mesh.without(mesh.last), mesh.size_of(mesh.last)
    of_heads = cache(lambda heads, keys: across(with_heads(workload, heads, keys)))

    def of_place(members: Members) -> Traffic:
        return of_heads(*heads_of(members[0] % size))

    return along("+".join(others), mesh.groups(*others), of_place)


def of_first(workload: Workload, size: int, pads: bool = False) -> Workload:
    """The workload with the heads of the first rank of a group of ``size``, which has the most."""
    workload = all_heads(workload, size, pads)
    shares = share_heads(workload.heads, workload.key_heads, size)
    return with_heads(workload, shares.queries[0], shares.matched_size(0))


def with_heads(workload: Workload, heads: int, key_heads: int) -> Workload:
    """The workload with these heads alone, of the same size."""
    own = {"heads": heads, "kv_heads": key_heads, "head_dim": workload.head_size}
    return workload.model_copy(update=own)
