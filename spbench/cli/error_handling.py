"""How a command ends: one message on stderr and an exit code for every exception.

A closed terminal, a pipe without a reader and a full disk have exit codes, too: no function of
this file raises.
"""

import contextlib
import errno
import os
import select
import sys
import tempfile
import textwrap
import traceback
from typing import Any

import click

from spbench.errors import INTERNAL, INTERRUPTED, READER_GONE, UNFIT, Failure

OF_THE_MACHINE = frozenset(
    getattr(errno, name)
    for name in (
        *("ENOSPC", "EDQUOT", "EROFS", "EFBIG", "EIO", "ESTALE", "EACCES"),
        *("ENAMETOOLONG", "ELOOP", "EMFILE", "ENFILE", "ENOMEM"),
    )
)
"""Errors of disks, file names and limits, which are not defects of spbench."""
STREAMS = ("stdout", "stderr")
NO_TORCH = "torch is not installed; pip install 'torch>=2.11', then 'spbench doctor' tries it"


def open_streams() -> None:
    """Makes a closed stdin, stdout or stderr /dev/null, and escapes what cannot be encoded.

    Otherwise the next file that is opened would take its place, and receive what is printed.
    """
    while (gap := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(gap, True)
    os.close(gap)
    for name in STREAMS:
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def report_error(error: BaseException) -> int:
    """Prints on stderr why the command ended, and returns its exit code."""
    match error:
        case Failure():
            _say(f"Error: {error}")
            return error.code
        case click.ClickException():
            _say_usage(error)
            return error.exit_code
        case click.Abort() | KeyboardInterrupt():
            _say("Interrupted.")
            return INTERRUPTED
        case ModuleNotFoundError(name="torch"):
            _say(f"Error: {NO_TORCH}")
            return UNFIT
        case BrokenPipeError() if reader_is_gone():
            return READER_GONE
        case OSError(errno=number) if number in OF_THE_MACHINE:
            what = f"use {error.filename}" if error.filename else "write the output"
            _say(f"Error: cannot {what}: {error.strerror}")
            return UNFIT
    _say_internal(error)
    return INTERNAL


def drop_unwritten() -> None:
    """Drops what stdout and stderr cannot write any more, which Python would try again at exit."""
    for name in STREAMS:
        stream = getattr(sys, name)
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def reader_is_gone() -> bool:
    """Whether nobody reads stdout or stderr any more. Any other broken pipe is a defect."""
    polled = select.poll()
    for name in STREAMS:
        with contextlib.suppress(OSError, ValueError):
            polled.register(getattr(sys, name).fileno(), select.POLLOUT)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in polled.poll(0))


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        width = 0
        if sys.stderr.isatty():
            with contextlib.suppress(OSError):  # a terminal that does not say how wide it is
                width = os.get_terminal_size(sys.stderr.fileno()).columns
        click.echo(between_words(text, width) if width else text, err=True)


def between_words(text: str, width: int) -> str:
    """The text with its lines broken between words, each further line indented as its first."""
    wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    broken: list[str] = []
    for line in text.splitlines():
        wrapper.subsequent_indent = " " * (len(line) - len(line.lstrip()))
        broken += wrapper.wrap(line) or [""]
    return "\n".join(broken)


def _say_usage(error: click.ClickException) -> None:
    ctx: Any = getattr(error, "ctx", None)
    _say(f"Error: {_about_a_workload(error, ctx) or error.format_message()}")
    if ctx is not None:
        _say(f"  Try '{ctx.command_path} --help'.")


def _about_a_workload(error: click.ClickException, ctx: Any) -> str:
    """What to write for a workload with a flag or without where the command has the other, and for
    an option that is a field of the workload, as --depth; else nothing."""
    params = [] if ctx is None else ctx.command.params
    takes = {word for param in params for word in (param.name, *param.opts)}
    message = error.format_message()
    if message.startswith("Got unexpected extra arg") and "-w" in takes:
        return f"{message}. A workload is given with -w"
    if not isinstance(error, click.NoSuchOption) or "settings" not in takes:
        return ""
    if error.option_name in ("-w", "--workload") and "workload" in takes:
        return f"{message} The workload stands alone: {ctx.command_path} dsp-720m"
    from spbench.workload.workload import Workload
    from spbench.workload.yaml_file import OTHER_NAMES

    flag, word = error.option_name, error.option_name.lstrip("-").replace("-", "_")
    field = OTHER_NAMES.get(word, word)
    known = f"No such option {flag!r}. It is a field of the workload: --set {field}=..."
    return known if field in Workload.model_fields else ""


def _say_internal(error: BaseException) -> None:
    text = "".join(traceback.format_exception(error))
    _say(f"Internal error: {type(error).__name__}: {error}")
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="spbench-", suffix=".log", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
    except OSError:
        _say(text)  # the only copy
        return
    _say(f"  This is a defect of spbench. The traceback is in {file.name}")
