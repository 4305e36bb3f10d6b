"""One strategy's lane as lines of text: a row for each axis, and below it the bytes sent.

The line runs in the row of the sharded axis, if there is one. Where a sublayer attends along an
axis, its row is shaded: a strategy that shards it there must communicate. DSP's line hops away.

    time    ━━━━━━━━━┓                      ░░░░░░░░           ┏━
    space   ░░░░░░░░ ┗━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┛
                switch 12.2                           switch 11.4

Axes that are only attended jointly are one row. Text tokens that are attended have a row too: they
are cut under every sublayer.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, permutations

from rich.text import Span, Text

from spbench.report.diagram.layout import LABEL, Frame, Picture
from spbench.report.fit_width import folded, has_room, packed
from spbench.workload.predicted import Lane, Leg
from spbench.workload.traffic import Op

GAP = 3
"""Spaces between the transfers of neighbours, which would else read as one list."""
PLURALS = {
    "all_to_all": "all-to-alls",
    "all_gather": "gathers",
    "reduce_scatter": "scatters",
    "all_reduce": "all-reduces",
    "p2p": "rings",
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
        yield _text_row(picture, lane, frame)
    yield from _switches(picture, lane, frame)
    yield from _transfers(picture, lane, frame)
    if is_last:
        if lane.saves_last_switch and frame.sublayers.stop < len(lane.legs):
            yield from folded("the last switch of the stack is left out", frame.width)
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
        is_attended = not of_model.isdisjoint(picture.stack[i].attended)
        line += (shade if is_attended else empty) * (frame.cell - 3) + empty
        if i + 1 < len(rows):
            line += _joint(row, rows[i], rows[i + 1]) + ("━" if row in rows[i + 1] else " ")
    return Text(line.rstrip(), picture.colour(lane.axes[axis][0]))


def _text_row(picture: Picture, lane: Lane, frame: Frame) -> Text:
    """Text is cut under every sublayer, or none, and attended with the axes."""
    shade, empty = "▓━" if lane.legs[0].axis else "░ "
    line = "  text".ljust(frame.margin - 1) + (empty if frame.sublayers.start else " ")
    for i in frame.sublayers:
        line += (shade if picture.stack[i].attended else empty) * (frame.cell - 3)
        line += empty * (1 if i + 1 == len(picture.stack) else 3)
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
    legs = [(frame.at(i), lane.legs[i]) for i in frame.sublayers if lane.legs[i].transfers]
    figures = [picture.figure(leg.sent_bytes) for _, leg in legs]
    brief = [(at, f"{_listed(leg)} {n}") for (at, leg), n in zip(legs, figures, strict=True)]
    if has_room(brief, GAP) and has_room([*brief[-1:], (frame.width + 1, "")]):
        yield from [packed(brief)] if brief else []
        return
    for row in range(max(len(leg.transfers) for _, leg in legs)):
        ops = [(at, leg.transfers[row].op) for at, leg in legs if row < len(leg.transfers)]
        yield packed((at, _counted([op])) for at, op in ops)
    yield packed((at, figure) for (at, _), figure in zip(legs, figures, strict=True))


def _listed(leg: Leg) -> str:
    """'2 rings', or 'gather, scatter'."""
    return ", ".join(_counted(list(same)) for _, same in groupby(x.op for x in leg.transfers))


def _counted(same: Sequence[Op]) -> str:
    word = PLURALS[same[0]]
    return word.removesuffix("s") if len(same) == 1 else f"{len(same)} {word}"
