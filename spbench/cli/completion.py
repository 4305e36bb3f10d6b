"""Completion of strategies, workloads, sweeps, clusters and runs in a shell.

Whoever presses Tab waits: while a value of an option is completed, no module of a command is
loaded, which would take longer than all else.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def strategies(_: click.Context, __: click.Parameter, text: str) -> list[CompletionItem]:
    """Strategies, each also behind a comma."""
    from spbench.strategies.registry import SUMMARIES, places

    return _behind_commas(text, ["all", *places()], SUMMARIES)


def catalogue(kind: str) -> Complete:
    """Names of the catalogue, or the user's files."""

    def complete(_: click.Context, __: click.Parameter, text: str) -> list[CompletionItem]:
        from spbench.workload.config_names import names

        return _behind_commas(text, names(kind)) or _files(text)

    return complete


workloads, sweeps, clusters = map(catalogue, ("workloads", "sweeps", "clusters"))


def runs(_: click.Context, __: click.Parameter, text: str) -> list[CompletionItem]:
    """Runs under results/, with and without that folder's name, or the user's files."""
    known = sorted(path.parent for path in Path("results").glob("*/runs.csv"))
    shown = [str(path) if text.startswith("results/") else path.name for path in known]
    return [CompletionItem(name) for name in shown if name.startswith(text)] or _files(text)


VALUES: dict[str, Complete] = {
    **dict.fromkeys(("-s", "--strategy"), strategies),
    **dict.fromkeys(("-w", "--workload"), workloads),
    "--sweep": sweeps,
    **dict.fromkeys(("-c", "--cluster"), clusters),
}
"""What completes the value of an option, by its flag in every command."""


def stand_in(flag: str) -> click.Command | None:
    """A command with this flag alone, to complete its value; None where no value is known."""
    if flag not in VALUES:
        return None
    option = click.Option([flag, "value"], multiple=True, shell_complete=VALUES[flag])
    lenient = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command("any", params=[option], context_settings=lenient)


def _behind_commas(
    text: str, names: Iterable[str], helps: dict[str, str] | None = None
) -> list[CompletionItem]:
    """The names that begin like what stands behind the last comma, with what stands before it."""
    before, comma, begun = text.rpartition(",")
    return [
        CompletionItem(f"{before}{comma}{name}", help=(helps or {}).get(name))
        for name in names
        if name.startswith(begun)
    ]


def _files(text: str) -> list[CompletionItem]:
    """Leaves it to the shell to complete files."""
    return [CompletionItem(text, type="file")]
