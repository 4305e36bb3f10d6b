"""A workload and a picture of one block of it, as lines of text: for a terminal or a README."""

import textwrap
from collections.abc import Iterator
from itertools import accumulate

from rich.text import Text

from spbench.report import units
from spbench.report.diagram.lane import lane_lines
from spbench.report.diagram.layout import MOST_BLOCKS, Frame, Picture
from spbench.report.fit_width import folded, packed
from spbench.report.tables import console
from spbench.text import counted
from spbench.workload.block import Attention, CrossAttention, Mlp, Sublayer
from spbench.workload.flops import parameters

PLAIN_WIDTH = 100
NARROWEST = 40
"""Columns that a picture needs; a narrower terminal cuts the lines."""
ASCII = str.maketrans("━┃┓┛┗┏░▓…", "-|++++:#~")


def show(picture: Picture) -> None:
    """Prints the picture as wide as the terminal, elsewhere 100 columns wide."""
    out = console()
    for line in draw(picture, max(NARROWEST, out.width) if out.is_terminal else PLAIN_WIDTH):
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
    heads += f", {counted(work.kv_heads, 'key head')}" if work.kv_heads else ""
    each = {axis: how for axis in work.axes if (how := work.position_of(axis)) != "none"}
    even = set(each.values()) if len(each) == len(work.axes) else set()
    positions = [f"{how} positions" for how in even] if len(even) == 1 else []
    for how in dict.fromkeys(each.values()) if not positions else ():
        axes_so = " and ".join(axis for axis, kind in each.items() if kind == how)
        positions.append(f"{how} positions of {axes_so}")
    extras = [f"{work.norm} norm"] if work.norm != "layer" else []
    extras += [f"qk-norm{' across heads' * (work.qk_norm is not True)}"] if work.qk_norm else []
    extras += [f"modulation {work.modulation}"] if work.modulation != "none" else []
    least = work.activation_bytes / ranks
    unit = units.size_unit(work.activation_bytes / 20)
    M, share = (f"{units.size_in(unit, n)} {unit}" for n in (work.activation_bytes, least))
    guidance = f" x {counted(work.guidance, 'branch')} of guidance" if work.guidance > 1 else ""
    text = f" and {work.text:,} of text" if work.text else ""
    optimizer = f", optimizer {work.optimizer}" if work.optimizer != "none" else ""
    return {
        "axes": f"{axes}: {work.tokens:,} tokens{text} a sample, batch {work.batch}{guidance}",
        "model": f"hidden {work.hidden}, {heads}, depth {work.depth_in_words}: "
        + ", ".join([f"{units.count_of(parameters(work).total)} parameters", *positions, *extras]),
        "activation": f"M = {M} in {work.dtype}, M / {ranks} = {share}",
        "run": f"{work.mode}, checkpointing {work.checkpointing}{optimizer}",
        "source": work.source,
    }


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
            words += [f"to {sublayer.projection}"] if sublayer.projection else []
            words += [f"pair bias {sublayer.pair_bias}"] if sublayer.pair_bias else []
            words += [" ".join(["beside", *_words_of(sublayer.beside)])] if sublayer.beside else []
        case CrossAttention():
            words = ["cross", f"to {sublayer.length}"]
            words += [f"{sublayer.heads} heads"] if sublayer.heads else []
        case Mlp():
            words = _words_of(sublayer)
    if not isinstance(sublayer, CrossAttention) and sublayer.double:
        words.append("double-stream")
    return [line for word in words for line in textwrap.wrap(word, width)]


def _words_of(mlp: Mlp) -> list[str]:
    return ["mlp", f"x {mlp.ratio:g}", *([mlp.activation] if mlp.activation != "gelu" else [])]
