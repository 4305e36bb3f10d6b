"""The transformer: a loop over blocks of sublayers, which knows neither ranks nor strategies.

    for sublayer, shard in zip(sublayers, layout):
        x = switch(x, to=shard)                  # only where the layout changes
        x = x + gate * sublayer(norm(x))         # linear_in -> attend -> linear_out

The activation comes sharded, as a patch embedding leaves it. The final projection runs on
whatever shard is current: 36 times fewer channels, still sharded. Under full checkpointing each
block is recomputed from its input; the switch into the block is not. Text that is attended goes
along as a second stream (``streams.py``).

Streams beside the axes go through the same blocks, each on a shard of its own: a strand is a model
by itself, and attention from one strand to another is a sublayer between them (``Crossing``).

A plan may have a switch go in chunks (``Plan.chunks``). Then the sublayer before it, if it takes
each position by itself, runs chunk by chunk, and each goes off while the next is computed.

Beside it, one attention and nothing else, as published attention-level figures have it: its input's
channels are q, k and v end to end, its output's are the heads' results.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from spbench.model.streams import StreamShards, alone, in_a_row, of_both, on_axes
from spbench.model.sublayers import (
    Attending,
    BetweenStrands,
    CrossAttentionModule,
    FeedForward,
    Heads,
    Shared,
    make,
    recomputed,
    sizes_of_heads,
)
from spbench.strategies.base import Plan
from spbench.workload.block import Attention, Mlp, StreamAttention, Sublayer
from spbench.workload.fields import OF_AXES
from spbench.workload.flops import modulated
from spbench.workload.mesh import ALL
from spbench.workload.sharding import Shard, Sizes, Stretch
from spbench.workload.stages import Stage
from spbench.workload.strands import between
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


class Flow(NamedTuple):
    """A strand on its way through the blocks."""

    x: Tensor
    text: Tensor | None
    conditions: Sequence[Tensor]
    """Projected, one for each way in which they come cut."""
    inputs: Inputs


Flows = dict[str, Flow]
"""By the strand's name."""


class Sides(NamedTuple):
    """The strands of an attention from one to another."""

    asking: str
    asked: str
    place: Placement
    """How the activation of the axes lies meanwhile."""
    dims: tuple[int, int]
    """The sharded dim of the one that asks, and of the one that is asked."""
    held: tuple[Shard, Shard]
    """Which tokens of each the ranks hold."""


def switch(flows: Flows, place: Placement) -> None:
    """Has the activation of the axes lie as ``place`` has it."""
    if place.switches:
        x, text, conditions, inputs = flows.pop(OF_AXES)
        x = switched(x, place)  # what was sent is let go
        flows[OF_AXES] = Flow(x, text, conditions, inputs)


@final
class Residual(nn.Module):
    """One sublayer with its norm and residual, on the shard that its layout asks for."""

    def __init__(
        self,
        norm: nn.Module,
        sublayer: nn.Module,
        place: Placement,
        text_norm: nn.Module | None = None,
        stream: tuple[str, Shard] | None = None,
    ) -> None:
        """One of a strand.

        Parameters
        ----------
        norm, sublayer : what runs, one after the other
        place : how the activation of the axes lies meanwhile
        text_norm : that of text, where the sublayer is one of both streams
        stream : the stream whose sublayer it is, and how that is cut; None: it is of the axes
        """
        super().__init__()
        self.norm, self.sublayer, self.place = norm, sublayer, place
        self.strand, self.shard = stream or (OF_AXES, place.shard)
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
        is_plain = self.text_norm is None and self.strand == OF_AXES
        return is_plain and isinstance(self.sublayer, (FeedForward, CrossAttentionModule))

    def run(self, flows: Flows) -> None:
        """Takes its strand a sublayer further."""
        x, text, conditions, inputs = flows.pop(self.strand)
        x, text = self(x, text, conditions, inputs)
        flows[self.strand] = Flow(x, text, conditions, inputs)

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
            return _sum(x, gate, self.sublayer(normed, inputs, self.shard)), text
        normed_text, text, text_gate = self.text_norm(text, conditions)
        out, text_out = self.sublayer(normed, normed_text, inputs)
        return _sum(x, gate, out), _sum(text, text_gate, text_out)


def _sum(x: Tensor, gate: Tensor | None, out: Tensor) -> Tensor:
    return x + out if gate is None else gated_sum(x, gate, out)


