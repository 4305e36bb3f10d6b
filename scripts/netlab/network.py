"""A lab's network: a namespace for each node, and one for the switch that joins them.

    netlab-NAME-node0             netlab-NAME-switch            netlab-NAME-node1
    eth0 10.77.0.1/24 ========= node0   bridge   node1 ========= eth0 10.77.0.2/24

A link is a veth pair, and each of its ends sends at the link's rate, held by a token bucket
(tc tbf). The switch has a namespace of its own, so the host's network is left as it is: no
name, address or firewall rule can clash, and two labs never meet.

All state is in the kernel: a lab whose script was killed is found, listed and removed like any
other.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from system import Failure, ask, end_all

PREFIX = "netlab-"
NAMESPACES = Path("/run/netns")
"""Where iproute2 keeps the names of namespaces."""
OVER_ETC = Path("/etc/netns")
"""What ``ip netns exec`` lays over /etc, by namespace."""
SUBNET = "10.77.0"
MOST_NODES = 250
MTU_BYTES = 9000
"""Usual in the networks of clusters. With 1500 bytes, headers would take 4 % of the rate."""
BURST_S = 1e-3
"""A bucket holds what the link sends in this time: more would let whole messages through at
the speed of memory, less would run over whenever the kernel's timer is late."""
QUEUE_MS = 100
"""Enough that a few TCP streams into one link lose nothing."""
TCP = "echo cubic >/proc/sys/net/ipv4/tcp_congestion_control"
"""cubic is what clusters mostly have. A host may have bbr, whose probing makes steps uneven."""
RENAME = 'echo "$0" >/proc/sys/kernel/hostname && exec "$@"'


@dataclass(frozen=True, kw_only=True)
class Lab:
    """The lab of that name, whether it exists or not."""

    name: str

    @property
    def switch(self) -> str:
        return f"{PREFIX}{self.name}-switch"

    def namespace(self, node: int) -> str:
        return f"{PREFIX}{self.name}-node{node}"

    def nodes(self) -> list[int]:
        """The numbers of the nodes that exist."""
        begin = f"{PREFIX}{self.name}-node"
        found = (path.name.removeprefix(begin) for path in NAMESPACES.glob(f"{begin}*"))
        return sorted(int(number) for number in found if number.isdecimal())

    def up(self, nodes: int, rate_bits_per_s: int | None) -> None:
        """Makes the lab, or fails and leaves nothing behind."""
        ask("ip", "netns", "add", self.switch)
        try:
            on(self.switch, "link add switch type bridge")
            on(self.switch, "link set switch up")
            for node in range(nodes):
                self._join(node, nodes)
                self.set_rate(node, rate_bits_per_s)
        except BaseException:
            self.down()
            raise

    def _join(self, node: int, nodes: int) -> None:
        namespace, port = self.namespace(node), f"node{node}"
        ask("ip", "netns", "add", namespace)
        ends = f"name {port} mtu {MTU_BYTES} type veth peer name eth0 mtu {MTU_BYTES}"
        on(self.switch, f"link add {ends} netns {namespace}")
        on(self.switch, f"link set {port} master switch up")
        on(namespace, f"address add {address(node)}/24 dev eth0")
        on(namespace, "link set lo up")
        on(namespace, "link set eth0 up")
        with suppress(Failure):  # a kernel without it keeps what it has
            ask("ip", "netns", "exec", namespace, "sh", "-c", TCP)
        folder = OVER_ETC / namespace
        folder.mkdir(parents=True)
        (folder / "hosts").write_text(hosts(nodes), encoding="utf-8")

    def set_rate(self, node: int, rate_bits_per_s: int | None) -> None:
        """Sets the rate both ways. None: as fast as the machine copies."""
        for namespace, device in ((self.namespace(node), "eth0"), (self.switch, f"node{node}")):
            queue = ["noqueue"] if rate_bits_per_s is None else bucket(rate_bits_per_s)
            ask("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *queue)

    def set_link(self, node: int, state: str) -> None:
        """``down`` cuts the link as if its cable were pulled: what is sent is lost in silence."""
        on(self.switch, f"link set node{node} {state}")

    def entry(self, node: int) -> list[str]:
        """The words that, put before a command, run it in a node without another process."""
        inside = ["ip", "netns", "exec", self.namespace(node), "unshare", "--uts"]
        return [*inside, "sh", "-c", RENAME, f"node{node}"]

    def variables(self, node: int) -> dict[str, str]:
        nodes = str(len(self.nodes()))
        return {"NETLAB_NODE": str(node), "NETLAB_NODES": nodes, "NETLAB_HEAD": address(0)}

    def down(self) -> None:
        """Ends every process in the lab, and removes all parts of it that exist."""
        spaces = [self.namespace(node) for node in self.nodes()]
        if (NAMESPACES / self.switch).exists():
            spaces.append(self.switch)
        end_all(spaces)
        for space in spaces:
            shutil.rmtree(OVER_ETC / space, ignore_errors=True)
            ask("ip", "netns", "delete", space)
        with suppress(OSError):  # other labs, or somebody else, use it too
            OVER_ETC.rmdir()


def labs() -> list[str]:
    """The names of all labs, including half-made and half-removed ones."""
    found = (path.name.removeprefix(PREFIX) for path in NAMESPACES.glob(f"{PREFIX}*-*"))
    return sorted({name.rpartition("-")[0] for name in found})


def address(node: int) -> str:
    return f"{SUBNET}.{node + 1}"


def hosts(nodes: int) -> str:
    """The hosts file of a node. Mapped addresses have names of their own: IPv6 sockets, such as
    torch's, look them up and would wait for DNS, while node0 must stay an IPv4 address."""
    lines = ["127.0.0.1 localhost"]
    for node in range(nodes):
        lines += [f"{address(node)} node{node}", f"::ffff:{address(node)} node{node}.mapped"]
    return "\n".join(lines) + "\n"


def on(namespace: str, line: str) -> str:
    return ask("ip", "-n", namespace, *line.split())


def bucket(rate_bits_per_s: int) -> list[str]:
    """The token bucket of a link, in tc's words. It must hold a packet, or would lose it."""
    burst_bytes = max(2 * MTU_BYTES, round(rate_bits_per_s / 8 * BURST_S))
    held = ["tbf", "rate", f"{rate_bits_per_s}bit", "burst", str(burst_bytes)]
    return [*held, "latency", f"{QUEUE_MS}ms"]
