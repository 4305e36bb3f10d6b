"""A workload and a picture of one block of it, as lines of text: for a terminal or a README.

A picture has a lane for each strategy, in which every sublayer has a column and every axis a row.
The line runs in the row of the sharded axis, if there is one. Where a sublayer attends along an
axis, its row is shaded: a strategy that shards it there must communicate. DSP's line hops away.

    time    ━━━━━━━━━┓                      ░░░░░░░░           ┏━
    space   ░░░░░░░░ ┗━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┛
                switch 12.2                           switch 11.4

Axes that are only attended jointly are one row. Text tokens that are attended have a row too, and
so has each stream beside the axes: they are cut under every sublayer. Lanes are plain data: no
strategy is loaded.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, groupby, permutations
from operator import mul
from typing import Any

from rich.text import Span, Text

from spbench.report import units
from spbench.report.fit_width import folded, has_room, packed
from spbench.report.tables import console
from spbench.text import counted
from spbench.workload.block import AXES, Attention, CrossAttention, Mlp, StreamAttention, Sublayer
from spbench.workload.documents import in_words
from spbench.workload.flops import parameters
from spbench.workload.predicted import Lane
from spbench.workload.workload import Workload

MOST_BLOCKS = 2
NARROWEST, WIDEST = 11, 25
"""Columns of a sublayer; 'all-to-all' and a space fit."""
LABEL = 21
"""Columns of an axis's name, as of 'time x height x width'; longer names are cut."""
COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Sublayers that stand side by side, each ``cell`` wide, from column ``margin`` on."""

    sublayers: range
    margin: int
    cell: int
    width: int
    """Columns of the page, which sentences may fill."""

    def at(self, sublayer: int) -> int:
        """The column where a sublayer's words begin; the line may hop two columns before it."""
        return self.margin + (sublayer - self.sublayers.start) * self.cell


