"""``spbench.prove``: is a module that several ranks share equal to the plain one on one device?

Every rank runs the plain module whole, and its part of the parallel one from the same weights and
inputs. Output, gradients of inputs and of every weight are compared as the gate does it
(``tensor_errors.py``); ranks agree on the result, so that all raise, or none.

Likely causes of what is wrong are looked for. Where the output is wrong both modules run forward
once more: one that gives something else this time draws random numbers, and heads of queries and
keys that attend to each other are counted. Where a gradient is wrong it is held against multiples
of the right one.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from spbench.comm.collectives import Collectives
from spbench.comm.compiler import load_weights_of, nothing_compiled
from spbench.own_model.module_step import (
    ProofError,
    gathered,
    step_of_one_device,
    step_of_this_rank,
    tensor_of,
    uncounted,
)
from spbench.own_model.sequence_group import SequenceGroup
from spbench.results.agreement import Difference
from spbench.text import counted
from spbench.worker.reference import FINER
from spbench.worker.tensor_errors import Comparison, Named, relative_error
from spbench.workload.traffic import PHASES, by_phase


@final
@dataclass(frozen=True, kw_only=True)
class Proof:
    """A parallel module is equal to one device; the same on every rank but ``uncounted``."""

    ranks: int
    differences: tuple[Difference, ...]
    """The output, each input's gradient and each weight's: the largest relative error of any rank,
    a root mean square over that of the whole tensor, and the tolerance that it kept."""
    sent_bytes_forward: int
    """Bytes that the busiest rank sends in forward."""
    sent_bytes_backward: int
    """Bytes that the busiest rank sends in backward, without the sum of gradients."""
    sent_bytes_gradients: int
    """Bytes that the busiest rank sends in the sum of gradients."""
    uncounted: Mapping[str, int]
    """Calls on this rank of torch's own collectives, whose bytes nobody counts, by operation."""

    @property
    def output_error(self) -> float:
        """The output's relative error."""
        return self.differences[0].relative

    @property
    def gradient_error(self) -> float:
        """The largest relative error of all gradients; 0 where there are none."""
        return max((other.relative for other in self.differences[1:]), default=0.0)

    @property
    def tolerance(self) -> float:
        """The tolerance of the tensor that came nearest to its own."""
        return max(self.differences, key=lambda difference: difference.excess).tolerance

    def __str__(self) -> str:
        gradients = counted(len(self.differences) - 1, "gradient")
        beside = ", ".join(f"{name} ({counted(n, 'call')})" for name, n in self.uncounted.items())
        return (
            f"equal to one device on {counted(self.ranks, 'rank')}: relative error of the output "
            f"{self.output_error:.2g}, of {gradients} at most {self.gradient_error:.2g} "
            f"(tolerance {self.tolerance:.2g})\nbytes sent by the busiest rank: "
            f"{self.sent_bytes_forward:,} forward, {self.sent_bytes_backward:,} backward, "
            f"{self.sent_bytes_gradients:,} in the sum of gradients"
            + (f"\nnot counted: {beside}" if beside else "")
        )


def in_words(differences: Sequence[Difference], rank: int, hint: str) -> str:
    """Which tensor is wrong, the output before any gradient, and how many more."""
    wrong = [difference for difference in differences if not difference.excess <= 1]
    worst = blamed(differences)
    more = f", and so do {len(wrong) - 1} of {len(differences) - 1} others" if wrong[1:] else ""
    far = worst.in_words("differs from one device")
    return f"{far} on rank {rank}{more}{hint and f'. {hint}'}"


def blamed(differences: Sequence[Difference]) -> Difference:
    """The output if it is wrong, from which every gradient follows; else the worst tensor."""
    output = differences[0]
    if not output.excess <= 1:  # also where it is NaN, which is no number
        return output
    return max(differences, key=lambda difference: difference.excess)


DTYPES = {"float64", "float32", *FINER}


