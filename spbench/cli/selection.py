"""The flags that choose cells, together: which strategies, on how many ranks, of what."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import click

from spbench.cli import options
from spbench.sweep import devices
from spbench.sweep.request import Asked, by_file, by_flags
from spbench.workload.case import Device

DEFAULT_WORKLOAD = "dsp-720m-small"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What the flags said."""

    strategies: Sequence[str]
    gpus: str | None
    workload: str
    settings: Sequence[str]
    dtype: str | None
    sweep: str | None
    skip_invalid: bool

    def asked(
        self,
        ctx: click.Context,
        device: Device,
        launches: int | None,
        *,
        share: bool = False,
        nodes: int = 1,
    ) -> Asked:
        """The cells; Failure for what does not exist or does not go together."""
        if self.sweep is not None:
            return by_file(ctx, self.sweep, launches=launches, skip_invalid=self.skip_invalid)
        settings = [*self.settings, *([f"dtype={self.dtype}"] if self.dtype else [])]
        return by_flags(
            devices.parse_strategies(self.strategies),
            devices.choose_workload(self.workload, settings),
            devices.parse_ranks(self.gpus, device, share=share, nodes=nodes),
            launches=launches,
            skip_invalid=self.skip_invalid,
        )


NAMES = tuple(field.name for field in fields(Selection))


def selection_options(function: F) -> F:
    """Adds the flags; the command gets them as one argument, ``selection``."""

    @functools.wraps(function)
    def command(*args: Any, **flags: Any) -> Any:
        selection = Selection(**{name: flags.pop(name) for name in NAMES})
        return function(*args, selection=selection, **flags)

    flags = (
        options.strategy_option,
        options.gpus_option,
        click.option(
            "-w", "--workload", default=DEFAULT_WORKLOAD, show_default=True, metavar="NAME|FILE"
        ),
        options.settings_option,
        click.option("--dtype", help="Short for --set dtype=..."),
        click.option(
            "--sweep",
            metavar="NAME|FILE",
            help="A file of cells, in place of -s, -g, -w and --set.",
        ),
        click.option(
            "--skip-invalid", is_flag=True, help="Leave out cells that cannot run, and say why."
        ),
    )
    for option in reversed(flags):
        command = option(command)
    return command  # type: ignore[return-value]
