"""Options that are given twice: what takes one value is refused with two, in every command."""

import contextlib
import copy
from collections.abc import Sequence

import click

from spbench.errors import Failure

ONE_OF = {"--workload": "a run has one workload, and --sweep FILE several in one run"}
"""What would work where an option that takes one value is given several, by its flag."""


def refuse_repeats(command: click.Command, ctx: click.Context, words: Sequence[str]) -> None:
    """Raises Failure for two values of an option that takes one: the last would count."""
    lenient = copy.deepcopy(command)
    options = [option for option in lenient.params if isinstance(option, click.Option)]
    single = [option for option in options if not (option.multiple or option.is_flag)]
    for option in single:
        option.multiple = True
    with contextlib.suppress(click.UsageError):  # the command itself says so
        given, _, _ = lenient.make_parser(ctx).parse_args(list(words))
        for option in single:
            if len(values := dict.fromkeys(given.get(option.name, []))) > 1:
                flag, takes_list = max(option.opts, key=len), "[," in (option.metavar or "")
                list_ = f"give them with commas, {flag} {','.join(values)}" if takes_list else ""
                works = list_ or ONE_OF.get(flag, "give the one that counts")
                raise Failure(f"{flag} is given twice, as {' and '.join(values)}; {works}")
