"""Megatron tensor parallelism with sequence parallelism (Korthikanti et al., MLSys 2023).

Weights are cut by heads and columns; between sublayers the activation is sharded along one
axis. Every projection in gathers it, every projection out scatters the sum of its parts.

    (B, T/N, S, H)  --all-gather-->  (B, T, S, H)  x column-cut  ->  (B, T, S, 3, Z/N, D)
    attention of Z/N heads, whole axes, local
    (B, T, S, Z/N, D)  x row-cut  ->  partial (B, T, S, H)  --reduce-scatter-->  (B, T/N, S, H)

Each collective sends f M: 2 forward, 3 backward, where the saved shard is gathered once more
(not with ``keep_input``), behind the input-gradient product; the scatter hides behind the other.
In groups of ``tp`` ranks these are the group's, of its part of the sequence.
"""

from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from spbench.comm.collectives import Collectives
from spbench.layers.attention import Scores, attend_whole
from spbench.layers.heads import bias_of_groups, bias_traffic_by_groups
from spbench.layers.linear import ColumnCut, LinearSpec, RowCut
from spbench.layers.memory_order import in_memory_order
from spbench.layers.query_key_norm import cut_norm_sums
from spbench.strategies.fixed_axis import AUTO
from spbench.strategies.tensor_groups import TP, TensorGroups
from spbench.workload.block import Sublayer
from spbench.workload.mesh import Members, Mesh
from spbench.workload.sharding import Shard, Sizes
from spbench.workload.traffic import Traffic, Transfer, along, streams
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True, kw_only=True)
class MegatronSP(TensorGroups):
    """With ``keep_input`` it saves the gathered input for backward: fewer bytes, more memory."""

    forms: ClassVar[tuple[str, ...]] = ("tp=2", "keep-input")
    keep_input: bool = False
    ends_in_transfer: ClassVar[bool] = True

    def environment(self, capability: tuple[int, int]) -> dict[str, str]:
        # Up to Hopper the gather only so reaches the device before the product that hides it.
        return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if capability < (10, 0) else {}

    def sublayer_traffic(
        self, sublayer: Sublayer, workload: Workload, axis: str, ranks: int
    ) -> Traffic:
        mesh = Mesh.of(self.mesh(workload, ranks))
        cuts = self.shard(workload, axis, ranks).sizes, self.text_shard(workload, ranks).sizes
        in_group = cache(partial(self._traffic_in_group, sublayer, workload, axis))
        if self.tp == AUTO:
            return in_group(*cuts)

        def held_in_group(members: Members) -> Traffic:
            return in_group(*(tuple(sizes[rank] for rank in members) for sizes in cuts))

        forward, backward = along(mesh.last, mesh.groups(mesh.last), held_in_group)
        there, back = self.traffic_across(sublayer, workload, axis, mesh)
        scatters = [each for each in forward if each.op == "reduce_scatter"]
        return [*forward[: -len(scatters)], *there, *scatters], back + backward

    def _traffic_in_group(
        self, sublayer: Sublayer, workload: Workload, axis: str, image: Sizes, text: Sizes
    ) -> Traffic:
        """Transfers of ranks that hold these positions of ``axis`` and of text."""
        through = streams(sublayer, workload, axis, image, text)
        gathers = [Transfer.all_gather(*each) for each in through]
        scatters = [Transfer.reduce_scatter(*each) for each in through]
        tokens = workload.tokens // workload.axes[axis] * sum(image) + sum(text)
        again, norm = (
            gathers * (not self.keep_input),
            cut_norm_sums(sublayer, workload, tokens, len(image)),
        )
        bias, back = bias_traffic_by_groups(sublayer, workload, len(image))
        return gathers + norm + bias + scatters, gathers + back + norm + again + scatters

    def linear_in(self, spec: LinearSpec, comm: Collectives) -> nn.Module:
        return ColumnCut(spec, comm, partial(self._times, comm=comm))

    def linear_out(self, spec: LinearSpec, comm: Collectives) -> nn.Module:
        return RowCut(spec, comm, partial(self._scattered, comm=comm))

    def _times(
        self, x: Tensor, matrix: Tensor, bias: Tensor, shard: Shard, comm: Collectives
    ) -> Tensor:
        group, held = self.group(comm, shard)
        return _GatherProduct.apply(x, matrix, bias, group, held, self.keep_input)

    def _scattered(self, parts: Tensor, shard: Shard, comm: Collectives) -> Tensor:
        group, held = self.group(comm, shard)
        return group.reduce_scatter(parts, held)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        if self.tp != AUTO:
            others = comm.along(*comm.mesh.without(TP))
            return self.other.attend(q, k, v, scores, shard.joined(int(self.tp)), others)
        return attend_whole(q, k, v, bias_of_groups(scores, q.shape[-2] // k.shape[-2], comm))


class _GatherProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, bias: Tensor, *how: Any) -> Tensor:
        ctx.comm, ctx.shard, ctx.keep_input = comm, shard, keep_input = how
        gathered = comm.start_all_gather(x, shard).wait()
        ctx.save_for_backward(gathered if keep_input else x, matrix)
        return in_memory_order(lambda x: nn.functional.linear(x, matrix, bias), gathered)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        saved, matrix = ctx.saved_tensors
        gather = None if ctx.keep_input else ctx.comm.start_all_gather(saved, ctx.shard)
        grad = grad.movedim(ctx.shard.dim, 0).contiguous()  # as gather and scatter have it
        parts = (grad @ matrix).movedim(0, ctx.shard.dim)
        x = saved if gather is None else gather.wait()
        scatter = ctx.comm.start_reduce_scatter(parts, ctx.shard)
        rows, inputs = (each.flatten(0, -2) for each in (grad, x.movedim(ctx.shard.dim, 0)))
        return scatter.wait(), rows.t() @ inputs, rows.sum(0), None, None, None
