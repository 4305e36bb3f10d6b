"""The transformer: one loop over sublayers, which knows neither ranks nor strategies.

    for sublayer, shard in zip(sublayers, layout):
        x = switch(x, to=shard)                  # only where the layout changes
        x = x + gate * sublayer(norm(x))         # linear_in -> attend -> linear_out

The activation comes sharded, as a patch embedding leaves it. The final projection runs on
whatever shard is current: 36 times fewer channels, still sharded. Under checkpointing each
block is recomputed from its input; the switch into the block is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from spbench.comm.collectives import Collectives
from spbench.layers.linear import LinearSpec, WholeLinear
from spbench.model import sublayers
from spbench.model.inputs import Inputs
from spbench.model.modulation import Conditioning, ModulatedNorm, PlainNorm
from spbench.model.positions import LearnedPositions, RotaryTables
from spbench.strategies.base import Strategy
from spbench.workload.flops import is_modulated
from spbench.workload.sharding import Shard
from spbench.workload.workload import Workload


@final
class Residual(nn.Module):
    """One sublayer with its norm and residual, on the shard that its layout asks for."""

    def __init__(self, norm: nn.Module, sublayer: nn.Module, shard: Shard) -> None:
        super().__init__()
        self.norm, self.sublayer, self.shard = norm, sublayer, shard

    def forward(self, x: Tensor, condition: Tensor | None, inputs: Inputs) -> Tensor:
        normed, gate = self.norm(x, condition)
        out: Tensor = self.sublayer(normed, inputs, self.shard)
        return x + out if gate is None else x.addcmul(gate, out)


@final
class Transformer(nn.Module):
    """(B, *axes, H), sharded as for the first sublayer -> (B, *axes, C), as for the last."""

    def __init__(self, workload: Workload, strategy: Strategy, comm: Collectives) -> None:
        super().__init__()
        self.workload, self.comm = workload, comm
        shards = {axis: strategy.shard(workload, axis, comm.size) for axis in workload.axes}
        layout = [shards[axis] for axis in strategy.layout(workload, comm.size)]
        self.first, self.last = layout[0], layout[-1]
        self.pairs = {axis: shards[axis].along(1) for axis in workload.pairs}
        self.positions = LearnedPositions(workload, comm)
        shared = sublayers.Shared(tables=RotaryTables(workload), pairs=self.pairs)
        modulated = [is_modulated(sublayer, workload) for sublayer in workload.block]
        self.conditioning = Conditioning(workload, sum(modulated)) if any(modulated) else None
        self.residuals = nn.ModuleList()
        for i, (sublayer, shard) in enumerate(zip(workload.stack, layout, strict=True)):
            place = i % len(workload.block)
            norm = (
                ModulatedNorm(workload, sum(modulated[:place]))
                if modulated[place]
                else PlainNorm(workload)
            )
            made = sublayers.make(sublayer, workload, strategy, comm, shared)
            self.residuals.append(Residual(norm, made, shard))
        self.norm = PlainNorm(workload)
        self.final = WholeLinear(
            LinearSpec(
                in_shape=(workload.hidden,),
                out_shape=(workload.out_channels,),
                cut=0,
                units=workload.out_channels,
            )
        )

    def forward(self, inputs: Inputs) -> Tensor:
        """The output for this rank's part of the inputs."""
        projected = None if self.conditioning is None else self.conditioning(inputs.condition)
        recompute = self.workload.checkpointing == "full" and inputs.x.requires_grad
        shard = self.first
        x = self.positions(inputs.x, shard)
        length = len(self.workload.block)
        residuals = [module for module in self.residuals if isinstance(module, Residual)]
        for block in (residuals[i : i + length] for i in range(0, len(residuals), length)):
            x = self._switch(x, shard, block[0].shard)
            if recompute:
                x = checkpoint(
                    self._block,
                    x,
                    projected,
                    inputs,
                    block,
                    use_reentrant=False,
                    preserve_rng_state=False,  # nothing is random
                )
            else:
                x = self._block(x, projected, inputs, block)
            shard = block[-1].shard
        normed, _ = self.norm(x, None)
        out: Tensor = self.final(normed, self.last)
        return out

    def _block(
        self, x: Tensor, projected: Tensor | None, inputs: Inputs, block: Sequence[Residual]
    ) -> Tensor:
        shard = block[0].shard
        for residual in block:
            x = self._switch(x, shard, residual.shard)
            shard = residual.shard
            x = residual(x, self._condition(projected, shard), inputs)
        return x

    def _condition(self, projected: Tensor | None, shard: Shard) -> Tensor | None:
        if projected is None or self.conditioning is None:
            return None
        return self.conditioning.on_shard(projected, shard, self.comm)

    def _switch(self, x: Tensor, before: Shard, after: Shard) -> Tensor:
        if before == after:
            return x
        (x,) = self.comm.switch(x, before=before, after=after)
        return x
