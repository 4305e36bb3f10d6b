"""The command line: its commands, their flags, and the text of --help."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from functools import partial
from pathlib import Path
from typing import Any

from values import event, name, node, nodes, rate, seconds, turn

ABOUT = """\
A small cluster with real links on one machine. Each node is a network namespace with a host
name of its own (node0, node1, ...) that the others resolve; a switch joins them, and each
link is held to a rate. Nodes share cores, memory and files: each sees all cores, unless 'taskset
-c {node}' in front of CMD gives it some of its own. Needs root and iproute2.
"""
RUN = """\
CMD is run once in each node, all at once, with NETLAB_NODE (0, 1, ...), NETLAB_NODES and
NETLAB_HEAD (the address of node 0) set, and {node}, {nodes} and {head} replaced by them in its
arguments. Node 0's output is yours; that of the others goes to stderr, behind [node1]. The exit
code is node 0's. The lab is gone when all nodes have ended.
"""
EXAMPLES = """\
examples:
  netlab run --nodes 2 --rate 200mbit -- taskset -c {node} torchrun --nnodes {nodes}
      --nproc-per-node 2 --node-rank {node} --master-addr {head} -m spbench run -s dsp,ulysses
      --device cpu
  netlab run --nodes 3 --cut 1@20 --timeout 120 -- ./job --rank {node} --master {head}

  netlab up demo --nodes 2 --rate 1gbit
  netlab exec demo 1 -- python3 -m http.server &
  netlab exec demo 0 -- curl node1:8000
  netlab rate demo 1 100mbit; netlab cut demo 1; netlab mend demo 1; netlab list
  netlab down demo

exit codes: that of CMD (of node 0 for run); 2 wrong usage; 6 this machine is not fit; 124 timeout;
130 or 143 interrupted. More in docs/netlab.md.
"""
NAME: dict[str, Any] = {"metavar": "NAME", "type": name, "help": "name of the lab"}
RATE: dict[str, Any] = {
    "metavar": "RATE",
    "type": rate,
    "help": "rate of each link, both ways, as 200mbit; full: no limit",
}


def parser() -> ArgumentParser:
    top = ArgumentParser(
        prog="netlab",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    add_run_options(
        verbs.add_parser("run", help="make a lab for one command, which runs in each node at once")
    )
    sub = verbs.add_parser("up", help="make a lab that stays until down")
    sub.add_argument("name", **NAME)
    add_lab_options(sub)
    does = {
        "exec": "run a command in one node",
        "cut": "take a node's link down",
        "mend": "bring a node's link up again",
        "rate": "change the rate of a node's link, both ways",
    }
    for verb, text in does.items():
        sub = verbs.add_parser(verb, help=text)
        sub.add_argument("name", **NAME)
        sub.add_argument("node", metavar="NODE", type=node, help="1 or node1")
        if verb == "exec":
            sub.usage = "netlab exec [-h] NAME NODE -- CMD [ARG ...]"
    sub.add_argument("rate", **RATE)
    verbs.add_parser("down", help="end all processes of a lab and remove it").add_argument(
        "name", **NAME
    )
    sub = verbs.add_parser("list", help="show the nodes of all labs")
    sub.add_argument("--json", action="store_true", help="as JSON")
    return top


def add_lab_options(sub: ArgumentParser) -> None:
    sub.add_argument(
        "--nodes", metavar="N", type=nodes, default=2, help="number of nodes; 2 by default"
    )
    sub.add_argument("--rate", **RATE, default=None)


def add_run_options(sub: ArgumentParser) -> None:
    sub.usage = "netlab run [OPTION ...] -- CMD [ARG ...]"
    sub.description = RUN
    add_lab_options(sub)
    sub.add_argument("--log", metavar="DIR", type=Path, help="keep what node 1 prints in node1.log")
    for flag, state, text in (("--cut", "down", "goes down"), ("--mend", "up", "comes up again")):
        sub.add_argument(
            flag,
            metavar="NODE@WHEN",
            type=partial(event, state=state),
            action="append",
            default=[],
            help=f"that node's link {text} after so many seconds, or when file:PATTERN appears",
        )
    sub.add_argument(
        "--turn",
        metavar="MS",
        type=turn,
        help="nodes that share a core take turns of so long, as 0.25, and not of 4 ms",
    )
    sub.add_argument(
        "--timeout",
        metavar="S",
        type=seconds,
        help="end all nodes after S seconds, with exit code 124",
    )


def parsed(words: list[str]) -> Namespace:
    """The arguments, with the words behind '--' as ``command``. Exits with 2 if they are wrong."""
    end = words.index("--") if "--" in words else len(words)
    top = parser()
    arguments = top.parse_args(words[:end])
    arguments.command = words[end + 1 :]
    takes_command = arguments.verb in ("run", "exec")
    if takes_command and not arguments.command:
        top.error(f"'{arguments.verb}' needs a command behind '--', as in: -- hostname")
    if not takes_command and end < len(words):
        top.error(f"'{arguments.verb}' does not take a command behind '--'")
    for change in arguments.cut + arguments.mend if arguments.verb == "run" else ():
        if change.node >= arguments.nodes:
            top.error(f"there is no node {change.node}; nodes are 0 to {arguments.nodes - 1}")
    return arguments
