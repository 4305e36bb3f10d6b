"""A workload and a picture of one block of it, as lines of text: for a terminal or a README."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from rich.text import Text

from spbench.report import units
from spbench.report.columns import sentence, with_totals
from spbench.report.lane import lane_lines
from spbench.report.picture import MOST_BLOCKS, Frame, Picture
from spbench.report.tables import console
from spbench.workload.cost import parameters
from spbench.workload.sublayers import Attention, CrossAttention, Mlp, Sublayer

PLAIN_WIDTH = 100
ASCII = str.maketrans("━┃┓┛┗┏░▓…", "-|++++:#~")


def show(picture: Picture) -> None:
    """On stdout, as wide as the terminal; elsewhere 100 columns wide."""
    out = console()
    for line in draw(picture, out.width if out.is_terminal else PLAIN_WIDTH):
        plain = Text(line.plain.translate(ASCII))
        out.print(plain if out.options.ascii_only else line, no_wrap=True)


def draw(picture: Picture, width: int) -> Iterator[Text]:
    """The lines of a picture; none is wider than ``width``, 40 or more."""
    work = picture.workload
    yield Text(work.name, "bold")
    for label, said in facts(picture).items():
        yield from sentence(said, width, 14, label=f"  {label}")
    for frame in picture.frames(width):
        yield from _heads(picture, frame)
        for lane in picture.lanes:
            yield from lane_lines(picture, lane, frame)
    yield Text()
    yield from sentence("━ sharded   ░ attended   ▓ attended while sharded", width, 0)
    said = f"{picture.unit} sent forward by the busiest of {picture.ranks} ranks"
    backward = " with backward and gradients" if work.mode == "train" else ""
    yield from sentence(f"{said}; a step is {work.depth} blocks{backward}", width, 0)
    if picture.period > MOST_BLOCKS:
        said = f"the layout repeats after {picture.period} blocks; {MOST_BLOCKS} are drawn"
        yield from sentence(said, width, 0)


def facts(picture: Picture) -> dict[str, str]:
    """What there is to know of the workload but its block, in words."""
    work, ranks = picture.workload, picture.ranks
    axes = " x ".join(f"{axis} {length}" for axis, length in work.axes.items())
    heads = f"{work.heads} heads" + (f", {work.kv_heads} of keys" if work.kv_heads else "")
    each = {axis: how for axis in work.axes if (how := work.position_of(axis)) != "none"}
    even = set(each.values()) if len(each) == len(work.axes) else set()
    positions = [f"{how} positions" for how in even] if len(even) == 1 else []
    positions = positions or [f"{how} positions of {axis}" for axis, how in each.items()]
    extras = [f"{work.norm} norm"] if work.norm != "layer" else []
    extras += ["qk-norm"] if work.qk_norm else []
    extras += [f"modulation {work.modulation}"] if work.modulation != "none" else []
    M, share = map(picture.figure, (work.activation_bytes, work.activation_bytes / ranks))
    return {
        "axes": f"{axes}: {work.tokens:,} tokens, batch {work.batch}",
        "model": f"hidden {work.hidden}, {heads}, depth {work.depth}: "
        + ", ".join([f"{units.count_of(parameters(work).total)} parameters", *positions, *extras]),
        "activation": f"M = {M} {picture.unit} in {work.dtype}, M / {ranks} = {share}",
        "run": f"{work.mode}, checkpointing {work.checkpointing}",
        "source": work.source,
    }


def _heads(picture: Picture, frame: Frame) -> Iterator[Text]:
    """What stands above the lanes: which block, which sublayers, and the totals' names."""
    work, length = picture.workload, len(picture.workload.block)
    starts = [i for i in frame.sublayers if i % length == 0 or i == frame.sublayers.start]
    blocks = [(frame.at(i), f"block {i // length + 1} of {work.depth}") for i in starts]
    totals = [f"{picture.unit}/{per}" for per in ("block", "step")] if frame.is_last else []
    yield Text()
    yield from with_totals(blocks, totals, frame.right)
    names = [_name(work.block[i % length], frame.cell - 1) for i in frame.sublayers]
    for row in range(max(map(len, names))):
        line = Text(" " * frame.margin)
        for i, name in zip(frame.sublayers, names, strict=True):
            axes = picture.attended(i)
            style = picture.colour(axes[0]) if row and len(axes) == 1 else ""
            line.append((name[row] if row < len(name) else "").ljust(frame.cell), style)
        line.rstrip()
        yield line


def _name(sublayer: Sublayer, width: int) -> list[str]:
    match sublayer:
        case Attention():
            said = ["attention", f"over {', '.join(sublayer.axes)}"]
            said += ["causal"] if sublayer.causal else []
            said += [f"to {sublayer.projection}"] if sublayer.projection else []
            said += [f"pair bias {sublayer.pair_bias}"] if sublayer.pair_bias else []
        case CrossAttention():
            said = ["cross", f"to {sublayer.length}"]
            said += [f"{sublayer.heads} heads"] if sublayer.heads else []
        case Mlp():
            said = ["mlp", f"x {sublayer.ratio:g}"]
            said += [sublayer.activation] if sublayer.activation != "gelu" else []
    return [line for one in said for line in textwrap.wrap(one, width)]
