"""One step of a module of one's own: whole on one device, or this rank's part of it, counted."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from spbench.comm.collectives import Collectives
from spbench.comm.compiler import plain_name
from spbench.comm.transport import Transport, Transports
from spbench.results.agreement import Difference
from spbench.worker.tensor_errors import Named
from spbench.worker.witness import Witness
from spbench.workload.sharding import Shard, shard_sizes
from spbench.workload.traffic import Count

WHOLE, NEITHER = -1, -2
"""How an output is cut, where it is not along a dim."""


@final
class ProofError(AssertionError):
    """A parallel module differs from one device; raised on every rank, with the same tensor."""

    def __init__(self, message: str, differences: Sequence[Difference] = ()) -> None:
        super().__init__(message)
        self.differences = tuple(differences)
        """How far each tensor is off; none where the outputs have other shapes."""


@final
@dataclass(frozen=True, kw_only=True)
class RankStep:
    """What this rank's part of a step has left."""

    tensors: Named
    """The output's part; the inputs' gradients, summed over the ranks; the weights' as they are."""
    cuts: tuple[Shard, ...]
    """How the output is cut; none: every rank has the whole."""
    sent: Count
    uncounted: dict[str, int]
    """Calls of collectives that the group did not count, by operation."""


def step_of_one_device(plain: nn.Module, inputs: Sequence[Tensor], seed: int) -> Named:
    """The whole output, and the gradients of inputs and weights by name. Leaves ``.grad`` alone."""
    leaves = _leaves(inputs)
    out = tensor_of(plain(*leaves))
    wanted = _wanted(plain, leaves)
    gradients: Sequence[Tensor | None] = ()
    if wanted:
        seeded = _cotangent(out.shape, seed).to(out)
        gradients = torch.autograd.grad(out, list(wanted.values()), seeded, allow_unused=True)
    return {"output": out.detach()} | _filled(wanted, gradients)


def step_of_this_rank(
    parallel: nn.Module, inputs: Sequence[Tensor], whole: torch.Size, comm: Collectives, seed: int
) -> RankStep:
    """This rank's part of a step whose whole output has the shape ``whole``."""
    leaves, transport = _leaves(inputs), comm.transport
    wanted = _wanted(parallel, leaves)
    parallel.zero_grad(set_to_none=True)
    transport.reset()
    with Witness(Transports(strategy=transport, gradients=transport)) as witness:
        out = tensor_of(parallel(*leaves))
        cuts = _agreed_cut(out, whole, comm)
        seeded = _cotangent(whole, seed)
        part = comm.take(seeded, cuts[0]) if cuts else seeded / comm.size
        if wanted:
            with transport.phase("backward"):
                out.backward(part.to(out))
    sent = dict(transport.sent)
    gradients = _filled(wanted, [x.grad for x in wanted.values()])
    with uncounted(transport):
        for name in list(wanted)[: sum(x.requires_grad for x in leaves)]:
            gradients[name] = comm.all_reduce(gradients[name])
    tensors = {"output": out.detach()} | gradients
    return RankStep(tensors=tensors, cuts=cuts, sent=sent, uncounted=dict(witness.bypassing))


def gathered(values: Sequence[float], comm: Collectives, device: torch.device) -> list[list[float]]:
    """Every rank's values, by rank: as many of each. Not counted."""
    mine = torch.tensor([list(values)], dtype=torch.float64, device=device)
    with uncounted(comm.transport), torch.no_grad():
        return list(comm.all_gather(mine, Shard.even(0, comm.size, comm.size)).tolist())


@contextmanager
def uncounted(transport: Transport) -> Iterator[None]:
    """What is sent inside leaves no trace in the count."""
    before = transport.sent, transport.calls
    transport.reset()
    try:
        yield
    finally:
        transport.sent, transport.calls = before


def _leaves(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Copies that have a gradient, where numbers are real."""
    return [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]


def _wanted(module: nn.Module, leaves: Sequence[Tensor]) -> Named:
    """The tensors whose gradients are compared: the inputs first, then the weights."""
    which = {f"gradient of input {i}": x for i, x in enumerate(leaves) if x.requires_grad}
    weights = [(plain_name(n), p) for n, p in module.named_parameters() if p.requires_grad]
    return which | {f"gradient of {name}": p for name, p in weights}


def _filled(wanted: Named, gradients: Sequence[Tensor | None]) -> Named:
    """Gradients by name; a tensor that has none has zeros."""
    pairs = zip(wanted.items(), gradients, strict=True)
    return {name: torch.zeros_like(x) if g is None else g.detach() for (name, x), g in pairs}


def tensor_of(out: object) -> Tensor:
    """What a module gave. Raises TypeError where it is no tensor."""
    if isinstance(out, Tensor):
        return out
    raise TypeError(f"a module that gives a {type(out).__name__} cannot be compared: give a tensor")


def _cotangent(shape: Sequence[int], seed: int) -> Tensor:
    """The gradient of the whole output, the same on every rank."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _agreed_cut(out: Tensor, whole: torch.Size, comm: Collectives) -> tuple[Shard, ...]:
    """How the output is cut, by its shape on every rank; nothing where each has the whole."""
    dims = {int(dim) for (dim,) in gathered([_cut(out.shape, whole, comm)], comm, out.device)}
    if len(dims) > 1 or dims == {NEITHER}:
        raise ProofError(
            f"the output is {tuple(out.shape)} on rank {comm.rank} and {tuple(whole)} on one "
            "device; every rank must give its part along the same one dim, or the whole"
        )
    (dim,) = dims
    return () if dim == WHOLE else (Shard.even(dim, whole[dim], comm.size),)


def _cut(mine: torch.Size, whole: torch.Size, comm: Collectives) -> int:
    """The dim along which a shape is this rank's part."""
    if mine == whole:
        return WHOLE
    if len(mine) != len(whole):
        return NEITHER
    dim, *more = (i for i, length in enumerate(mine) if length != whole[i])
    is_part = mine[dim] == shard_sizes(whole[dim], comm.size)[comm.rank]
    return dim if is_part and not more else NEITHER
