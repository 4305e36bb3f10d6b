"""Weights of which each rank keeps a part, by torch's ``fully_shard`` (``workload/weights.py``).

torch says when a unit is gathered, freed, and its gradients are scattered; what is sent goes by
``comm/``, as everything does: so it is counted, silenced, and run by threads and without data. The
sum over the ranks is a sum, not torch's mean.

Private parts of torch (2.11 to 2.15), in no other file: a mesh without process groups, what a unit
gathers into, and the part of a tensor that is here. Should they change,
tests/conformance/test_sharded_weights.py finds it out.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import Shard as Placement
from torch.utils._python_dispatch import _disable_current_modes

from spbench.comm.collectives import Collectives
from spbench.comm.packing import Cut
from spbench.comm.transport import Transport
from spbench.workload.mesh import Groups
from spbench.workload.sharding import Shard, Shards
from spbench.workload.traffic import Phase
from spbench.workload.weights import FSDP, shared_dim, shared_sizes


def local(x: Tensor) -> Tensor:
    """The part of a weight, or of its gradient, that this rank keeps; ``x`` where that is all."""
    part: Tensor = getattr(x, "_local_tensor", x)
    return part


@final
class _Ranks:
    """Stands for a process group, of which torch asks no more."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size


@final
class _MeshOfRanks(DeviceMesh):
    """A mesh of one dim whose ranks need no process group."""

    def __init__(self, device_type: str, rank: int, size: int) -> None:
        with _disable_current_modes():  # its tensor of ranks has data also in a dry run
            super().__init__(device_type, torch.arange(size), _init_backend=False, _rank=rank)
        self._ranks = _Ranks(rank, size)

    def get_group(self, mesh_dim: Any = None) -> Any:
        return self._ranks


@final
class SharedWeights:
    """The weights of a model, shared out among the ranks of ``groups``.

    In place of the sums of whole gradients: ``restart``, ``ready`` and ``finish`` are theirs.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Sequence[nn.Module],
        zero: int,
        comm: Collectives,
        groups: Groups,
        phase: Callable[[], Phase],
        in_parts: Callable[[str], bool],
    ) -> None:
        """Each weight of ``model`` becomes this rank's part of it.

        Parameters
        ----------
        model, blocks
            What is shared out, and its units but for ``zero`` 1.
        zero
            What is shared out (``Workload.zero``): 1, 2 or 3.
        comm
            The collectives of all ranks by which gradients go.
        groups
            The ranks that hold the same weights.
        phase
            What the step does, as which gathers are counted.
        in_parts
            Whether ranks that cut weights each have a part of the gradient, by name.
        """
        # What a model returns may be a view: nothing changes it in place.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
        self._comm, self._groups, self._phase = comm, groups, phase
        (members,) = (group for group in groups if comm.rank in group)
        self.rank, self.size = members.index(comm.rank), len(members)
        self._shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
        self._names = [name for name, _ in model.named_parameters() if in_parts(name)]
        self._model = model
        device = next(model.parameters()).device
        mesh = _MeshOfRanks("cuda" if device.type == "cuda" else "cpu", self.rank, self.size)
        split = partial(fully_shard, mesh=mesh, shard_placement_fn=self._placement)
        for block in blocks if zero > 1 else ():
            # The last block is the first of backward: freed it would be gathered at once.
            split(block, reshard_after_forward=zero == 3 and block is not blocks[-1])
        split(model, reshard_after_forward=False)
        self._units = [module for module in model.modules() if isinstance(module, FSDPModule)]
        for unit in self._units:
            gathers: Any = _Gathers(self)  # torch's protocols are of private types
            scatters: Any = _Scatters(self)
            unit.set_custom_all_gather(gathers)
            unit.set_custom_reduce_scatter(scatters)
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)
            if device.type == "meta":
                for group in _groups_of(unit):
                    group._validate_no_meta_params = lambda: None
        comm.transport.along(FSDP, groups)  # here ranks meet to make their groups
        if self._names:
            comm.along(comm.mesh.last)

    def _placement(self, weight: nn.Parameter) -> Placement:
        return Placement(shared_dim(tuple(weight.shape), self.size))

    @property
    def transport(self) -> Transport:
        """The ranks that hold the same weights."""
        return self._comm.transport.along(FSDP, self._groups)

    @property
    def phase(self) -> Phase:
        return self._phase()

    @property
    def gathered(self) -> Iterator[Tensor]:
        """What units are gathered into: its memory comes and goes without an operation."""
        for unit in self._units:
            for group in _groups_of(unit):
                for weight in group.fsdp_params:
                    yield from weight.all_gather_outputs

    def cuts(self, name: str, cut: Shards, ranks: int) -> Shards:
        """Which part of a whole weight each of ``ranks`` keeps; ``cut``: what it has without."""
        shape = self._shapes[name]
        dim = shared_dim(shape, self.size)
        place = {rank: at for members in self._groups for at, rank in enumerate(members)}
        at = [place[rank] for rank in range(ranks)]
        if cut and cut[0].dim == dim:  # of a rank's heads, some
            return (cut[0].pieces(lambda length: shared_sizes(length, self.size), at),)
        mine = Shard.of_sizes(dim, shared_sizes(shape[dim], self.size)).among(at)
        return (*cut, mine)

    def restart(self) -> None:
        """Nothing is under way between steps."""

    def ready(self, parameter: Tensor) -> None:
        """Nobody is told: torch knows when a unit has all gradients."""

    def finish(self) -> None:
        """Sums over ranks that cut weights what each has a part of, as one message."""
        if not self._names:
            return
        parameters = dict(self._model.named_parameters())
        parts = [
            local(gradient) for n in self._names if (gradient := parameters[n].grad) is not None
        ]
        along = self._comm.along(self._comm.mesh.last)
        with self._comm.transport.phase("gradients"):
            flat = torch.cat([part.reshape(-1) for part in parts])
            along.all_reduce_(flat).wait()
        for part, whole in zip(parts, flat.split([part.numel() for part in parts]), strict=True):
            part.copy_(whole.view_as(part))


def _groups_of(unit: nn.Module) -> list[Any]:
    """The weights of a unit that are gathered together."""
    state: Any = unit._get_fsdp_state()  # type: ignore[operator]
    several = getattr(state, "_fsdp_param_groups", None)
    found = [state._fsdp_param_group] if several is None else several
    return [group for group in found if group is not None]


class _Buffers:
    """Memory for messages, where the model is."""

    def __init__(self, weights: SharedWeights) -> None:
        self._weights = weights
        parameter = next(weights._model.parameters())
        self._device = parameter.device

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=self._device)


@final
class _Gathers(_Buffers):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: _Ranks, async_op: bool = False
    ) -> None:
        """Every rank's flat part into the whole, in which this rank's lies already."""
        whole = output_tensor.view(group.size(), -1)
        with self._weights._comm.transport.phase(self._weights.phase):
            parts = Cut(whole, 0, Shard.even(0, group.size(), group.size()))
            self._weights.transport.all_gather(parts, input_tensor.view(1, -1)).wait()


@final
class _Scatters(_Buffers):
    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: _Ranks,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """The sum of every rank's whole, of which this one gets its part."""
        whole = input_tensor.view(group.size(), -1)
        with self._weights._comm.transport.phase("gradients"):
            parts = Cut(whole, 0, Shard.even(0, group.size(), group.size()))
            self._weights.transport.reduce_scatter(output_tensor.view(1, -1), parts).wait()
