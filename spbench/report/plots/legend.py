"""What a legend shows of strategies: patches of bars, lines with markers, what is projected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from spbench.report.plots import looks


def handles_of(
    strategies: Sequence[str], lines: Mapping[str, looks.LineLook], *, has_projected: bool
) -> dict[str, Any]:
    """What stands in the legend before each name."""
    handles: dict[str, Any] = {}
    for name in strategies:
        look: dict[str, Any] = {"facecolor": looks.colour(name), "hatch": looks.hatch(name)}
        handles[name] = Patch(linewidth=0, edgecolor="white", **look)
    for name, line in lines.items():
        own = {"color": line.colour, "marker": line.marker, "ls": line.dashes}
        handles[name] = Line2D([], [], markersize=5, lw=1.3, **own)
    if has_projected:
        grey = {"facecolor": "#EEEEEE", "edgecolor": "#777777", "hatch": looks.PROJECTED_HATCH}
        handles[looks.PROJECTED] = Patch(linewidth=0, **grey)  # type: ignore[arg-type]
    return handles