@final
class Crossing(nn.Module):
    """Attention from one strand to another, with the norms of both and the residual of the one
    that asks."""

    def __init__(
        self, norms: tuple[PlainNorm, PlainNorm], sublayer: BetweenStrands, sides: Sides
    ) -> None:
        """``norms``: of the strand that asks, and of the one that is asked."""
        super().__init__()
        self.norm, self.asked_norm = norms
        self.sublayer, self.sides = sublayer, sides
        self.place = sides.place

    def run(self, flows: Flows) -> None:
        """Takes the strand that asks a sublayer further."""
        x, text, conditions, inputs = flows.pop(self.sides.asking)
        x = self(x, flows[self.sides.asked].x)
        flows[self.sides.asking] = Flow(x, text, conditions, inputs)

    def forward(self, x: Tensor, asked: Tensor) -> Tensor:
        """(B, *axes, H) of each -> that of the one that asks."""
        normed, x, _ = self.norm(x, ())
        normed_asked, *_ = self.asked_norm(asked, ())
        dim, asked_dim = self.sides.dims
        rows = in_a_row(normed, dim), in_a_row(normed_asked, asked_dim)
        return x + on_axes(self.sublayer(*rows, *self.sides.held), x, dim)


Unit = Residual | Crossing


def let_switches_leave_in_chunks(plan: Plan, blocks: Sequence[Sequence[Unit]]) -> None:
    """Gives each switch to the sublayer before it, where a plan has it go in chunks and that
    sublayer takes each position by itself."""
    workload = plan.workload
    # A condition of each position would have to be cut as the chunks are.
    if plan.chunks == 1 or workload.modulation not in ("none", "per_sample"):
        return
    # A block that is recomputed would send once more what leaves at its end.
    stretches = blocks if workload.checkpointing == "full" else [[*chain.from_iterable(blocks)]]
    for residual, following in chain.from_iterable(map(pairwise, stretches)):
        can_leave = following.place.can_leave_in(plan.chunks)
        if isinstance(residual, Residual) and residual.is_by_position and can_leave:
            following.place = residual.leave_by(following.place, plan.chunks)


@final
class Block(nn.Module):
    """The sublayers of one block; the activation comes as the first asks for it."""

    def __init__(self, residuals: Sequence[Unit]) -> None:
        super().__init__()
        self.first = residuals[0].place
        self.residuals = nn.ModuleList(residuals)

    def forward(self, flows: Flows) -> Flows:
        flows = {**flows}
        for i, residual in enumerate(self.residuals):
            assert isinstance(residual, Unit)
            # The switch to the first sublayer is outside of the block: recomputed, it would be sent
            # twice.
            if i:
                switch(flows, residual.place)
            residual.run(flows)
        return flows


def condition_cuts(plan: Plan, axes: Sequence[str]) -> list[Shard | None]:
    """How a strand's condition is cut where these axes are sharded in turn: None, it is whole."""
    along = [*dict.fromkeys(axes)] if plan.workload.modulation == "per_token" else []
    return [plan.shards[axis] for axis in along] or [None]


