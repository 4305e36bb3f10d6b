"""Bytes of a call of torch's own collectives, by the formulas that comm/ counts by."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from spbench.comm import torch_collectives
from spbench.comm.torch_collectives import FORMULAS, MOVE_NOTHING, collective_named, sent_bytes

RANKS, RANK, PEER = 4, 1, 2
X = torch.zeros(8, 3)
"""96 bytes, two rows for each rank."""
PARTS = [torch.zeros(2, 3)] * RANKS


class Group:
    """The second of four ranks."""

    def rank(self) -> int:
        return RANK

    def size(self) -> int:
        return RANKS


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A process group without processes."""
    monkeypatch.setattr(dist.ProcessGroup, "unbox", staticmethod(lambda group: group))
    resolve = "spbench.comm.torch_collectives.dist.distributed_c10d._resolve_process_group"
    monkeypatch.setattr(resolve, lambda name: Group())
    return Group()


OF_C10D: Sequence[tuple[str, Sequence[Any], float]] = [
    ("_allgather_base_", (X, X, ...), 3 * 96),
    ("allgather_", ([PARTS], [X], ...), 3 * 96),
    ("allgather_into_tensor_coalesced_", ([X], [X, X], ...), 3 * 2 * 96),
    ("_reduce_scatter_base_", (X, X, ..., None), 72),
    ("reduce_scatter_", ([X], [PARTS], ..., None), 72),
    ("allreduce_", ([X], ..., None, None), 2 * 72),
    ("allreduce_coalesced_", ([X, X], ..., None), 4 * 72),
    ("alltoall_base_", (X, X, ..., [], []), 72),
    ("alltoall_base_", (X, X, ..., [2, 2, 2, 2], [1, 5, 1, 1]), 36),
    ("alltoall_", (PARTS, PARTS, ...), 72),
    ("broadcast_", ([X], ..., RANK, 0), 3 * 96),
    ("broadcast_", ([X], ..., PEER, 0), 0),
    ("reduce_", ([X], ..., None, PEER, 0), 96),
    ("reduce_", ([X], ..., None, RANK, 0), 0),
    ("gather_", ([PARTS], [X], ..., PEER), 96),
    ("scatter_", ([X], [PARTS], ..., RANK), 72),
    ("scatter_", ([X], [], ..., PEER), 0),
    ("send", ([X], ..., PEER, 0), 96),
    ("recv_", ([X], ..., PEER, 0), 0),
    ("barrier", (X, ..., []), 0),
]


@pytest.mark.parametrize(("name", "args", "wanted"), OF_C10D)
def test_operations_of_c10d(group: Any, name: str, args: Sequence[Any], wanted: float) -> None:
    """As comm/ counts: what is handed to others, without what stays. ... is the group."""
    given = [group if arg is ... else arg for arg in args]
    assert sent_bytes(getattr(torch.ops.c10d, name).default, given, {}) == wanted


FUNCTIONAL: Sequence[tuple[str, Sequence[Any], float]] = [
    ("all_gather_into_tensor", (X, RANKS, "group"), 3 * 96),
    ("all_gather_into_tensor_coalesced", ([X, X], RANKS, "group"), 6 * 96),
    ("reduce_scatter_tensor", (X, "sum", RANKS, "group"), 72),
    ("all_reduce", (X, "sum", "group"), 2 * 72),
    ("all_reduce_", (X, "sum", "group"), 2 * 72),
    ("all_to_all_single", (X, [2] * 4, [2] * 4, "group"), 72),
    ("broadcast", (X, RANK, "group"), 3 * 96),
]


@pytest.mark.parametrize(("name", "args", "wanted"), FUNCTIONAL)
def test_functional_collectives(group: Any, name: str, args: Sequence[Any], wanted: float) -> None:
    """Their group is a name."""
    operation = getattr(torch.ops._c10d_functional, name).default
    assert sent_bytes(operation, args, {}) == wanted


def test_arguments_by_name_and_parts_of_bytes(group: Any) -> None:
    """A tensor that does not divide is a fraction, as in comm/."""
    x = torch.zeros(3, dtype=torch.int8)
    operation = torch.ops._c10d_functional.all_reduce.default
    assert sent_bytes(operation, (x,), {"reduce_op": "sum", "group_name": "group"}) == Fraction(
        9, 2
    )


def test_what_has_no_formula_is_not_known(group: Any) -> None:
    """A transfer through symmetric memory is a collective all the same."""
    operation = torch.ops.symm_mem.two_shot_all_reduce_.default
    assert sent_bytes(operation, (X, "sum", "group"), {}) is None
    assert collective_named("symm_mem", "two_shot_all_reduce_") == "symm_mem::two_shot_all_reduce_"


def test_every_operation_of_torch_is_known() -> None:
    """Each of this torch's has a formula, or moves nothing."""
    names = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    apart = [name.split("::") for name in names]
    known = {*FORMULAS, *MOVE_NOTHING}
    of_groups = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
    assert {name for space, name in apart if space in of_groups} <= known


def test_waiting_is_no_collective() -> None:
    """What an asynchronous one is waited for by; nor is an operation that computes."""
    assert collective_named("_c10d_functional", "wait_tensor") == ""
    assert collective_named("aten", "all_gather") == ""
    assert collective_named("c10d", "send") == "c10d::send"


def test_groups_of_torch_are_read() -> None:
    """By the object that torch hands over, and by the name."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        seen: list[Tensor | Any] = [dist.group.WORLD, dist.group.WORLD.group_name]  # type: ignore[union-attr]
        seen.append(dist.group.WORLD.boxed())  # type: ignore[union-attr]
        for each in seen:
            group = torch_collectives._group({"process_group": each})
            assert group is not None
            assert (group.rank(), group.size()) == (0, 1)
    finally:
        dist.destroy_process_group()