def prove(
    plain: nn.Module, parallel: nn.Module, *inputs: Tensor, group: SequenceGroup, seed: int = 0
) -> Proof:
    """Proves that ``parallel``, on the ranks of ``group``, equals ``plain`` on one device.

    Every rank calls it with the same ``plain`` and the same whole ``inputs``, made from one seed,
    on its own device and in one dtype. ``parallel`` takes ``plain``'s weights (``load_state_dict``)
    and the whole inputs, and gives its part of the output, cut along any one dim, shards as even as
    can be, longer ones first; or the whole of it, of which each rank then has 1 / N of the loss.
    The gradient of the output is drawn from ``seed``. Gradients of weights must be the sum over the
    ranks; those of inputs are summed here. Neither module may draw random numbers: no dropout.

    Relative errors may be 1e-9 in float64 and 1e-4 in float32; in 16 bits four times what plain's
    own are, both against float32. Raises ProofError, an AssertionError, on every rank if a tensor
    differs: which, how far, and a likely cause. Gradients that ``parallel`` held are lost, and what
    the group had counted is counted anew.
    """
    comm = Collectives(group.transport)
    load_weights_of(plain, parallel)
    _must_be_alike(plain, inputs, comm)
    own = step_of_one_device(plain, inputs, seed)
    dtype = str(own["output"].dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise TypeError(f"an output in {dtype} cannot be compared; {', '.join(sorted(DTYPES))} can")
    finer = _in_float32(plain, inputs, seed) if dtype in FINER else None
    mine = step_of_this_rank(parallel, inputs, own["output"].shape, comm, seed)
    exact = own if finer is None else finer
    cuts = dict.fromkeys(exact, ()) | {"output": mine.cuts}
    comparison = Comparison(exact, finer and own, dtype=dtype, shards=cuts, comm=comm)
    differences, ranks = _largest(comparison, mine.tensors, comm)
    worst = blamed(differences)
    if not worst.excess <= 1:
        if worst.name == "output":
            outputs = own["output"], mine.tensors["output"]
            hint = hint_on_output((plain, parallel), outputs, inputs, worst.tolerance, comm)
        else:
            hint = hint_on_gradient(worst, mine.tensors[worst.name], exact[worst.name], comm)
        raise ProofError(in_words(differences, ranks[differences.index(worst)], hint), differences)
    sent = gathered([*map(float, by_phase(mine.sent).values())], comm, own["output"].device)
    most = (round(max(column)) for column in zip(*sent, strict=True))
    return Proof(
        ranks=comm.size,
        differences=tuple(differences),
        **{f"sent_bytes_{phase}": n for phase, n in zip(PHASES, most, strict=True)},
        uncounted=mine.uncounted,
    )


def _in_float32(plain: nn.Module, inputs: Sequence[Tensor], seed: int) -> Named:
    """One device's step from the same rounded weights and inputs, in float32."""
    finer = [x.float() if x.is_floating_point() else x for x in inputs]
    return step_of_one_device(copy.deepcopy(plain).float(), finer, seed)


def _must_be_alike(plain: nn.Module, inputs: Sequence[Tensor], comm: Collectives) -> None:
    """Ranks that compare with different truths would never agree."""
    tensors = [*plain.state_dict().values(), *inputs]
    norms = [float(torch.linalg.vector_norm(x.double())) for x in tensors]
    first, *others = gathered([sum(norms)], comm, tensors[0].device)
    for rank, other in enumerate(others, 1):
        if not math.isclose(*first, *other, rel_tol=1e-6):
            raise ProofError(
                f"rank {rank} has other weights or inputs than rank 0: make them from one seed, "
                "torch.manual_seed(0), on every rank"
            )


def _largest(
    comparison: Comparison, tensors: Named, comm: Collectives
) -> tuple[list[Difference], list[int]]:
    """The worst difference of any rank, tensor by tensor, and the rank that has it."""
    names = list(tensors)
    tolerances = comparison.tolerances(names)
    errors = [comparison.error(name, got) for name, got in tensors.items()]
    table = gathered([*errors, *tolerances.values()], comm, tensors["output"].device)
    worst, ranks = [], []
    for i, name in enumerate(names):
        of_ranks = [
            Difference(name=name, relative=row[i], tolerance=row[len(names) + i]) for row in table
        ]
        ranks.append(max(range(comm.size), key=lambda rank: of_ranks[rank].excess))
        worst.append(of_ranks[ranks[-1]])
    return worst, ranks


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
    active = [where for where, module in modules[at].named_modules() if drops(module)]
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
