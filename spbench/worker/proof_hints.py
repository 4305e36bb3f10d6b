"""Likely causes of what ``spbench.prove`` finds, each of which is looked for.

Where the output is wrong both modules run forward once more: one that gives something else this
time draws random numbers, and heads of queries and keys that attend to each other are counted.
Where a gradient is wrong it is held against multiples of the right one.
"""

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from spbench.comm.collectives import Collectives
from spbench.comm.compiler import nothing_compiled
from spbench.results.agreement import Difference
from spbench.worker.comparison import relative_error
from spbench.worker.module_step import gathered, tensor_of, uncounted

FORGOTTEN = "Is a dim attended while it is cut, or a switch forgotten?"


@final
class HeadsSeen(TorchFunctionMode):
    """Notes how many heads of queries and of keys each attention of torch has."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs: list[tuple[int, int]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is nn.functional.scaled_dot_product_attention:
            given = dict(zip(("query", "key"), args, strict=False)) | (kwargs or {})
            self.pairs.append((given["query"].shape[-3], given["key"].shape[-3]))
        return func(*args, **(kwargs or {}))


def hint_on_output(
    modules: tuple[nn.Module, nn.Module],
    outputs: tuple[Tensor, Tensor],
    inputs: Sequence[Tensor],
    tolerance: float,
    comm: Collectives,
) -> str:
    """Why an output may be wrong. Every rank calls it. ``modules``: the plain and the parallel one;
    ``outputs``: what they gave for ``inputs``."""
    seen, differ = [], []
    with torch.no_grad(), nothing_compiled(), uncounted(comm.transport):
        for module, output in zip(modules, outputs, strict=True):
            with HeadsSeen() as heads:
                again = tensor_of(module(*inputs))
            seen.append(heads.pairs)
            differ.append(not relative_error(again, output, output) <= tolerance)
    of_ranks = gathered([*map(float, differ)], comm, outputs[0].device)
    random = [any(column) for column in zip(*of_ranks, strict=True)]
    if any(random):
        return _on_random_numbers(modules, random)
    of_plain, of_parallel = seen
    return _on_heads(of_plain, of_parallel, comm, outputs[0].device) or FORGOTTEN


def _on_random_numbers(modules: tuple[nn.Module, nn.Module], random: list[bool]) -> str:
    """A module that is not the same twice, and the dropout in it that is switched on."""
    at = random.index(True)
    active = [where for where, each in modules[at].named_modules() if drops(each)]
    found = f" ({', '.join(active[:3])}{', ...' if active[3:] else ''})" if any(active) else ""
    return (
        f"The {('plain', 'parallel')[at]} module draws random numbers: two runs on the same inputs "
        f"differ. Call eval() on both modules, or switch off their dropout{found}"
    )


def drops(module: nn.Module) -> bool:
    """Whether a module of torch's draws what it drops."""
    if isinstance(module, nn.MultiheadAttention):
        return module.training and module.dropout > 0
    return module.training and isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0


def _on_heads(
    of_plain: Sequence[tuple[int, int]],
    of_parallel: Sequence[tuple[int, int]],
    comm: Collectives,
    device: torch.device,
) -> str:
    """The first rank on which a key head serves another number of query heads than on one device;
    blank if there is none."""
    shared = {queries / keys for queries, keys in of_plain}
    odd = [pair for pair in of_parallel if shared and pair[0] / pair[1] not in shared]
    of_ranks = gathered([*map(float, odd[0] if odd else (0, 0))], comm, device)
    bad = next((rank for rank, (queries, _) in enumerate(of_ranks) if queries), None)
    if bad is None:
        return ""
    queries, keys = map(int, of_ranks[bad])
    right = " or ".join(f"{queries} and {keys}" for queries, keys in dict.fromkeys(of_plain))
    return (
        f"Rank {bad} attends with {queries} heads of queries and {keys} of keys, one device with "
        f"{right}: a key head must be where its queries are. Share out key heads in the same "
        "groups, or copy them (repeat_interleave) before the switch"
    )


def hint_on_gradient(worst: Difference, got: Tensor, wanted: Tensor, comm: Collectives) -> str:
    """Why a gradient may be wrong; blank if nothing shows. Every rank calls it."""
    with uncounted(comm.transport):
        total = comm.all_reduce(got)
    if relative_error(got * comm.size, wanted, wanted) <= worst.tolerance:
        return f"It is 1 / {comm.size} of one device's: averaged over the ranks, not summed"
    if relative_error(got / comm.size, wanted, wanted) <= worst.tolerance:
        return f"It is {comm.size} times one device's: summed twice, or a loss of all on each rank"
    if relative_error(total, wanted, wanted) <= worst.tolerance:
        return "Its sum over the ranks is right: SequenceGroup.sum_gradients is to sum it"
    return ""