@final
class Strand(nn.Module):
    """What the sublayers of one strand have in common."""

    def __init__(
        self,
        plan: Plan,
        comm: Collectives,
        is_first: bool,
        cuts: Sequence[Shard | None] | None = None,
    ) -> None:
        """``cuts``: how the condition comes, in each way of one; by default as the strand is."""
        super().__init__()
        self.workload, self.comm = plan.workload, comm
        self.shards = plan.shards
        self.condition_cuts = list(cuts or condition_cuts(plan, list(plan.workload.axes)))
        self.shared = Shared(plan, comm)
        self.positions = LearnedPositions(self.workload, comm) if is_first else None
        count = modulated(self.workload.strands[OF_AXES])
        self.conditioning = Conditioning(self.workload, count) if count else None
        if self.conditioning is not None:
            mark_of_all_stages(*self.conditioning.parameters())
        self._indices = iter(modulation_indices(self.workload.strands[OF_AXES]))

    def next_index(self, sublayer: Sublayer) -> int | None:
        """Which of the projected vectors modulates the strand's next sublayer; None: none does."""
        return None if isinstance(sublayer, StreamAttention) else next(self._indices)

    def norm(self, index: int | None, shard: Shard) -> PlainNorm | ModulatedNorm:
        if index is None:
            return PlainNorm(self.workload)
        cuts = self.condition_cuts
        # A condition for each token comes cut in every way that the layout has; any other comes
        # once.
        which = cuts.index(shard) if shard in cuts else 0
        return ModulatedNorm(self.workload, index, shard, self.comm, which)

    def residual(self, sublayer: Sublayer, index: int | None, place: Placement) -> Residual:
        """A sublayer of a stream, while the activation of the axes lies as ``place`` says."""
        ((name, shard),) = self.shards.items()
        made = make(sublayer, self.shared)
        return Residual(self.norm(index, shard), made, place, stream=(name, shard))


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
        self.condition_cuts = condition_cuts(plan, axes)
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
        strands = {OF_AXES: Strand(plan, comm, stage.is_first, self.condition_cuts)}
        strands |= {name: Strand(of, comm, True) for name, of in plan.of_streams.items()}
        of_axes = strands[OF_AXES]
        self.pairs, self.positions = of_axes.shared.pairs, of_axes.positions
        self.conditioning = of_axes.conditioning
        self.beside = nn.ModuleList(strands[name] for name in workload.streams)
        self.streams = {name: of.shards[name] for name, of in plan.of_streams.items()}
        """How the streams beside the axes are cut."""
        units = self._units(plan, strands, places, blocks)
        let_switches_leave_in_chunks(plan, list(units.values()))
        self.blocks = nn.ModuleDict({str(n): Block(each) for n, each in units.items()})
        self.norm = PlainNorm(workload) if stage.is_last else None
        channels = workload.out_channels
        last = LinearSpec(
            in_shape=(workload.hidden,), out_shape=(channels,), stretches=(Stretch(channels),)
        )
        self.final = WholeLinear(last, comm) if stage.is_last else None

    def _units(
        self, plan: Plan, strands: Mapping[str, Strand], places: Sequence[Placement], blocks: range
    ) -> dict[int, list[Unit]]:
        """The sublayers of each of these blocks, with norms and residuals; ``places``: how the
        activation of the axes lies in each of the stack."""
        workload, units = plan.workload, dict[int, list[Unit]]()
        # What each rank has of image and text together, by the sharded axis.
        joint = {axis: plan.held(axis) for axis in {*plan.layout}}
        number = -1
        for (sublayer, is_first, _), axis, place in zip(
            workload.places, plan.layout, places, strict=True
        ):
            number += is_first
            name = workload.strand_of(sublayer)
            strand = strands[name]
            unit: Unit
            index = strand.next_index(sublayer)
            if number not in blocks:
                continue
            if isinstance(sublayer, StreamAttention):
                unit = self._crossing(sublayer, plan, place, axis)
            elif name != OF_AXES:
                unit = strand.residual(workload.at_home(sublayer)[0], index, place)
            else:
                unit = self._of_axes(sublayer, strand, index, place, joint[axis])
            units.setdefault(number, []).append(unit)
        return units

    def _of_axes(
        self, sublayer: Sublayer, strand: Strand, index: int | None, place: Placement, held: Sizes
    ) -> Residual:
        """A sublayer of the axes, and of text; ``held``: what each rank has of both together."""
        norm, made = strand.norm(index, place.shard), make(sublayer, strand.shared)
        if not self.workload.text or not isinstance(sublayer, Attention | Mlp):
            return Residual(norm, made, place)
        of_text, text_norm = made, norm
        if sublayer.double:
            of_text, text_norm = make(sublayer, strand.shared), strand.norm(index, self.text)
        cut = Shard.of_sizes(1, held)
        cuts = StreamShards(image=place.shard, text=self.text, joint=cut)
        return Residual(norm, of_both(made, of_text, cuts), place, text_norm)

    @property
    def units(self) -> list[nn.Module]:
        """What is compiled by itself: each sublayer with its norm and residual. The switch to its
        axis lies before it."""
        return [module for module in self.modules() if isinstance(module, Unit)]

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

    def _enter(self, inputs: Inputs, strand: "Strand | Transformer", shard: Shard) -> Flow:
        """A strand before the first block, with its conditions projected."""
        projects, given = strand.conditioning, inputs.conditions
        conditions = () if projects is None else tuple(map(projects, given))
        x = inputs.x if strand.positions is None else strand.positions(inputs.x, shard)
        return Flow(x, inputs.text, conditions, inputs)

    def _crossing(
        self, sublayer: StreamAttention, plan: Plan, place: Placement, axis: str
    ) -> Crossing:
        one = between(sublayer, plan.workload)
        names = plan.workload.strand_of(sublayer), one.asked_name
        shards = {OF_AXES: place.shard} | {n: p.shards[n] for n, p in plan.of_streams.items()}
        dim, asked_dim = (shards[name].dim for name in names)
        queries, keys = (plan.held_tokens(name, axis) for name in names)
        sides = Sides(*names, place, (dim, asked_dim), (queries, keys))
        norms = PlainNorm(one.asking), PlainNorm(one.asked)
        return Crossing(norms, BetweenStrands(sublayer, plan, self.comm), sides)

    def forward(self, inputs: Inputs) -> Tensor | Inputs:
        """The output for this rank's part of the inputs; before the last stage what the next one
        is given."""
        recompute = self.workload.recomputes and inputs.x.requires_grad
        flows = {OF_AXES: self._enter(inputs, self, self.first)}
        for name, strand in zip(self.streams, self.beside, strict=True):
            assert isinstance(strand, Strand)
            flows[name] = self._enter(inputs.streams[name], strand, self.streams[name])
        for block in self.blocks.values():
            assert isinstance(block, Block)
            switch(flows, block.first)
            run = recomputed(block) if recompute else block
            flows = run(flows)
        x, text, *_ = flows.pop(OF_AXES)
        if self.norm is None or self.final is None:
            return replace(inputs, x=x, text=text)
        # The last norm is a plain one: there is no condition for it.
        others = [flow.x for flow in flows.values()]
        others += [] if text is None else [text]
        normed, *_ = self.norm(alone(x, *others), ())
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
