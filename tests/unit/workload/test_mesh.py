"""Groups of a mesh: each rank once in each axis, neighbours in the last."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spbench.workload.mesh import CaseMesh, Mesh


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_each_axis_holds_each_rank_once(sizes: list[int]) -> None:
    """Two ranks are in one group of at most one axis."""
    mesh = Mesh.of({f"axis{i}": size for i, size in enumerate(sizes)})
    assert mesh.size == prod(sizes)
    pairs: list[tuple[int, int]] = []
    for name, size in mesh.axes:
        groups = mesh.groups(name)
        assert sorted(rank for group in groups for rank in group) == list(range(mesh.size))
        assert {len(group) for group in groups} == {size}
        assert all(mesh.members(rank, name) == group for group in groups for rank in group)
        pairs += [(a, b) for group in groups for a in group for b in group if a < b]
    assert len(set(pairs)) == len(pairs)
    names = [name for name, _ in mesh.axes]
    assert mesh.groups(*names) == (tuple(range(mesh.size)),)
    for name in names:
        others = mesh.groups(*(each for each in names if each != name))
        assert all(len({mesh.place(rank)[name] for rank in group}) == 1 for group in others)


def test_neighbours_are_in_the_last_axis() -> None:
    """Two rings of four heads; their text, and the axes that leave a node."""
    mesh = Mesh.of({"ring": 2, "heads": 4})
    assert mesh.groups("heads") == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert mesh.groups("ring") == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert (str(mesh), str(Mesh.of({"sequence": 8}))) == ("ring=2 heads=4", "")


@pytest.mark.parametrize(
    ("ranks_per_node", "across"), [(8, []), (4, ["ring"]), (2, ["ring", "heads"])]
)
def test_axes_across_nodes(ranks_per_node: int, across: list[str]) -> None:
    """A group across nodes makes its axis one."""
    nodes = {rank: f"node{rank // ranks_per_node}" for rank in range(8)}
    assert Mesh.of({"ring": 2, "heads": 4}).across(nodes) == across


@pytest.mark.parametrize(
    ("mesh", "ranks", "is_idle"),
    [("dp=2 pp=2", 4, True), ("dp=2 pp=2", 8, False), ("tp=2", 2, True), ("", 1, False)],
)
def test_a_strategy_with_one_rank_in_each_group(mesh: str, ranks: int, is_idle: bool) -> None:
    """It has nothing to send: who proves or times it is told, with ranks that would."""
    said = (CaseMesh.parse(mesh) if mesh else CaseMesh()).why_idle(ranks)
    assert (said is not None) is is_idle
    assert said is None or f"{2 * ranks} ranks" in said
