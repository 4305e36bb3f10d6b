"""Lengths of time on the command line: 90, 90s, 30m, 2h."""

from __future__ import annotations

import math
import re
from typing import Any

import click

UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
MOST_S = 100 * UNITS_S["d"]


class Duration(click.types.FloatParamType):
    """Seconds, or with a unit; above 0."""

    name = "TIME"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", str(value).strip(), re.ASCII)
        seconds = float(found[1]) * UNITS_S[found[2]] if found else math.nan
        if seconds > MOST_S:
            most = f"{MOST_S / UNITS_S['d']:.0f}d"
            self.fail(f"{value!r} is longer than {most}, which is the most", param, ctx)
        if not seconds > 0:
            self.fail(
                f"{value!r} is no length of time above 0; write 90, 90s, 90m, 2h or 1d", param, ctx
            )
        return seconds
