"""Types of values on the command line: counts, durations, percentages, meshes; flags as given."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

import click
from click.core import ParameterSource

from spbench.cli import help
from spbench.errors import Failure
from spbench.results.baselines import BASELINES
from spbench.strategies.registry import broken_plug_ins, expand_names
from spbench.workload.fields import Checkpointing, Zero
from spbench.workload.mesh import CaseMesh

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
    """The mesh around a strategy, outermost axis first, written as dp=2,cfg=2."""
    try:
        return CaseMesh.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def fixed(text: str) -> dict[str, int | str]:
    """Axes of the mesh, ``zero`` and ``checkpointing``, each with the value that it keeps."""
    given: dict[str, int | str] = {}
    for part in filter(None, re.split("[ ,]+", text)):
        name, _, value = part.partition("=")
        if name in given:
            raise click.BadParameter(f"{text!r} has {name} twice; give it one value")
        if name in CaseMesh.model_fields:
            if not re.fullmatch("0*[1-9][0-9]{0,5}", value):
                raise click.BadParameter(f"{part!r}: write {name}=1, or more ranks of a group")
            given[name] = int(value)
            continue
        if name not in SEARCHED:
            names = ", ".join([*CaseMesh.model_fields, *SEARCHED])
            raise click.BadParameter(f"{part!r} cannot be fixed; what is searched for is {names}")
        values = {str(each): each for each in SEARCHED[name]}
        if value not in values:
            raise click.BadParameter(f"{part!r}: {name} may be {', '.join(values)}")
        given[name] = values[value]
    return given


SEARCHED: Mapping[str, tuple[int | str, ...]] = {
    "zero": get_args(Zero),
    "checkpointing": get_args(Checkpointing),
}
"""Fields of a workload among which ``recommend`` searches, and their values."""

# The flags that several commands share.

F = TypeVar("F", bound=Callable[..., Any])
PATH = click.Path(path_type=Path)


def together(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """One decorator that adds several flags, in this order."""

    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def duration_option(flag: str, default: str | None, text: str) -> Callable[[F], F]:
    return click.option(flag, type=duration, metavar="TIME", default=default, help=text)


def percent_option(flag: str, default: str, text: str) -> Callable[[F], F]:
    return click.option(flag, type=percent, default=default, help=text)


def strategies_of(texts: Sequence[str]) -> list[str]:
    """The strategies that ``texts`` ask for; says what 'all' leaves out. Raises Failure."""
    names = expand_names(texts)
    if asks_for(texts, "all"):
        say_broken()
    return names


def asks_for(texts: Sequence[str], *names: str) -> bool:
    """Whether one of these names is among those that ``texts`` give."""
    return not {*names}.isdisjoint(map(str.strip, ",".join(texts).split(",")))


def say_broken() -> None:
    """Says which plug-ins are left out of 'all', and why."""
    for why in broken_plug_ins().values():
        click.echo(f"left out of 'all': {why}", err=True)


run_argument = click.argument("run", required=False, type=PATH, shell_complete=help.runs)
workload_argument = click.argument("workload", metavar="WORKLOAD", shell_complete=help.workloads)
cluster_option = partial(
    click.option,
    "-c",
    "--cluster",
    metavar="NAME|FILE",
    help="A cluster of 'spbench list clusters', or a file that 'spbench calibrate' wrote.",
)
strategy_option = click.option(
    "-s",
    "--strategy",
    "strategies",
    multiple=True,
    default=("all",),
    metavar="NAME[:OPTION]",
    shell_complete=help.strategies,
    help="Strategies, repeated or with commas; 'all' of spbench's own, 'vendors' for other "
    "packages' code.",
)
gpus_option = click.option(
    "-g",
    "--gpus",
    metavar="N[,N...]",
    help="Numbers of ranks, one on each GPU (or processes on a CPU).  "
    "[default: all GPUs, or 2 on a CPU]",
)
RANKS_OF_CLUSTER = "[default: 8, or all of a cluster that has fewer]"
mesh_option = click.option(
    "--mesh",
    "meshes",
    type=mesh,
    multiple=True,
    default=("dp=1",),
    metavar="AXIS=N[,...]",
    help="Axes around the strategies, outermost first: groups with their part of the batch (dp=2) "
    "or of the branches of guidance (cfg=2), stages of a pipeline (pp=2), neighbours that cut the "
    "weights (tp=2); repeated to compare.",
)
device_option = click.option(
    "--device",
    type=click.Choice(["auto", "cuda", "cpu"]),
    default="auto",
    help="Where ranks compute: with NCCL on cuda, with gloo on cpu.",
)
settings_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a field of the workload, such as depth=4 or axes.time=8.",
)
filter_options = together(
    click.option(
        "-w", "--workload", "workloads", multiple=True, metavar="NAME", help="Only these workloads."
    ),
    click.option(
        "-s",
        "--strategy",
        "strategies",
        multiple=True,
        metavar="NAME[:OPTION]",
        help="Only these strategies.",
    ),
    click.option("-g", "--gpus", metavar="N[,N...]", help="Only these numbers of ranks."),
)
"""Flags that choose rows of runs, as ``chosen_rows.select_rows`` takes them."""
baselines_option = click.option(
    "--baselines",
    type=click.Path(path_type=Path, file_okay=False),
    default=BASELINES,
    envvar="SPBENCH_BASELINES",
    help="Folder of the baselines.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")


hang_option = duration_option(
    "--hang-after", "180", "Give up a launch after this long without progress of any rank."
)
deadline_options = together(
    duration_option("--timeout", "600", "Deadline of one launch: 90, 90s, 30m, 2h."), hang_option
)
drawing_options = together(
    filter_options,
    click.option(
        "--page",
        type=click.IntRange(min=1),
        default=1,
        help="Page of a figure of more than 12 panels.",
    ),
    baselines_option,
    json_option,
)
share_option = click.option(
    "--share",
    type=PATH,
    metavar="RUN",
    help="A run of 'spbench run --share': what a rank computes is as measured there.",
)


def refuse_flags(ctx: click.Context, names: Sequence[str], why: str) -> None:
    """Raises Failure for a parameter that was given, by a flag or by its variable."""
    for param in ctx.command.params:
        name = param.name or ""
        if name not in names:
            continue
        match ctx.get_parameter_source(name):
            case ParameterSource.COMMANDLINE:
                raise Failure(f"{max(param.opts, key=len)} {why}")
            case ParameterSource.ENVIRONMENT:
                raise Failure(f"{ctx.auto_envvar_prefix}_{name.upper()} {why}")


def repeated_flags(ctx: click.Context, names: Sequence[str]) -> list[str]:
    """The flags among ``names`` that were given on the command line, as words to write again."""
    words: list[str] = []
    for param in ctx.command.params:
        value = ctx.params.get(param.name or "")
        if param.name in names and (
            ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
        ):
            words.append(max(param.opts, key=len))
            if not isinstance(value, bool):  # a flag without a value is said by its name
                words.append(f"{100 * value:g}%" if isinstance(value, float) else str(value))
    return words
