"""Types of values on the command line: counts, durations, percentages, meshes."""

import math
import re
from typing import Any

import click

from spbench.workload.mesh import CFG, CaseMesh

UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
MOST_S = 100 * UNITS_S["d"]
BARE = 0.1
"""The largest number without a percent sign: a larger one may be a fraction or a percentage."""


class Count(click.IntRange):
    """A whole number within limits."""

    name = "integer"


class Positive(click.FloatRange):
    """A finite number above 0. FloatRange alone lets nan pass."""

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True, max=1e7)

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


def duration(text: str) -> float:
    """Seconds of a duration above 0, written as 90, 90s, 30m or 2h."""
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip(), re.ASCII)
    seconds = float(parts[1]) * UNITS_S[parts[2]] if parts else 0.0
    if seconds > MOST_S:
        most = f"{MOST_S / UNITS_S['d']:.0f}d"
        raise click.BadParameter(f"{text!r} is longer than {most}, which is the most")
    if seconds == 0:
        works = "write 90, 90s, 90m, 2h or 1d"
        raise click.BadParameter(f"{text!r} is not a duration above 0; {works}")
    return seconds


def percent(text: str) -> float:
    """A percentage from 0 to 100 as a fraction, written as 3%, 0.5 % or 0.03.

    A bare 3, or 0.5, could be a fraction or a percentage, and is refused.
    """
    bare, sign, rest = text.strip().partition("%")
    try:
        number = float(bare) / (100 if sign else 1)
    except ValueError:
        number = math.nan
    if rest or not 0 <= number <= (1.0 if sign else BARE):
        works = "write 3% or 0.03, up to 100%"
        raise click.BadParameter(f"expected a percentage, not {text!r}; {works}")
    return number


def mesh(text: str) -> CaseMesh:
    """The mesh around a strategy, written as cfg=2."""
    axis, _, size = text.strip().partition("=")
    if axis != CFG or not re.fullmatch("0*[1-9][0-9]{0,5}", size):
        works = f"write {CFG}=2: two groups of ranks, each with half of the branches of guidance"
        raise click.BadParameter(f"{text!r} is not a mesh; {works}")
    return CaseMesh(cfg=int(size))