@dataclass(frozen=True, kw_only=True)
class Picture:
    """The first blocks of each stack of ``workload``: a period, or its beginning if it is long."""

    workload: Workload
    ranks: int
    lanes: Sequence[Lane]

    @property
    def periods(self) -> list[int]:
        """Blocks of each stack after which every lane repeats."""
        each = [lane.periods for lane in self.lanes if lane.legs]
        return [max(lanes) for lanes in zip(*each, strict=True)] or [1] * len(self.workload.parts)

    @cached_property
    def drawn(self) -> list[range]:
        """The sublayers that are drawn of each stack, as their places among all."""
        lengths = [len(part.block) for part in self.workload.parts]
        depths = [part.depth for part in self.workload.parts]
        starts = accumulate(map(mul, lengths, depths), initial=0)
        return [
            range(start, start + min(MOST_BLOCKS, period) * length)
            for start, length, period in zip(starts, lengths, self.periods, strict=False)
        ]

    @cached_property
    def stack(self) -> tuple[Sublayer, ...]:
        """All sublayers of the model."""
        return self.workload.stack

    @cached_property
    def unit(self) -> str:
        """The unit of bytes throughout the picture, so that figures can be compared."""
        legs = [leg for lane in self.lanes for leg in lane.legs]
        sent = [leg.sent_bytes for leg in legs]
        sent += [leg.switch.sent_bytes for leg in legs if leg.switch]
        return units.size_unit(float(min(filter(None, sent), default=2**20)))

    def figure(self, sent_bytes: Fraction | float) -> str:
        return units.size_in(self.unit, float(sent_bytes))

    def totals(self, lane: Lane) -> str:
        """The bytes of a block and of a step, as wide as those of other lanes."""
        lanes = [lane, *(other for other in self.lanes if other.legs)]
        blocks = [self.figure(each.block_bytes) for each in lanes]
        steps = [self.figure(sum(each.step_bytes.values())) for each in lanes]
        block, step = (column[0].rjust(max(map(len, column))) for column in (blocks, steps))
        return f"{block} {self.unit}/block   {step} {self.unit}/step"

    def colour(self, axis: str) -> str:
        names = [*self.workload.axes, *self.workload.streams]
        return COLOURS[names.index(axis) % len(COLOURS)]

    def frames(self, width: int) -> list[Frame]:
        """For each stack the fewest frames of at most ``width`` columns, as equal as can be."""
        return [frame for every in self.drawn for frame in self._frames(every, width)]

    def _frames(self, every: range, width: int) -> list[Frame]:
        drawn = [axis for lane in self.lanes for axis in lane.axes] or [*self.workload.axes]
        drawn += self.workload.streams
        margin = 5 + min(LABEL, max(map(len, drawn)))
        fit = max(1, (width - margin) // NARROWEST)
        size = -(-len(every) // -(-len(every) // fit))
        cell = min(WIDEST, (width - margin) // size)
        parts = [every[first : first + size] for first in range(0, len(every), size)]
        return [Frame(sublayers=part, margin=margin, cell=cell, width=width) for part in parts]

    def as_data(self) -> dict[str, Any]:
        """The picture for ``--json``; bytes are Fractions still, to be rounded.

        The bytes of a strategy that declines are not known: None.
        """
        facts = self.workload.model_dump(mode="json", by_alias=True)
        parts = [part.model_dump(mode="json", by_alias=True) for part in self.workload.parts]
        sublayers = [each for part in parts for each in part["block"]]
        facts |= {"stacks": parts, "depth": self.workload.blocks}
        del facts["block"]
        facts["tokens"] = self.workload.tokens
        facts["parameters"] = parameters(self.workload).total
        facts["activation_bytes"] = self.workload.activation_bytes
        blank = {"block_bytes": None, "step_bytes": None}
        lanes = [
            asdict(lane)
            | {"legs": [asdict(lane.legs[i]) for every in self.drawn for i in every if lane.legs]}
            | ({} if lane.why_not is None else blank)
            for lane in self.lanes
        ]
        return {"workload": facts, "ranks": self.ranks, "sublayers": sublayers, "lanes": lanes}


GAP = 3
"""Spaces between the transfers of neighbours, which would else read as one list."""
EDGES = "edges"
PLURALS = {
    "all_to_all": "all-to-alls",
    "all_gather": "gathers",
    "reduce_scatter": "scatters",
    "all_reduce": "all-reduces",
    "p2p": "rings",
    EDGES: "edges",
}


def lane_lines(picture: Picture, lane: Lane, frame: Frame) -> Iterator[Text]:
    """The part of the lane in the frame; totals and remarks in the last frame."""
    is_last = frame.sublayers.stop == picture.drawn[-1].stop
    if lane.why_not is not None:
        if is_last:
            yield from (Text(), Text(lane.strategy, "bold"))
            yield from folded(f"declines: {lane.why_not}", frame.width)
        return
    yield Text()
    name = lane.strategy.ljust(max(len(other.strategy) for other in picture.lanes))
    totals = picture.totals(lane) if is_last else ""
    if len(name) + 3 + len(totals) <= frame.width:
        yield Text(f"{name}   {totals}".rstrip(), spans=[Span(0, len(lane.strategy), "bold")])
    else:
        yield Text(lane.strategy, "bold")
        yield from folded(totals, frame.width)
    for axis in lane.axes:
        yield _row(picture, lane, axis, frame)
    if picture.workload.text:
        yield _whole_row("text", [bool(x.attended) for x in picture.stack], lane, frame)
    for name in picture.workload.streams:
        attended = [_asks(sublayer, name, ()) for sublayer in picture.stack]
        row = _whole_row(name, attended, lane, frame)
        row.stylize(picture.colour(name))
        yield row
    yield from _switches(picture, lane, frame)
    yield from _transfers(picture, lane, frame)
    if is_last:
        if lane.saves_last_switch and frame.sublayers.stop < len(lane.legs):
            yield from folded("the last switch of the stack is left out", frame.width)
        for line in lane.holds:
            yield Text(f"  {line}")
        yield from folded(lane.note, frame.width)


def _row(picture: Picture, lane: Lane, axis: str, frame: Frame) -> Text:
    order, of_model = list(lane.axes), {*lane.axes[axis]}
    row, label = order.index(axis), axis if len(axis) <= LABEL else f"{axis[: LABEL - 1]}…"
    rows = [_rows_of(leg.axis, order) for leg in lane.legs[: frame.sublayers.stop + 1]]
    comes = frame.sublayers.start > 0 and row in rows[frame.sublayers.start - 1]
    line = f"  {label}".ljust(frame.margin - 1) + ("━" if comes else " ")
    for i in frame.sublayers:
        empty = "━" if row in rows[i] else " "
        shade = "▓" if row in rows[i] else "░"
        is_attended = _asks(picture.stack[i], AXES, of_model)
        line += (shade if is_attended else empty) * (frame.cell - 3) + empty
        if i + 1 < len(rows):
            line += _joint(row, rows[i], rows[i + 1]) + ("━" if row in rows[i + 1] else " ")
    return Text(line.rstrip(), picture.colour(lane.axes[axis][0]))


def _asks(sublayer: Sublayer, stream: str, axes: Collection[str]) -> bool:
    """Whether the keys of a sublayer are of a stream, or of ``axes`` with all others."""
    if isinstance(sublayer, StreamAttention):
        return sublayer.to == stream
    return not {stream, *axes}.isdisjoint(sublayer.attended)


def _whole_row(name: str, attended: Sequence[bool], lane: Lane, frame: Frame) -> Text:
    """Text and streams are cut under every sublayer, or none; ``attended``: where they are."""
    shade, empty = "▓━" if lane.legs[0].axis else "░ "
    label = name if len(name) <= LABEL else f"{name[: LABEL - 1]}…"
    line = f"  {label}".ljust(frame.margin - 1) + (empty if frame.sublayers.start else " ")
    for i in frame.sublayers:
        line += (shade if attended[i] else empty) * (frame.cell - 3)
        line += empty * (1 if i + 1 == len(attended) else 3)
    return Text(line.rstrip())


def _rows_of(entry: str, order: Sequence[str]) -> set[int]:
    """The rows of the axes that an entry of a layout names: one, two, or none where it is ''."""
    if not entry:
        return set()
    if entry in order:
        return {order.index(entry)}
    pairs = permutations(enumerate(order), 2)
    return next({i, j} for (i, a), (j, b) in pairs if f"{a}+{b}" == entry)


def _joint(row: int, before: set[int], after: set[int]) -> str:
    """The character of ``row`` between two sublayers whose lines are in rows before and after."""
    if row in before & after:
        return "━"
    if before == after:
        return " "
    left, right = min(before - after or before), min(after - before or after)
    if row in before:
        return "┓" if right > row else "┛"
    if row in after:
        return "┗" if left < row else "┏"
    return "┃" if min(left, right) < row < max(left, right) else " "


def _switches(picture: Picture, lane: Lane, frame: Frame) -> Iterator[Text]:
    """The bytes under each switch, with the word where all have room for it."""
    legs = [(i, lane.legs[i].switch) for i in frame.sublayers]
    figures = [(i, picture.figure(switch.sent_bytes)) for i, switch in legs if switch]
    end = frame.at(frame.sublayers.stop)
    for word in ("switch ", ""):
        texts = [(frame.at(i + 1) - 2, f"{word}{figure}") for i, figure in figures]
        centred = [(min(hop - len(x) // 2, end - len(x)), x) for hop, x in texts]
        if centred and (has_room(centred) or not word):
            yield packed(centred)
            return


def _transfers(picture: Picture, lane: Lane, frame: Frame) -> Iterator[Text]:
    """The transfers under each sublayer: in one line, or below each other where it is too short."""
    places = [i for i in frame.sublayers if lane.legs[i].transfers]
    legs = [
        (frame.at(i), [EDGES if x.of_edges else x.op for x in lane.legs[i].transfers])
        for i in places
    ]
    figures = [picture.figure(lane.legs[i].sent_bytes) for i in places]
    brief = [(at, f"{_listed(leg)} {n}") for (at, leg), n in zip(legs, figures, strict=True)]
    if has_room(brief, GAP) and has_room([*brief[-1:], (frame.width + 1, "")]):
        yield from [packed(brief)] if brief else []
        return
    for row in range(max(len(leg) for _, leg in legs)):
        ops = [(at, leg[row]) for at, leg in legs if row < len(leg)]
        yield packed((at, _counted([op])) for at, op in ops)
    yield packed((at, figure) for (at, _), figure in zip(legs, figures, strict=True))


def _lengths(value: int | tuple[int, ...]) -> str:
    """'128', or '2 x 6 x 12'."""
    return str(value) if isinstance(value, int) else " x ".join(map(str, value))


def _listed(ops: Sequence[str]) -> str:
    """'2 rings', or 'gather, scatter'."""
    return ", ".join(_counted(list(same)) for _, same in groupby(ops))


def _counted(same: Sequence[str]) -> str:
    word = PLURALS[same[0]]
    return word.removesuffix("s") if len(same) == 1 else f"{len(same)} {word}"


PLAIN_WIDTH = 100
LEAST_WIDTH = 40
"""Columns that a picture needs; a narrower terminal cuts the lines."""
ASCII = str.maketrans("━┃┓┛┗┏░▓…", "-|++++:#~")


def show(picture: Picture) -> None:
    """Prints the picture as wide as the terminal, elsewhere 100 columns wide."""
    out = console()
    for line in draw(picture, max(LEAST_WIDTH, out.width) if out.is_terminal else PLAIN_WIDTH):
        plain = Text(line.plain.translate(ASCII))
        out.print(plain if out.options.ascii_only else line, no_wrap=True)


def draw(picture: Picture, width: int) -> Iterator[Text]:
    """The lines of a picture; none is wider than ``width``, 40 or more."""
    work = picture.workload
    yield Text(work.name, "bold")
    for label, fact in facts(picture).items():
        yield from folded(fact, width, 14, label=f"  {label}")
    for frame in picture.frames(width):
        yield from _heads(picture, frame)
        for lane in picture.lanes:
            yield from lane_lines(picture, lane, frame)
    yield Text()
    yield from folded("━ sharded   ░ attended   ▓ attended while sharded", width, 0)
    step = " with backward and gradients" if work.mode == "train" else ""
    figures = f"{picture.unit} sent forward by the busiest of {counted(picture.ranks, 'rank')}"
    yield from folded(f"{figures}; a step is {counted(work.blocks, 'block')}{step}", width, 0)
    yield from folded(_repeats(picture), width, 0)


def _repeats(picture: Picture) -> str:
    """What of the model is drawn, and what a block's bytes are the mean of; '' if all is alike."""
    mean = f"{picture.unit}/block is"
    if len(picture.periods) > 1:
        return f"each stack's first blocks are drawn; {mean} the mean of all blocks"
    (period,) = picture.periods
    drawn = f"; {MOST_BLOCKS} are drawn" if period > MOST_BLOCKS else ""
    repeats = f"the layout repeats after {period} blocks{drawn}; {mean} their mean"
    return repeats if period > 1 else ""


def facts(picture: Picture) -> dict[str, str]:
    """The workload in words, but for its block."""
    work, ranks = picture.workload, picture.ranks
    axes = " x ".join(f"{axis} {length}" for axis, length in work.axes.items())
    heads = counted(work.heads, "head") + (f" of {work.head_dim}" if work.head_dim else "")
    heads += f", values of {work.v_head_dim}" if work.v_head_dim else ""
    heads += f", {counted(work.kv_heads, 'key head')}" if work.kv_heads else ""
    each = {axis: how for axis in work.axes if (how := work.position_of(axis)) != "none"}
    even = set(each.values()) if len(each) == len(work.axes) else set()
    positions = [f"{how} positions" for how in even] if len(even) == 1 else []
    for how in dict.fromkeys(each.values()) if not positions else ():
        axes_so = " and ".join(axis for axis, kind in each.items() if kind == how)
        positions.append(f"{how} positions of {axes_so}")
    extras = [f"{work.norm} norm"] if work.norm != "layer" else []
    whole_rows = " across heads" if work.qk_norm is not True else ""
    extras += [f"qk-norm{whole_rows}"] if work.qk_norm else []
    extras += [f"modulation {work.modulation}"] if work.modulation != "none" else []
    least = work.activation_bytes / ranks
    unit = units.size_unit(work.activation_bytes / 20)
    M, share = (f"{units.size_in(unit, n)} {unit}" for n in (work.activation_bytes, least))
    guidance = f" x {counted(work.guidance, 'branch')} of guidance" if work.guidance > 1 else ""
    text = f" and {work.text:,} of text" if work.text else ""
    optimizer = f", optimizer {work.optimizer}" if work.optimizer != "none" else ""
    packed = {axis: lengths for axis in work.axes if (lengths := work.packing(axis))}
    documents = "; ".join(f"{axis}: {in_words(lengths)}" for axis, lengths in packed.items())
    streams = {"streams": "; ".join(_stream(name, work) for name in work.streams)}
    return {
        "axes": f"{axes}: {work.tokens:,} tokens{text} a sample, batch {work.batch}{guidance}",
        **({"documents": documents} if documents else {}),
        **(streams if work.streams else {}),
        "model": f"hidden {work.hidden}, {heads}, depth {work.depth_in_words}: "
        + ", ".join([f"{units.count_of(parameters(work).total)} parameters", *positions, *extras]),
        "activation": f"M = {M} in {work.dtype}, M / {ranks} = {share}",
        "run": f"{work.mode}, checkpointing {work.checkpointing}{optimizer}",
        "source": work.source,
    }


def _stream(name: str, work: Workload) -> str:
    own, strand = work.streams[name], work.strands[name]
    heads = counted(strand.heads, "head") + (f" of {strand.head_dim}" if strand.head_dim else "")
    heads += f", {counted(own.kv_heads, 'key head')}" if own.kv_heads else ""
    return f"{name}: {own.length:,} tokens, hidden {strand.hidden}, {heads}"


def _heads(picture: Picture, frame: Frame) -> Iterator[Text]:
    """The lines above the lanes: blocks and sublayers."""
    total, text = picture.workload.blocks, picture.workload.text
    numbers = [*accumulate(int(place.is_first) for place in picture.workload.places)]
    first = frame.sublayers.start
    starts = [i for i in frame.sublayers if i == first or numbers[i] != numbers[i - 1]]
    yield Text()
    yield packed([(frame.at(i), f"block {numbers[i]} of {total}") for i in starts])
    names = [_name(picture.stack[i], frame.cell - 1, text) for i in frame.sublayers]
    for row in range(max(map(len, names))):
        line = Text(" " * frame.margin)
        for i, name in zip(frame.sublayers, names, strict=True):
            axes = picture.stack[i].attended
            style = picture.colour(axes[0]) if row and len(axes) == 1 else ""
            line.append((name[row] if row < len(name) else "").ljust(frame.cell), style)
        line.rstrip()
        yield line


def _name(sublayer: Sublayer, width: int, text: int) -> list[str]:
    match sublayer:
        case Attention():
            alone = " alone" if sublayer.alone else ""
            words = [f"attention{alone}", f"over {', '.join(sublayer.axes)}"]
            words += [f"and text {text}"] if text else []
            words += ["causal"] if sublayer.causal else []
            words += [f"window {_lengths(sublayer.window)}"] if sublayer.window else []
            words += [f"shift {_lengths(sublayer.shift)}"] if sublayer.shift else []
            words += ["sinks"] if sublayer.sinks else []
            words += ["documents"] if sublayer.documents else []
            words += [f"to {sublayer.projection}"] if sublayer.projection else []
            words += [f"pair bias {sublayer.pair_bias}"] if sublayer.pair_bias else []
            words += [" ".join(["beside", *_words_of(sublayer.beside)])] if sublayer.beside else []
        case CrossAttention():
            words = ["cross", f"to {sublayer.length}"]
            words += [f"{sublayer.heads} heads"] if sublayer.heads else []
        case StreamAttention():
            words = ["cross", f"to {sublayer.to}"]
            words += [f"{sublayer.heads} heads"] if sublayer.heads else []
        case Mlp():
            words = _words_of(sublayer)
    if isinstance(sublayer, Attention | Mlp) and sublayer.double:
        words.append("double-stream")
    if not isinstance(sublayer, Attention) and sublayer.stream:
        words.insert(1, f"of {sublayer.stream}")
    return [line for word in words for line in textwrap.wrap(word, width)]


def _words_of(mlp: Mlp) -> list[str]:
    return ["mlp", f"x {mlp.ratio:g}", *([mlp.activation] if mlp.activation != "gelu" else [])]
