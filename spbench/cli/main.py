"""The ``spbench`` command, which loads a subcommand's module when that is called.

So ``--help``, a mistyped command and a mistyped flag are answered at once, and no module of a
command imports torch before it is needed.
"""

import gc
import os
import signal
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import click

from spbench import __version__
from spbench.cli import error_handling
from spbench.cli.help import stand_in
from spbench.errors import DONE, ENDINGS, INTERRUPTED, READER_GONE, UNFIT, Failure
from spbench.text import did_you_mean

COMMANDS = {
    "run": "Prove, count and time strategies on a workload.",
    "resume": "Do what a run has left to do.",
    "compare": "Show strategies side by side, or a run against another.",
    "plot": "Draw a run's figures as PNG and SVG.",
    "report": "Write a run as one page of HTML.",
    "history": "Show a case over commits, and the first bad one.",
    "baseline": "Keep a run that later runs are checked against.",
    "check": "Fail on a regression: against a baseline, or another commit.",
    "verify": "Prove strategies equal to one device on many shapes.",
    "project": "Project step times on clusters that are not at hand.",
    "recommend": "Say which plan for a workload on a cluster.",
    "show": "Draw a block: which axis each strategy shards, and what it sends.",
    "capacity": "Find the largest batch and the longest axis that fit into memory.",
    "calibrate": "Time this machine, as a cluster to project to.",
    "init": "Write a workload to fill in.",
    "list": "List strategies, workloads, sweeps, clusters or runs.",
    "doctor": "Check whether this machine is fit, and what to do if not.",
}
FAMILIES = {
    "resume": "run",
    "report": "compare",
    "history": "compare",
    "baseline": "check",
    "recommend": "project",
    "calibrate": "machine",
    "doctor": "machine",
    "show": "list",
    "init": "list",
}
"""Whose file a command stands in, where that is not its own: one file a family of commands."""
GARBAGE = 20_000, 20, 20
"""Objects made before Python looks for garbage, by generation: 10,000 rows are many, all in use."""


def command_of(name: str) -> click.Command:
    """The command of this name, from the file of its family."""
    module = import_module(f"spbench.cli.{FAMILIES.get(name, name)}_command")
    command: click.Command = getattr(module, f"{name}_command")
    return command


class Commands(click.Group):
    """A group that knows its commands by name, and suggests a command for a mistyped name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        gc.set_threshold(*GARBAGE)
        command = command_of(cmd_name)
        gc.freeze()  # what was imported stays: looking for garbage there takes a tenth of a command
        command.short_help = COMMANDS[cmd_name]
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["--help"])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if ctx.resilient_parsing and len(args) > 1 and (lone := stand_in(args[-1])):
            return args[0], lone, args[1:]  # a value is completed, which loads no command
        if args and args[0] not in COMMANDS:
            hint = did_you_mean(args[0], [*COMMANDS], cutoff=0.5) or f"Known: {', '.join(COMMANDS)}"
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
        "show_default": True,
    },
)
@click.version_option(__version__, prog_name="spbench")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Compare sequence-parallel strategies on your shapes and your links.

    Every strategy is proved equal to one device, every byte is counted where it is sent,
    every time comes with its spread. Start with 'spbench run', then 'spbench compare'.
    """
    try:
        Path.cwd()  # torch ends the process where this fails
    except FileNotFoundError:
        if ctx.invoked_subcommand != "doctor":
            raise Failure("the current folder was deleted; cd to another one", UNFIT) from None


def main() -> NoReturn:
    """Runs the command and exits with a code of ``errors.py``, or 128 and the signal's number."""
    seen: list[int] = []

    def end(signum: int, _: object) -> None:
        # An import may swallow the interrupt and leave half a library behind: whatever is raised
        # after a signal counts as the interrupt. In torch's, C++ that calls Python would abort
        # the process; nothing has been measured by then, so it ends at once.
        seen.append(signum)
        spec = getattr(sys.modules.get("torch"), "__spec__", None)
        if getattr(spec, "_initializing", False):
            error_handling.report_error(KeyboardInterrupt())
            _leave(128 + signum)
        raise KeyboardInterrupt

    def hear_dropped(ignored: "sys.UnraisableHookArgs") -> None:
        # Python drops what is raised in a callback, such as one of importlib's: it comes again.
        if seen and isinstance(ignored.exc_value, KeyboardInterrupt):
            threading.Timer(0.01, os.kill, [os.getpid(), seen[-1]]).start()
        else:
            sys.__unraisablehook__(ignored)

    for ending in ENDINGS:
        if signal.getsignal(ending) is not signal.SIG_IGN:  # nohup ignores it
            signal.signal(ending, end)
    sys.unraisablehook = hear_dropped
    error_handling.open_streams()
    others = set(threading.enumerate())
    try:
        code = _run(seen)
    except KeyboardInterrupt:  # a second one, while the first was being reported
        code = INTERRUPTED
    if seen or code == INTERRUPTED or not others.issuperset(threading.enumerate()):
        _leave(128 + seen[0] if seen else code)
    error_handling.drop_unwritten()
    sys.exit(code)


def _leave(code: int) -> NoReturn:
    """Ends the process, all else being ended: by a signal, or with a thread left that waits.

    It does not use Python's own shutdown: a second Ctrl-C could disturb that, and it exits as by
    SIGINT if an extension met one in its import, even if that was handled. A thread that returns
    from C++ meanwhile would abort the process.
    """
    for ending in ENDINGS:
        signal.signal(ending, signal.SIG_IGN)
    error_handling.drop_unwritten()
    os._exit(code)


def _run(seen: list[int]) -> int:
    try:
        code = cli.main(standalone_mode=False, prog_name="spbench")
    except SystemExit:
        if error_handling.reader_is_gone():  # click has noticed it first
            return READER_GONE
        raise
    except BaseException as error:
        return error_handling.report_error(KeyboardInterrupt() if seen else error)
    return code if isinstance(code, int) else DONE
