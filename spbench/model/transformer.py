"""The transformer: a loop over blocks of sublayers, which knows neither ranks nor strategies.

    for sublayer, shard in zip(sublayers, layout):
        x = switch(x, to=shard)                  # only where the layout changes
        x = x + gate * sublayer(norm(x))         # linear_in -> attend -> linear_out

The activation comes sharded, as a patch embedding leaves it. The final projection runs on
whatever shard is current: 36 times fewer channels, still sharded. Under checkpointing each
block is recomputed from its input; the switch into the block is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple, final

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from spbench.comm.collectives import Collectives
from spbench.layers.linear import LinearSpec, Stretch, WholeLinear
from spbench.model import sublayers
from spbench.model.adaln import gated_sum
from spbench.model.inputs import Inputs
from spbench.model.modulation import Conditioning, ModulatedNorm, PlainNorm, modulation_indices
from spbench.model.positions import LearnedPositions, RotaryTables
from spbench.model.self_attention import Shared
from spbench.strategies.base import Strategy
from spbench.workload.flops import modulated
from spbench.workload.sharding import Shard
from spbench.workload.workload import Workload


class Placement(NamedTuple):
    """How an activation lies on the ranks, and in the memory of each."""

    shard: Shard
    outermost: int
    """The dim that is outermost in memory."""

    @classmethod
    def at_first(cls, shard: Shard) -> Placement:
        return cls(shard, shard.dim)


@final
class Residual(nn.Module):
    """One sublayer with its norm and residual, on the shard that its layout asks for."""

    def __init__(self, norm: nn.Module, sublayer: nn.Module, place: Placement) -> None:
        super().__init__()
        self.norm, self.sublayer, self.place = norm, sublayer, place

    def forward(self, x: Tensor, conditions: Sequence[Tensor], inputs: Inputs) -> Tensor:
        normed, x, gate = self.norm(x, conditions)
        out: Tensor = self.sublayer(normed, inputs, self.place.shard)
        return x + out if gate is None else gated_sum(x, gate, out)


@final
class Block(nn.Module):
    """The sublayers of one block; the activation comes as the first asks for it."""

    def __init__(self, residuals: Sequence[Residual], comm: Collectives) -> None:
        super().__init__()
        self.comm, self.first, self.last = comm, residuals[0].place, residuals[-1].place
        self.residuals = nn.ModuleList(residuals)

    def forward(self, x: Tensor, conditions: Sequence[Tensor], inputs: Inputs) -> Tensor:
        place = self.first
        for residual in self.residuals:
            assert isinstance(residual, Residual)
            x = switched(x, place, residual.place, self.comm)
            x, place = residual(x, conditions, inputs), residual.place
        return x


@final
class Transformer(nn.Module):
    """(B, *axes, H), sharded as for the first sublayer -> (B, *axes, C), as for the last."""

    def __init__(self, workload: Workload, strategy: Strategy, comm: Collectives) -> None:
        super().__init__()
        self.workload, self.comm = workload, comm
        shards = {axis: strategy.shard(workload, axis, comm.size) for axis in workload.axes}
        axes = strategy.layout(workload, comm.size)
        layout = [shards[axis] for axis in axes]
        cut_along = [*dict.fromkeys(axes)] if workload.modulation == "per_token" else []
        self.condition_cuts: list[Shard | None] = [shards[axis] for axis in cut_along] or [None]
        """How the condition is cut: None, it is whole."""
        places = placements(layout)
        self.first, self.last = layout[0], layout[-1]
        self.pairs = {axis: shards[axis].along(1) for axis in workload.pairs}
        self.positions = LearnedPositions(workload, comm)
        shared = Shared(tables=RotaryTables(workload), pairs=self.pairs)
        count = modulated(workload)
        self.conditioning = Conditioning(workload, count) if count else None
        blocks: list[list[Residual]] = []
        indices = modulation_indices(workload)
        for (sublayer, is_first, _), place, i in zip(workload.places, places, indices, strict=True):
            norm = PlainNorm(workload) if i is None else self._modulated(i, place.shard)
            made = sublayers.make(sublayer, workload, strategy, comm, shared)
            blocks += [[]] if is_first else []
            blocks[-1].append(Residual(norm, made, place))
        self.blocks = nn.ModuleList(Block(block, comm) for block in blocks)
        self.norm = PlainNorm(workload)
        channels = workload.out_channels
        last = LinearSpec(
            in_shape=(workload.hidden,), out_shape=(channels,), stretches=(Stretch(channels),)
        )
        self.final = WholeLinear(last)

    def _modulated(self, index: int, shard: Shard) -> ModulatedNorm:
        cuts = self.condition_cuts
        which = cuts.index(shard) if shard in cuts else 0
        return ModulatedNorm(self.workload, index, shard, self.comm, which)

    def forward(self, inputs: Inputs) -> Tensor:
        """The output for this rank's part of the inputs."""
        given = inputs.conditions
        conditions = () if self.conditioning is None else tuple(map(self.conditioning, given))
        recompute = self.workload.checkpointing == "full" and inputs.x.requires_grad
        place = Placement.at_first(self.first)
        x = self.positions(inputs.x, self.first)
        # Nothing is random, so there is no state to keep.
        recomputed = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
        for block in self.blocks:
            assert isinstance(block, Block)
            x, place = switched(x, place, block.first, self.comm), block.last
            run = partial(recomputed, block) if recompute else block
            x = run(x, conditions, inputs)
        normed, *_ = self.norm(x, ())
        out: Tensor = self.final(normed, self.last)
        return out


def placements(layout: Sequence[Shard]) -> list[Placement]:
    """How the activation lies in each sublayer: at first with the sharded dim outermost.

    That dim stays outermost as long as each switch is from it or to it. A switch between two others
    makes the dim that becomes whole the outermost. Either costs one copy.
    """
    places = [Placement.at_first(layout[0])]
    for before, after in pairwise(layout):
        outermost = places[-1].outermost
        stays = before == after or outermost in (before.dim, after.dim)
        places.append(Placement(after, outermost if stays else before.dim))
    return places


def switched(x: Tensor, before: Placement, after: Placement, comm: Collectives) -> Tensor:
    """``x`` as ``after`` asks for it; itself where the shard stays."""
    if before.shard == after.shard:
        return x
    (x,) = comm.switch(x, before=before.shard, after=after.shard, outermost=after.outermost)
    return x
