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
from node_commands import Crew
from node_table import rows, table
from system import UNFIT, Failure, noted_signals, require_fit, say


def run(asked: Namespace) -> int:
    """A lab for one command, gone with it."""
    noted = noted_signals()
    if asked.log is not None:
        asked.log.mkdir(parents=True, exist_ok=True)
    agenda = Agenda(asked.cut + asked.mend)
    lab = Lab(name=f"run-{os.getpid()}")
    lab.up(asked.nodes, asked.rate)
    crew = Crew(lab)
    try:
        for node in range(asked.nodes):
            crew.start(node, asked.command, asked.log)
        return crew.wait(agenda, asked.timeout, noted)
    finally:
        crew.dismiss()
        lab.down()
        crew.listen_to_the_end()


def up(asked: Namespace) -> int:
    noted = noted_signals()
    if asked.name in labs():
        raise Failure(f"lab '{asked.name}' is up already; `netlab down {asked.name}` removes it.")
    lab = Lab(name=asked.name)
    lab.up(asked.nodes, asked.rate)
    if noted:
        lab.down()
        return 128 + noted[0]
    return 0


def execute(asked: Namespace) -> int:
    """Becomes the command: it has our terminal, our signals and our exit code."""
    lab = there(asked.name, asked.node)
    words = lab.entry(asked.node) + asked.command
    os.execvpe(words[0], words, os.environ | lab.variables(asked.node))


def cut(asked: Namespace) -> int:
    there(asked.name, asked.node).set_link(asked.node, "down")
    return 0


def mend(asked: Namespace) -> int:
    there(asked.name, asked.node).set_link(asked.node, "up")
    return 0


def rate(asked: Namespace) -> int:
    there(asked.name, asked.node).set_rate(asked.node, asked.rate)
    return 0


def down(asked: Namespace) -> int:
    noted_signals()  # half a lab helps nobody
    there(asked.name).down()
    return 0


def show(asked: Namespace) -> int:
    found = [row for name in labs() for row in rows(Lab(name=name))]
    if asked.json:
        print(json.dumps([asdict(row) for row in found], indent=2))
    elif found:
        print(table(found))
    else:
        say("no lab is up; `netlab up NAME --nodes 2` makes one")
    return 0


def there(name: str, node: int | None = None) -> Lab:
    """The lab of that name, with that node in it, or a failure that names those there are."""
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
        asked = parsed(sys.argv[1:])
        require_fit()
        return COMMANDS[asked.verb](asked)
    except Failure as failure:
        print(f"Error: {failure}", file=sys.stderr)
        return failure.code
    except OSError as error:
        print(f"Error: {error}", file=sys.stderr)
        return UNFIT


if __name__ == "__main__":
    sys.exit(main())
