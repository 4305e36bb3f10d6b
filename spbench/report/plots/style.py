"""How a figure looks: sizes of text, and one colour and one marker for a strategy everywhere.

Colours are of a palette that the colour-blind can tell apart (Okabe and Ito, Tol). Options and mesh
are a hatch over the colour, or the dashes of a line. What is projected is lighter, and hatched. A
vendor's code has the colour of the strategy whose idea it is, and a hatch and dashes of its own.
"""

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import colormaps
from matplotlib.colors import to_hex, to_rgb

HEADING, TITLE, SMALL = 12, 8.5, 6.5
"""Sizes of text in points: of a sheet's heading, of a panel's title, of remarks."""
LETTER = 0.066
"""Inches of a letter of a label."""
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": TITLE,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "legend.borderaxespad": 0,
    "legend.borderpad": 0.2,
    "figure.dpi": 110,
    "text.hinting": "none",
    # Ids in an SVG depend on its content alone, so that a figure drawn again is the same file.
    "svg.hashsalt": "spbench",
}
"""matplotlib's settings, under which a figure is drawn and written."""
COLOURS = {
    "dsp": "#0072B2",
    "ulysses": "#E69F00",
    "megatron-sp": "#009E73",
    "megatron-tp": "#44AA99",
    "rsa": "#CC79A7",
    "ring": "#56B4E9",
    "kv-gather": "#D55E00",
    "attention-2d": "#882255",
    "usp": "#332288",
    "halo": "#999933",
}
IDEAS = {
    "ulysses": (
        *("deepspeed-ulysses", "deepspeed-alst", "yunchang-ulysses", "diffusers-ulysses"),
        "para-attn-ulysses",
    ),
    "ring": (
        *("yunchang-ring", "torch-cp", "diffusers-ring", "ring-flash-attn"),
        *("ring-attention-pytorch", "te-cp"),
    ),
    "usp": ("yunchang-usp", "diffusers-usp", "xfuser-usp"),
    "kv-gather": ("torch-kv-gather",),
    "megatron-sp": ("megatron-core-sp",),
    "rsa": ("colossalai-rsa",),
}
VENDORS = {name: idea for idea, names in IDEAS.items() for name in names}
"""Other packages' code, and the strategy whose idea it is."""
MARKERS = dict(zip(COLOURS, "os^v*DPXh>", strict=True))
MORE_COLOURS = ("#F0E442", "#000000", "#999999")
"""Colours of strategies of plug-ins."""
MORE_MARKERS = "<pdH8"
HATCHES = ("..", "\\\\\\", "oo", "++", "--", "||", "**")
DASHES: tuple[Any, ...] = (
    *((0, (5, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)), (0, (2, 1))),
    *((0, (8, 2)), (0, (4, 1, 1, 1, 1, 1)), (0, (6, 1, 2, 1))),
)
PROJECTED = "projected, not measured"
PROJECTED_HATCH = "////"


def colour(strategy: str) -> str:
    """A strategy's own colour, also with options; a stranger's depends on its name alone."""
    name = VENDORS.get(_name(strategy), _name(strategy))
    return COLOURS.get(name, MORE_COLOURS[sum(map(ord, name)) % len(MORE_COLOURS)])


def marker(strategy: str) -> str:
    """A strategy's own marker, also with options."""
    name = _name(strategy)
    return MARKERS.get(name, MORE_MARKERS[sum(map(ord, name)) % len(MORE_MARKERS)])


def hatch(strategy: str) -> str:
    """A pattern over the strategy's colour, which distinguishes options, a mesh and vendors; twice
    as dense for other forms of a vendor's code."""
    name = _name(strategy)
    if name in VENDORS:
        return _by_options(name, HATCHES, "") * (1 if name == strategy else 2)
    return _by_options(strategy, HATCHES, "")


def dashes(strategy: str) -> Any:
    """The style of a strategy's line: solid without options, unless it is a vendor's."""
    return _by_options(strategy, DASHES, "solid")


@dataclass(frozen=True, kw_only=True)
class LineLook:
    """How a line with markers looks."""

    colour: str
    marker: str
    dashes: Any


def line_look(strategy: str, number: int = 0) -> LineLook:
    """A strategy's own look; its further lines have a ``number`` from 1 on, and other dashes."""
    style = DASHES[(number - 1) % len(DASHES)] if number else dashes(strategy)
    return LineLook(colour=colour(strategy), marker=marker(strategy), dashes=style)


def shade_look(strategy: str, number: int, count: int) -> LineLook:
    """One of ``count`` lines of the same strategy, in tones from dark to light."""
    # The lightest tenth of the colour map is a yellow that is hard to see on white.
    tone = to_hex(colormaps["viridis"](0.9 * number / max(count - 1, 1)))
    return LineLook(colour=tone, marker=marker(strategy), dashes=dashes(strategy))


def fill(strategy: str, kind: str = "measured") -> dict[str, Any]:
    """A strategy's bar; of what is projected a light tone, hatched in its colour."""
    own = colour(strategy)
    if kind == "projected":
        return {"color": lighter(own), "hatch": PROJECTED_HATCH, "edgecolor": own, "linewidth": 0}
    return {"color": own, "hatch": hatch(strategy), "edgecolor": "white", "linewidth": 0}


def lighter(shown: str, share: float = 0.35) -> tuple[float, ...]:
    """A colour with so much of it over white."""
    return tuple(1 - share * (1 - part) for part in to_rgb(shown))


def darker(shown: str) -> tuple[float, ...]:
    """A colour that can be read as text on white."""
    return tuple(0.72 * part for part in to_rgb(shown))


def _name(strategy: str) -> str:
    """The name before options, as in usp:ulysses=2, and before a mesh, as in dsp cfg=2."""
    return re.split("[: ]", strategy, maxsplit=1)[0]


def _by_options(strategy: str, looks: Sequence[Any], plain: str) -> Any:
    """One of ``looks``, which options keep in every run; ``plain`` for a strategy without any,
    unless it is a vendor's."""
    name = _name(strategy)
    options = strategy[len(name) + 1 :]
    # Python's own hash of a text differs from process to process.
    turn = zlib.crc32(options.encode()) if options else 0
    if name in VENDORS:
        return looks[(IDEAS[VENDORS[name]].index(name) + turn) % len(looks)]
    return looks[turn % len(looks)] if options else plain
