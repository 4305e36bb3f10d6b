"""Flags that several commands share: strategies, ranks, workload, device."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from spbench.results.baselines import BASELINES

F = TypeVar("F", bound=Callable[..., Any])
UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
MOST_S = 100 * UNITS_S["d"]
BARE = 0.1
"""Without a sign nobody means more than this by a fraction, or less by a percentage."""


class Positive(click.FloatRange):
    """A number above 0, and not beyond reason. FloatRange alone lets nan pass."""

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True, max=1e7)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


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


class Percent(click.types.FloatParamType):
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


def strategy_option(function: F) -> F:
    return click.option(
        "-s",
        "--strategy",
        "strategies",
        multiple=True,
        default=("all",),
        show_default=True,
        metavar="NAME[:OPTION]",
        help="Strategies, repeated or with commas; 'all' for every one.",
    )(function)


def gpus_option(function: F) -> F:
    return click.option(
        "-g",
        "--gpus",
        "gpus",
        metavar="N[,N...]",
        help="Numbers of ranks, one a GPU (or processes on a CPU).  "
        "[default: all GPUs, or 2 on a CPU]",
    )(function)


def device_option(function: F) -> F:
    return click.option(
        "--device",
        type=click.Choice(["auto", "cuda", "cpu"]),
        default="auto",
        show_default=True,
        help="Where ranks compute: NCCL on cuda, gloo on cpu.",
    )(function)


def lasting(flag: str, default: str, text: str) -> Callable[[F], F]:
    """A flag that takes a length of time."""
    return click.option(flag, type=Duration(), default=default, show_default=True, help=text)


timeout_option = lasting("--timeout", "600", "For one launch: 90, 90s, 30m, 2h.")
hang_option = lasting(
    "--hang-after", "180", "Without a sign of life of any rank a launch is given up."
)


def settings_option(function: F) -> F:
    return click.option(
        "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a field."
    )(function)


def baselines_option(function: F) -> F:
    return click.option(
        "--baselines",
        type=click.Path(path_type=Path, file_okay=False),
        default=BASELINES,
        show_default=True,
        envvar="SPBENCH_BASELINES",
        help="Folder of the baselines.",
    )(function)


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")(function)
