"""A share that is written as a percentage: 3%, 0.5 % or 0.03."""

from __future__ import annotations

import math

import click
from click.types import FloatParamType

BARE = 0.1
"""Without a sign nobody means more than this by a fraction, or less by a percentage."""


class Percent(FloatParamType):
    """From 0 to 100 %; kept as a fraction. A bare 3, or 0.5, could mean either, and is refused."""

    name = "percent"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = str(value).strip()
        bare = text.removesuffix("%").strip()
        try:
            number = float(bare) / (100 if text.endswith("%") else 1)
        except ValueError:
            number = math.nan
        most = 1.0 if text.endswith("%") else BARE
        if not 0 <= number <= most:
            self.fail(f"{value!r} is not a share; write 3% or 0.03, up to 100%", param, ctx)
        return number
