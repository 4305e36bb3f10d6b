"""Bytes that a call of torch's own collectives sends, by the formulas that ``Transport`` counts by.

A collective that passes ``comm/`` by is not counted there. What it would have been counted as is
known from its arguments: what this rank hands over to others, without its own part.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Protocol, cast

import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_leaves

from spbench.workload.traffic import Op, all_reduce_bytes

NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem", "_dtensor")
"""Namespaces of torch's operations that move tensors between ranks."""
MOVE_NOTHING = ("wait_tensor", "mesh_get_process_group", "check_for_nan", "_wrap_tensor_autograd")
"""Operations in them that move nothing."""
Arguments = Mapping[str, Any]


class Group(Protocol):
    """A process group of torch."""

    def rank(self) -> int: ...

    def size(self) -> int: ...


def collective_named(namespace: str, name: str) -> str:
    """The name of an operation of torch that is a collective, else blank."""
    is_one = namespace in NAMESPACES and name not in MOVE_NOTHING
    return f"{namespace}::{name}" if is_one else ""


def sent_bytes(func: Any, args: Sequence[Any], kwargs: Arguments) -> int | Fraction | None:
    """Bytes that this rank sends in a call of a collective; None where there is no formula."""
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    formula = FORMULAS.get(_name(func))
    if formula is None:
        return None
    group = _group(given)
    # A group that is not found is no reason to guess: the bytes are then not known.
    return None if group is None else formula(given, group)


def op_of(func: Any) -> Op | None:
    """What ``Transport`` would have counted a call as; None where it has nothing of the kind."""
    return OPS.get(_name(func))


def _name(func: Any) -> str:
    """The name of an operation, without its namespace."""
    name: str = func._schema.name
    return name.partition("::")[2]


def _group(given: Arguments) -> Group | None:
    """The group of a call: an object of torch's, or its name."""
    group = given.get("process_group", given.get("group_name"))
    if isinstance(group, str):
        return cast(Group, dist.distributed_c10d._resolve_process_group(group))  # type: ignore
    if group is None or isinstance(group, dist.ProcessGroup):
        return group
    return dist.ProcessGroup.unbox(group)


def _bytes(tensors: Any) -> int:
    return sum(x.nbytes for x in tree_leaves(tensors) if isinstance(x, Tensor))


def _input(given: Arguments) -> int:
    """Bytes of what is handed over, as operations call it."""
    names = ("input_tensor", "input_tensors", "input_list", "input", "inputs", "tensors", "tensor")
    return _bytes(next(given[name] for name in names if name in given))


def _gather(given: Arguments, group: Group) -> int:
    return (group.size() - 1) * _input(given)


def _scatter(given: Arguments, group: Group) -> Fraction:
    """All parts but one's own, which are alike."""
    return Fraction((group.size() - 1) * _input(given), group.size())


def _all_reduce(given: Arguments, group: Group) -> Fraction:
    return Fraction(all_reduce_bytes(_input(given), group.size()))


def _all_to_all(given: Arguments, group: Group) -> Fraction:
    sizes = given.get("input_split_sizes")
    x = given["input"]
    if not sizes:
        return _scatter(given, group)
    # Sizes count rows of dim 0: of 10 rows a rank that keeps 3 sends 7.
    row = Fraction(x.nbytes, max(1, x.shape[0]))
    return x.nbytes - int(sizes[group.rank()]) * row


def _all_to_all_of_list(given: Arguments, group: Group) -> int:
    return _input(given) - given["input_tensors"][group.rank()].nbytes


def _from_root(given: Arguments, group: Group) -> int:
    """The root hands the same to each other rank."""
    root = given.get("root_rank", given.get("src"))
    return (group.size() - 1) * _input(given) if root == group.rank() else 0


def _to_root(given: Arguments, group: Group) -> int:
    return 0 if given["root_rank"] == group.rank() else _input(given)


def _shares_of_root(given: Arguments, group: Group) -> Fraction:
    is_root = given["root_rank"] == group.rank()
    return _scatter(given, group) if is_root else Fraction(0)


def _all(given: Arguments, _: Group) -> int:
    return _input(given)


def _none(_given: Arguments, _: Group) -> int:
    return 0


def _batch(given: Arguments, _: Group) -> int:
    pairs = zip(given["op_list"], given["tensors"], strict=True)
    return sum(x.nbytes for op, x in pairs if op == "isend")


Formula = Callable[[Arguments, Group], int | Fraction]
COLLECTIVES: Sequence[tuple[Op | None, Formula, Sequence[str]]] = (
    ("all_gather", _gather, ("_allgather_base_", "allgather_", "allgather_coalesced_")),
    ("all_gather", _gather, ("allgather_into_tensor_coalesced_", "all_gather_into_tensor")),
    ("all_gather", _gather, ("all_gather_into_tensor_coalesced", "all_gather_into_tensor_out")),
    ("reduce_scatter", _scatter, ("_reduce_scatter_base_", "reduce_scatter_")),
    ("reduce_scatter", _scatter, ("reduce_scatter_tensor", "reduce_scatter_tensor_out")),
    ("reduce_scatter", _scatter, ("reduce_scatter_tensor_coalesced",)),
    ("reduce_scatter", _scatter, ("reduce_scatter_tensor_coalesced_",)),
    ("all_reduce", _all_reduce, ("allreduce_", "allreduce_coalesced_", "all_reduce")),
    ("all_reduce", _all_reduce, ("all_reduce_", "all_reduce_coalesced", "all_reduce_coalesced_")),
    ("all_to_all", _all_to_all, ("alltoall_base_", "all_to_all_single")),
    ("all_to_all", _all_to_all_of_list, ("alltoall_",)),
    ("all_to_all", _scatter, ("shard_dim_alltoall",)),
    ("p2p", _all, ("send", "isend")),
    ("p2p", _batch, ("batch_p2p_ops",)),
    ("p2p", _none, ("recv_", "recv_any_source_", "irecv", "barrier", "monitored_barrier_")),
    (None, _from_root, ("broadcast_", "broadcast")),
    (None, _to_root, ("reduce_", "gather_")),
    (None, _shares_of_root, ("scatter_",)),
)
"""What a call counts as, the bytes that it sends, and the names of operations, without namespaces.
What has one root is nothing that ``Transport`` has."""
FORMULAS = {name: formula for _, formula, names in COLLECTIVES for name in names}
OPS = {name: op for op, _, names in COLLECTIVES for name in names}
