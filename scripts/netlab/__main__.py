"""The network lab: several nodes with real links on one machine, for multi-node tests.

Each node is a network namespace with a host name of its own, joined to the others by a
switch, over links that are held to a rate. Nodes share the machine's cores and files.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from dataclasses import asdict

from arguments import parsed
from link_events import Agenda
from network import Lab, labs
from node_commands import NodeCommands
from node_table import rows, table
from system import UNFIT, Failure, caught_signals, require_fit, say
from turns import Turns


def run(arguments: Namespace) -> int:
    """Makes a lab for one command, and removes it when the command ends."""
    signals = caught_signals()
    if arguments.log is not None:
        arguments.log.mkdir(parents=True, exist_ok=True)
    agenda = Agenda(arguments.cut + arguments.mend)
    turns = None if arguments.turn is None else Turns(arguments.turn)
    lab = Lab(name=f"run-{os.getpid()}")
    lab.up(arguments.nodes, arguments.rate)
    commands = NodeCommands(lab)
    try:
        for node in range(arguments.nodes):
            commands.start(node, arguments.command, arguments.log)
        return commands.wait(agenda, arguments.timeout, signals)
    finally:
        if turns is not None:
            turns.end()
        commands.kill()
        lab.down()
        commands.join_readers()


def up(arguments: Namespace) -> int:
    signals = caught_signals()
    if arguments.name in labs():
        raise Failure(
            f"lab '{arguments.name}' is up already; `netlab down {arguments.name}` removes it."
        )
    lab = Lab(name=arguments.name)
    lab.up(arguments.nodes, arguments.rate)
    if signals:
        lab.down()
        return 128 + signals[0]
    return 0


def execute(arguments: Namespace) -> int:
    """Replaces this process by the command, which keeps its terminal, signals and exit code."""
    lab = existing_lab(arguments.name, arguments.node)
    words = lab.entry(arguments.node) + arguments.command
    os.execvpe(words[0], words, os.environ | lab.variables(arguments.node))


def cut(arguments: Namespace) -> int:
    existing_lab(arguments.name, arguments.node).set_link(arguments.node, "down")
    return 0


def mend(arguments: Namespace) -> int:
    existing_lab(arguments.name, arguments.node).set_link(arguments.node, "up")
    return 0


def rate(arguments: Namespace) -> int:
    existing_lab(arguments.name, arguments.node).set_rate(arguments.node, arguments.rate)
    return 0


def down(arguments: Namespace) -> int:
    caught_signals()  # a signal must not leave half a lab
    existing_lab(arguments.name).down()
    return 0


def show(arguments: Namespace) -> int:
    table_rows = [row for name in labs() for row in rows(Lab(name=name))]
    if arguments.json:
        print(json.dumps([asdict(row) for row in table_rows], indent=2))
    elif table_rows:
        print(table(table_rows))
    else:
        say("no lab is up; `netlab up NAME --nodes 2` makes one")
    return 0


def existing_lab(name: str, node: int | None = None) -> Lab:
    """The lab of that name, with that node. Raises a Failure that names what exists."""
    if name not in labs():
        others = f"there are {', '.join(labs())}" if labs() else "no lab is up"
        raise Failure(f"no lab is called '{name}'; {others}.")
    lab = Lab(name=name)
    if node is not None and node not in lab.nodes():
        raise Failure(f"lab '{name}' has no node {node}; it has {lab.nodes()}.")
    return lab


COMMANDS = {
    "run": run,
    "up": up,
    "exec": execute,
    "cut": cut,
    "mend": mend,
    "rate": rate,
    "down": down,
    "list": show,
}


def main() -> int:
    try:
        arguments = parsed(sys.argv[1:])
        require_fit()
        return COMMANDS[arguments.verb](arguments)
    except Failure as failure:
        print(f"Error: {failure}", file=sys.stderr)
        return failure.code
    except OSError as error:
        print(f"Error: {error}", file=sys.stderr)
        return UNFIT


if __name__ == "__main__":
    sys.exit(main())
