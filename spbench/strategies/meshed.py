"""The strategy of a case: the one that is named, with the mesh around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spbench.strategies.registry import load
from spbench.workload.mesh import CaseMesh

if TYPE_CHECKING:
    from spbench.strategies.base import Strategy


def in_mesh(text: str, mesh: CaseMesh) -> Strategy:
    """``load``, in groups of ranks where the mesh has several. Imports torch. Raises as it does."""
    own = load(text)
    if mesh.cfg == 1:
        return own
    from spbench.strategies.branch_groups import BranchGroups  # torch, for its base

    return BranchGroups(own=own, cfg=mesh.cfg)
