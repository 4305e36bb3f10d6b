"""The transformer: a loop over blocks of sublayers, which knows neither ranks nor strategies.

    for sublayer, shard in zip(sublayers, layout):
        x = switch(x, to=shard)                  # only where the layout changes
        x = x + gate * sublayer(norm(x))         # linear_in -> attend -> linear_out

The activation comes sharded, as a patch embedding leaves it. The final projection runs on
whatever shard is current: 36 times fewer channels, still sharded. Under checkpointing each
block is recomputed from its input; the switch into the block is not. Text that is attended goes
along as a second stream (``streams.py``).
"""

from collections.abc import Sequence
from functools import partial
from typing import final

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from spbench.comm.collectives import Collectives
from spbench.layers.linear import LinearSpec, Stretch, WholeLinear
from spbench.model.adaln import gated_sum
from spbench.model.inputs import Inputs
from spbench.model.modulation import Conditioning, ModulatedNorm, PlainNorm, modulation_indices
from spbench.model.placements import Placement, hops_along, placements, switched
from spbench.model.positions import LearnedPositions
from spbench.model.self_attention import Shared
from spbench.model.streams import StreamShards, of_both, without_text
from spbench.model.sublayers import make
from spbench.strategies.base import Plan
from spbench.workload.block import CrossAttention
from spbench.workload.flops import modulated
from spbench.workload.sharding import Shard


@final
class Residual(nn.Module):
    """One sublayer with its norm and residual, on the shard that its layout asks for."""

    def __init__(
        self,
        norm: nn.Module,
        sublayer: nn.Module,
        place: Placement,
        text_norm: nn.Module | None = None,
    ) -> None:
        """``text_norm``: that of text, where the sublayer is one of both streams."""
        super().__init__()
        self.norm, self.sublayer, self.place = norm, sublayer, place
        self.text_norm = text_norm

    def forward(
        self, x: Tensor, text: Tensor | None, conditions: Sequence[Tensor], inputs: Inputs
    ) -> tuple[Tensor, Tensor | None]:
        normed, x, gate = self.norm(x, conditions)
        if self.text_norm is None:
            return _sum(x, gate, self.sublayer(normed, inputs, self.place.shard)), text
        normed_text, text, text_gate = self.text_norm(text, conditions)
        out, text_out = self.sublayer(normed, normed_text, inputs)
        return _sum(x, gate, out), _sum(text, text_gate, text_out)


def _sum(x: Tensor, gate: Tensor | None, out: Tensor) -> Tensor:
    return x + out if gate is None else gated_sum(x, gate, out)


@final
class Block(nn.Module):
    """The sublayers of one block; the activation comes as the first asks for it."""

    def __init__(self, residuals: Sequence[Residual]) -> None:
        super().__init__()
        self.first = residuals[0].place
        self.residuals = nn.ModuleList(residuals)

    def forward(
        self, x: Tensor, text: Tensor | None, conditions: Sequence[Tensor], inputs: Inputs
    ) -> tuple[Tensor, Tensor | None]:
        for i, residual in enumerate(self.residuals):
            assert isinstance(residual, Residual)
            x = switched(x, residual.place) if i else x
            x, text = residual(x, text, conditions, inputs)
        return x, text


@final
class Transformer(nn.Module):
    """(B, *axes, H), sharded as for the first sublayer -> (B, *axes, C), as for the last."""

    def __init__(self, plan: Plan, comm: Collectives) -> None:
        super().__init__()
        workload = plan.workload
        self.workload, self.comm = workload, comm
        shards, axes = plan.shards, plan.layout
        layout = [shards[axis] for axis in axes]
        cut_along = [*dict.fromkeys(axes)] if workload.modulation == "per_token" else []
        self.condition_cuts: list[Shard | None] = [shards[axis] for axis in cut_along] or [None]
        """How the condition is cut: None, it is whole."""
        places = placements(layout, hops_along(plan), comm)
        self.first, self.last = layout[0], layout[-1]
        """How the input and the output are cut."""
        self.text = plan.text
        """How text is cut."""
        shared = Shared(plan, comm)
        self.pairs = shared.pairs
        self.positions = LearnedPositions(workload, comm)
        count = modulated(workload)
        self.conditioning = Conditioning(workload, count) if count else None
        blocks: list[list[Residual]] = []
        indices = modulation_indices(workload)
        joint = {axis: plan.held(axis) for axis in {*axes}}
        each = zip(workload.places, axes, places, indices, strict=True)
        for (sublayer, is_first, _), axis, place, i in each:
            norm, made = self._norm(i, place.shard), make(sublayer, shared)
            text_norm: nn.Module | None = None
            if workload.text and not isinstance(sublayer, CrossAttention):
                of_text, text_norm = made, norm
                if sublayer.double:
                    of_text, text_norm = make(sublayer, shared), self._norm(i, self.text)
                cut = Shard.of_sizes(1, joint[axis])
                cuts = StreamShards(image=place.shard, text=self.text, joint=cut)
                made = of_both(made, of_text, cuts)
            blocks += [[]] if is_first else []
            blocks[-1].append(Residual(norm, made, place, text_norm))
        self.blocks = nn.ModuleList(Block(block) for block in blocks)
        self.norm = PlainNorm(workload)
        channels = workload.out_channels
        last = LinearSpec(
            in_shape=(workload.hidden,), out_shape=(channels,), stretches=(Stretch(channels),)
        )
        self.final = WholeLinear(last)

    def _norm(self, index: int | None, shard: Shard) -> PlainNorm | ModulatedNorm:
        if index is None:
            return PlainNorm(self.workload)
        cuts = self.condition_cuts
        which = cuts.index(shard) if shard in cuts else 0
        return ModulatedNorm(self.workload, index, shard, self.comm, which)

    def forward(self, inputs: Inputs) -> Tensor:
        """The output for this rank's part of the inputs."""
        given = inputs.conditions
        conditions = () if self.conditioning is None else tuple(map(self.conditioning, given))
        recompute = self.workload.checkpointing == "full" and inputs.x.requires_grad
        x, text = self.positions(inputs.x, self.first), inputs.text
        # Nothing is random, so there is no state to keep.
        recomputed = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
        for block in self.blocks:
            assert isinstance(block, Block)
            x = switched(x, block.first)
            run = partial(recomputed, block) if recompute else block
            x, text = run(x, text, conditions, inputs)
        normed, *_ = self.norm(without_text(x, text), ())
        return self.final(normed, self.last)
