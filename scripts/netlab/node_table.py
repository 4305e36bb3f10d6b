"""The table of ``list``: a row for each node of each lab, as the kernel reports it now."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, fields

from network import Lab, address, on
from system import Failure, ask, processes


@dataclass(frozen=True, kw_only=True)
class Row:
    """A node and its link. What cannot be seen of a half-made lab is None."""

    lab: str
    node: str
    address: str
    rate: str | None
    link: str | None
    processes: int


def rows(lab: Lab) -> list[Row]:
    """A row for each node that exists."""
    queues = links = ""
    with suppress(Failure):  # a half-made lab may lack its switch
        queues = ask("tc", "-n", lab.switch, "qdisc", "show")
        links = on(lab.switch, "-oneline link show")
    return [row(lab, node, queues, links) for node in lab.nodes()]


def row(lab: Lab, node: int, queues: str, links: str) -> Row:
    """The row of a node, from the output of ``tc`` and ``ip`` for all ports of the switch."""
    rate = re.search(rf"dev node{node} .*\brate (\S+)", queues)
    flags = re.search(rf" node{node}@\S+ <(\S+)>", links)
    state = "up" if flags and "UP" in flags[1].split(",") else "cut"
    return Row(
        lab=lab.name,
        node=f"node{node}",
        address=address(node),
        rate=rate[1].lower() if rate else "full" if flags else None,
        link=state if flags else None,
        processes=len(processes([lab.namespace(node)])),
    )


def table(nodes: list[Row]) -> str:
    """Aligned columns; what is not known is '-'."""
    names = [field.name for field in fields(Row)]
    values = [[getattr(node, name) for name in names] for node in nodes]
    lines = [names, *([("-" if v is None else str(v)) for v in line] for line in values)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
