"""The transformer: a loop over blocks of sublayers, which knows neither ranks nor strategies.

    for sublayer, shard in zip(sublayers, layout):
        x = switch(x, to=shard)                  # only where the layout changes
        x = x + gate * sublayer(norm(x))         # linear_in -> attend -> linear_out

The activation comes sharded, as a patch embedding leaves it. The final projection runs on
whatever shard is current: 36 times fewer channels, still sharded. Under full checkpointing each
block is recomputed from its input; the switch into the block is not. Text that is attended goes
along as a second stream (``streams.py``).

A plan may have a switch go in chunks (``Plan.chunks``). Then the sublayer before it, if it takes
each position by itself, runs chunk by chunk, and each goes off while the next is computed.

Beside it, one attention and nothing else, as published attention-level figures have it: its input's
channels are q, k and v end to end, its output's are the heads' results.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate, chain, pairwise
from typing import NamedTuple, final

from torch import Tensor, nn

from spbench.comm.collectives import Collectives
from spbench.comm.started_switches import can_be_in_chunks
from spbench.layers.linear import LinearSpec, WholeLinear, mark_of_all_stages
from spbench.layers.memory_order import heads_in_memory_order
from spbench.model.inputs import Inputs
from spbench.model.modulation import (
    Conditioning,
    ModulatedNorm,
    PlainNorm,
    gated_sum,
    modulation_indices,
)
from spbench.model.positions import LearnedPositions
from spbench.model.streams import StreamShards, of_both, without_text
from spbench.model.sublayers import (
    Attending,
    CrossAttentionModule,
    FeedForward,
    Heads,
    Shared,
    make,
    recomputed,
    sizes_of_heads,
)
from spbench.strategies.base import Plan
from spbench.workload.block import Attention, CrossAttention
from spbench.workload.flops import modulated
from spbench.workload.mesh import ALL
from spbench.workload.sharding import Shard, Stretch
from spbench.workload.stages import Stage
from spbench.workload.traffic import Hop


class Switch(NamedTuple):
    """One all-to-all over a group of ranks: a dim becomes whole, another one is cut."""

    comm: Collectives
    before: Shard
    after: Shard
    outermost: int
    """The dim of the two that is outermost in the message."""


class Placement(NamedTuple):
    """How an activation lies on the ranks in a sublayer, and how it comes to lie so."""

    shard: Shard
    switches: tuple[Switch, ...]

    def can_leave_in(self, chunks: int) -> bool:
        """Whether the way to it is one switch that can go in so many chunks."""
        return len(self.switches) == 1 and can_be_in_chunks(*self.switches[0][1:], chunks)


def hops_along(plan: Plan) -> Iterator[Sequence[Hop]]:
    """The all-to-alls to the shard of each sublayer from that of the one before it."""
    between = cache(plan.hops)  # a stack repeats a few switches
    # The axis of the first sublayer also stands before it: the activation comes so.
    for before, after in pairwise((plan.layout[0], *plan.layout)):
        hops = between(before, after)
        assert hops is not None, "a layout switches only where there is a way"
        yield hops


def placements(
    layout: Sequence[Shard], hops: Iterable[Sequence[Hop]], comm: Collectives
) -> list[Placement]:
    """How the activation lies in each sublayer: at first with the sharded dim outermost in memory.

    That dim stays outermost as long as each switch is from it or to it. A switch between two others
    makes the dim that becomes whole the outermost. Either costs one copy.
    """
    places, outermost = [], layout[0].dim
    for shard, hops_to_it in zip(layout, hops, strict=True):
        switches = []
        for hop in hops_to_it:
            # From axis 2 to axis 3, with axis 1 outermost: axis 2, which becomes whole, is it now.
            if outermost not in (hop.before.dim, hop.after.dim):
                outermost = hop.before.dim
            if hop.over == ALL:
                switches.append(Switch(comm, hop.before, hop.after, outermost))
                continue
            # The all-to-all goes within this rank's group: the cut among its members alone.
            members = comm.mesh.members(comm.rank, hop.over)
            before, after = (cut.among(members) for cut in (hop.before, hop.after))
            switches.append(Switch(comm.along(hop.over), before, after, outermost))
        places.append(Placement(shard, tuple(switches)))
    return places


def switched(x: Tensor, place: Placement) -> Tensor:
    """``x`` as ``place`` has it; itself where the shard stays."""
    for comm, before, after, outermost in place.switches:
        (x,) = comm.switch(x, before=before, after=after, outermost=outermost)
    return x


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
        self.leaving: Switch | None = None
        """A switch behind it, in so many ``chunks``."""
        self.chunks = 1

    def leave_by(self, place: Placement, chunks: int) -> Placement:
        """Takes over the switch to ``place``, to which nothing leads then."""
        (self.leaving,), self.chunks = place.switches, chunks
        return place._replace(switches=())

    @property
    def is_by_position(self) -> bool:
        """Whether each position is computed from itself alone."""
        return self.text_norm is None and isinstance(
            self.sublayer, (FeedForward, CrossAttentionModule)
        )

    def forward(
        self, x: Tensor, text: Tensor | None, conditions: Sequence[Tensor], inputs: Inputs
    ) -> tuple[Tensor, Tensor | None]:
        if self.leaving is None:
            return self.whole(x, text, conditions, inputs)
        comm, before, after, outermost = self.leaving
        switch = comm.switch_in_chunks(before, after, outermost, self.chunks)
        for part in switch.parts(x):
            done, _ = self.whole(part, None, conditions, inputs)
            switch.leave(done)
        return switch.arrived(), text

    def whole(
        self, x: Tensor, text: Tensor | None, conditions: Sequence[Tensor], inputs: Inputs
    ) -> tuple[Tensor, Tensor | None]:
        """All of ``x``, on the shard that it comes with."""
        normed, x, gate = self.norm(x, conditions)
        if self.text_norm is None:
            return _sum(x, gate, self.sublayer(normed, inputs, self.place.shard)), text
        normed_text, text, text_gate = self.text_norm(text, conditions)
        out, text_out = self.sublayer(normed, normed_text, inputs)
        return _sum(x, gate, out), _sum(text, text_gate, text_out)


def _sum(x: Tensor, gate: Tensor | None, out: Tensor) -> Tensor:
    return x + out if gate is None else gated_sum(x, gate, out)


def let_switches_leave_in_chunks(plan: Plan, blocks: Sequence[Sequence[Residual]]) -> None:
    """Gives each switch to the sublayer before it, where a plan has it go in chunks and that
    sublayer takes each position by itself."""
    workload = plan.workload
    # A condition of each position would have to be cut as the chunks are.
    if plan.chunks == 1 or workload.modulation not in ("none", "per_sample"):
        return
    # A block that is recomputed would send once more what leaves at its end.
    stretches = blocks if workload.checkpointing == "full" else [[*chain.from_iterable(blocks)]]
    for residual, following in chain.from_iterable(map(pairwise, stretches)):
        if residual.is_by_position and following.place.can_leave_in(plan.chunks):
            following.place = residual.leave_by(following.place, plan.chunks)


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
            # The switch to the first sublayer is outside of the block: recomputed, it would be sent
            # twice.
            x = switched(x, residual.place) if i else x
            x, text = residual(x, text, conditions, inputs)
        return x, text


@final
class Transformer(nn.Module):
    """(B, *axes, H), sharded as for the first sublayer -> (B, *axes, C), as for the last.

    Of a stage of a pipeline: some of its blocks, with what comes before the first and behind the
    last. It is given what the stage before gives, and all but the last give what they are given.
    """

    def __init__(self, plan: Plan, comm: Collectives, stage: Stage) -> None:
        """``stage``: what it has of the whole model."""
        super().__init__()
        workload = plan.workload
        self.workload, self.comm = workload, comm
        comm.deferred.saves_first = workload.checkpointing == "full"
        shards, axes = plan.shards, plan.layout
        layout = [shards[axis] for axis in axes]
        cut_along = [*dict.fromkeys(axes)] if workload.modulation == "per_token" else []
        self.condition_cuts: list[Shard | None] = [shards[axis] for axis in cut_along] or [None]
        """How the condition is cut: None, it is whole."""
        places = placements(layout, hops_along(plan), comm)
        numbers = [*accumulate(is_first for _, is_first, _ in workload.places)]
        blocks = stage.blocks

        def behind(count: int) -> Shard:
            """How the activation is cut behind so many blocks."""
            return layout[max(0, bisect_right(numbers, count) - 1)]

        self.first, self.last = behind(blocks.start), behind(blocks.stop)
        """How the input and the output are cut."""
        self.text = plan.text
        """How text is cut."""
        shared = Shared(plan, comm)
        self.pairs = shared.pairs
        self.positions = LearnedPositions(workload, comm) if stage.is_first else None
        count = modulated(workload)
        self.conditioning = Conditioning(workload, count) if count else None
        if self.conditioning is not None:
            mark_of_all_stages(*self.conditioning.parameters())
        residuals: dict[int, list[Residual]] = {}
        indices = modulation_indices(workload)
        # What each rank has of image and text together, by the sharded axis.
        joint = {axis: plan.held(axis) for axis in {*axes}}
        stack = zip(numbers, workload.places, axes, places, indices, strict=True)
        for number, (sublayer, *_), axis, place, i in stack:
            if number - 1 not in blocks:
                continue
            norm, made = self._norm(i, place.shard), make(sublayer, shared)
            text_norm: nn.Module | None = None
            if workload.text and not isinstance(sublayer, CrossAttention):
                of_text, text_norm = made, norm
                if sublayer.double:
                    of_text, text_norm = make(sublayer, shared), self._norm(i, self.text)
                cut = Shard.of_sizes(1, joint[axis])
                cuts = StreamShards(image=place.shard, text=self.text, joint=cut)
                made = of_both(made, of_text, cuts)
            residuals.setdefault(number - 1, []).append(Residual(norm, made, place, text_norm))
        let_switches_leave_in_chunks(plan, list(residuals.values()))
        self.blocks = nn.ModuleDict({str(n): Block(each) for n, each in residuals.items()})
        self.norm = PlainNorm(workload) if stage.is_last else None
        channels = workload.out_channels
        last = LinearSpec(
            in_shape=(workload.hidden,), out_shape=(channels,), stretches=(Stretch(channels),)
        )
        self.final = WholeLinear(last, comm) if stage.is_last else None

    @property
    def units(self) -> list[nn.Module]:
        """What is compiled by itself: each sublayer with its norm and residual. The switch to its
        axis lies before it."""
        return [module for module in self.modules() if isinstance(module, Residual)]

    def passed(self, cut: Shard) -> list[tuple[list[int], Shard]]:
        """What goes from stage to stage, in the order of ``Inputs.leaves``: what this rank holds of
        each, and how it is cut. ``cut``: how the activation is."""
        work, rank = self.workload, self.comm.rank
        wholes = [([*work.axes.values(), work.hidden], cut)]
        wholes += [([work.text, work.hidden], self.text)] * (work.text > 0)
        for axis, of_pair in self.pairs.items():
            wholes.append(([work.axes[axis], work.axes[axis], work.pairs[axis]], of_pair))
        found = []
        for whole, own in wholes:
            shape = [work.samples, *whole]
            for of_dim in own.cuts:
                shape[of_dim.dim] = of_dim.sizes[rank]
            found.append((shape, own))
        return found

    def _norm(self, index: int | None, shard: Shard) -> PlainNorm | ModulatedNorm:
        if index is None:
            return PlainNorm(self.workload)
        cuts = self.condition_cuts
        # A condition for each token comes cut in every way that the layout has; any other comes
        # once.
        which = cuts.index(shard) if shard in cuts else 0
        return ModulatedNorm(self.workload, index, shard, self.comm, which)

    def forward(self, inputs: Inputs) -> Tensor | Inputs:
        """The output for this rank's part of the inputs; before the last stage what the next one
        is given."""
        given = inputs.conditions
        conditions = () if self.conditioning is None else tuple(map(self.conditioning, given))
        recompute = self.workload.recomputes and inputs.x.requires_grad
        x, text = inputs.x, inputs.text
        if self.positions is not None:
            x = self.positions(x, self.first)
        for block in self.blocks.values():
            assert isinstance(block, Block)
            x = switched(x, block.first)
            run = recomputed(block) if recompute else block
            x, text = run(x, text, conditions, inputs)
        if self.norm is None or self.final is None:
            return replace(inputs, x=x, text=text)
        # The last norm is a plain one: there is no condition for it.
        normed, *_ = self.norm(without_text(x, text), ())
        return self.final(normed, self.last)


@final
class AttentionAlone(Attending):
    """Attention of q, k and v that are the channels of its input."""

    def __init__(self, attention: Attention, shared: Shared) -> None:
        super().__init__(attention, shared)
        self.widths, self.sizes = shared.workload.qkv_widths, sizes_of_heads(shared.workload)

    def into(self, x: Tensor, shard: Shard) -> tuple[Heads, None]:
        q, k, v = heads_in_memory_order(x, self.widths, self.sizes)
        return (q, k, v), None

    def out_of(self, attended: Tensor, beside: None, shard: Shard) -> Tensor:
        return attended.flatten(-2)


@final
class AttentionModel(nn.Module):
    """(B, *axes, Z D + Zkv D + Zkv Dv) -> (B, *axes, Z Dv), both sharded as the strategy has it."""

    def __init__(self, plan: Plan, comm: Collectives) -> None:
        super().__init__()
        (attention,), (axis,) = plan.workload.attentions, plan.layout
        shared = Shared(plan, comm)
        self.first = self.last = plan.shards[axis]
        self.text = plan.text
        self.pairs = shared.pairs
        self.condition_cuts: list[Shard | None] = [None]
        self.attention = AttentionAlone(attention, shared)

    @property
    def units(self) -> list[nn.Module]:
        """What is compiled by itself."""
        return [self.attention]

    def forward(self, inputs: Inputs) -> Tensor:
        return self.attention(inputs.x, inputs, self.first)


def model_of(
    plan: Plan, comm: Collectives, stage: Stage | None = None
) -> Transformer | AttentionModel:
    """What a workload describes: a transformer, or a stage of one, or one attention."""
    if plan.workload.is_attention_alone:
        return AttentionModel(plan, comm)
    return Transformer(plan, comm, stage or Stage.whole(plan.workload))
