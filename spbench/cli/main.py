"""The ``spbench`` command. A command's module is loaded when that command is called.

So ``--help``, a mistyped command and a mistyped flag answer at once, and nothing here or in
the commands' modules imports torch before it is needed.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from importlib import import_module
from typing import Any, NoReturn

import click

from spbench import __version__
from spbench.cli.exits import INTERNAL, INTERRUPTED, Failure
from spbench.workload.words import did_you_mean

COMMANDS = {
    "run": "Prove, count and time strategies on a workload.",
    "compare": "Show strategies side by side, or a run against another.",
    "plot": "Draw a run's figures as PNG and SVG.",
    "baseline": "Keep a run as what later ones are checked against.",
    "check": "Fail on a regression: against a baseline, or another commit.",
    "verify": "Prove strategies equal to one device on many shapes.",
    "show": "Draw a block: which axis each strategy shards, and what it sends.",
    "list": "List strategies, workloads, sweeps or runs.",
}


class Commands(click.Group):
    """Knows its commands by name, and says which one a mistyped one was meant to be."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"spbench.cli.{cmd_name}_command").command
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["--help"])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS:
            known = list(COMMANDS)
            hint = did_you_mean(args[0], known, cutoff=0.5) or f"Known: {', '.join(known)}"
            ctx.fail(f"unknown command {args[0]!r}. {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(
    cls=Commands,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": "SPBENCH",
        "max_content_width": 100,
    },
)
@click.version_option(__version__, prog_name="spbench")
def cli() -> None:
    """Compare sequence-parallel strategies on your shapes and your links.

    Every strategy is proved equal to one device, every byte is counted where it is sent,
    every time comes with its spread. Start with 'spbench run', then 'spbench compare'.
    """


def main() -> NoReturn:
    """Runs the command and exits: 0 done, 2 usage, 3 some cases failed, 1 our own fault."""
    seen: list[int] = []

    def end(signum: int, _: object) -> NoReturn:
        """SIGTERM and SIGHUP: everything is ended in order, as on Ctrl-C."""
        seen.append(signum)
        raise KeyboardInterrupt

    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, end)
    try:
        code = cli.main(standalone_mode=False, prog_name="spbench")
        sys.exit(code if isinstance(code, int) else 0)
    except Failure as failure:
        click.echo(f"Error: {failure}", err=True)
        sys.exit(failure.code)
    except click.ClickException as error:
        _show_usage_error(error)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        sys.exit(128 + seen[0] if seen else INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        _report_internal(error)
        sys.exit(INTERNAL)


def _show_usage_error(error: click.ClickException) -> None:
    click.echo(f"Error: {error.format_message()}", err=True)
    ctx: Any = getattr(error, "ctx", None)
    if ctx is not None:
        click.echo(f"  Try '{ctx.command_path} --help'.", err=True)


def _report_internal(error: Exception) -> None:
    with tempfile.NamedTemporaryFile(
        "w", prefix="spbench-", suffix=".log", delete=False, encoding="utf-8"
    ) as file:
        file.write("".join(traceback.format_exception(error)))
    click.echo(f"Internal error: {type(error).__name__}: {error}", err=True)
    click.echo(f"  This is a defect of spbench. The traceback is in {file.name}", err=True)
