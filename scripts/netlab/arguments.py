"""The command line: its verbs, their flags, and what --help says."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from functools import partial
from pathlib import Path
from typing import Any

from values import event, name, node, nodes, rate, seconds

ABOUT = """\
A small cluster with real links on one machine. Each node is a network namespace with a host
name of its own (node0, node1, ...) that the others resolve; a switch joins them, and each
link is held to a rate. Nodes share cores, memory and files. Needs root and iproute2.
"""
RUN = """\
CMD is run once in each node, all at once, with NETLAB_NODE (0, 1, ...), NETLAB_NODES and
NETLAB_HEAD (the address of node 0) set, and {node}, {nodes} and {head} replaced by them in its
arguments. Node 0's output is yours; that of the others goes to stderr, behind [node1]. The exit
code is node 0's. The lab is gone when all nodes have ended.
"""
EXAMPLES = """\
examples:
  netlab run --nodes 2 --rate 200mbit -- torchrun --nnodes {nodes} --nproc-per-node 2
      --node-rank {node} --master-addr {head} -m spbench run -s dsp,ulysses --device cpu
  netlab run --nodes 3 --cut 1@20 --timeout 120 -- ./job --rank {node} --master {head}

  netlab up demo --nodes 2 --rate 1gbit
  netlab exec demo 1 -- python3 -m http.server &
  netlab exec demo 0 -- curl node1:8000
  netlab rate demo 1 100mbit; netlab cut demo 1; netlab mend demo 1; netlab list
  netlab down demo

exit codes: the command's own (run: node 0's); 2 usage; 6 this machine cannot; 124 --timeout;
130 or 143 interrupted. More in docs/netlab.md.
"""
NAME: dict[str, Any] = {"metavar": "NAME", "type": name, "help": "of the lab"}
RATE: dict[str, Any] = {
    "metavar": "RATE",
    "type": rate,
    "help": "of each link, both ways, as 200mbit; full: no limit",
}


def parser() -> ArgumentParser:
    whole = ArgumentParser(
        prog="netlab",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    verbs = whole.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    of_run(verbs.add_parser("run", help="a lab for one command, run in each node at once"))
    one = verbs.add_parser("up", help="make a lab that stays")
    one.add_argument("name", **NAME)
    of_lab(one)
    does = {
        "exec": "run a command in one node",
        "cut": "take a node's link down",
        "mend": "bring it up again",
        "rate": "change the rate of a node's link, both ways",
    }
    for verb, text in does.items():
        one = verbs.add_parser(verb, help=text)
        one.add_argument("name", **NAME)
        one.add_argument("node", metavar="NODE", type=node, help="1 or node1")
        if verb == "exec":
            one.usage = "netlab exec [-h] NAME NODE -- CMD [ARG ...]"
    one.add_argument("rate", **RATE)
    verbs.add_parser("down", help="end all in a lab and remove it").add_argument("name", **NAME)
    one = verbs.add_parser("list", help="show the nodes of all labs")
    one.add_argument("--json", action="store_true", help="as JSON")
    return whole


def of_lab(one: ArgumentParser) -> None:
    one.add_argument("--nodes", metavar="N", type=nodes, default=2, help="2 unless given")
    one.add_argument("--rate", **RATE, default=None)


def of_run(one: ArgumentParser) -> None:
    one.usage = "netlab run [OPTION ...] -- CMD [ARG ...]"
    one.description = RUN
    of_lab(one)
    one.add_argument("--log", metavar="DIR", type=Path, help="keep what node 1 prints in node1.log")
    for flag, state, text in (("--cut", "down", "goes down"), ("--mend", "up", "comes up again")):
        one.add_argument(
            flag,
            metavar="NODE@WHEN",
            type=partial(event, state=state),
            action="append",
            default=[],
            help=f"that node's link {text} after so many seconds, or when file:PATTERN appears",
        )
    one.add_argument("--timeout", metavar="S", type=seconds, help="then end all nodes, with 124")


def parsed(words: list[str]) -> Namespace:
    """The arguments, with what stands behind '--' as ``command``. Exits with 2 otherwise."""
    end = words.index("--") if "--" in words else len(words)
    whole = parser()
    asked = whole.parse_args(words[:end])
    asked.command = words[end + 1 :]
    takes_one = asked.verb in ("run", "exec")
    if takes_one and not asked.command:
        whole.error(f"'{asked.verb}' needs a command behind '--', as in: -- hostname")
    if not takes_one and end < len(words):
        whole.error(f"'{asked.verb}' takes no command, but there is '--'")
    for one in asked.cut + asked.mend if asked.verb == "run" else ():
        if one.node >= asked.nodes:
            whole.error(f"there is no node {one.node}; 0 to {asked.nodes - 1} are there")
    return asked
