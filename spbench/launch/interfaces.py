"""Which of this machine's addresses and interfaces lead to another machine. Sends nothing."""

import ipaddress
import os
import socket
import tempfile
from collections.abc import Collection

import psutil

from spbench.workload.case import Device

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
LOOPBACK = "127.0.0.1"
MOST_BYTES = 107 - len("/pymp-12345678/listener-12345678")
"""The longest path of a temporary folder: Linux takes 107 bytes for a socket, here of Python's fork
server."""
DISCARD_PORT = 9
"""Any port serves to ask for the way to an address."""


def address_towards(host: str, port: int) -> str | None:
    """The local address from which a packet to ``host`` would leave; None: no name, or no way."""
    try:
        family, kind, _, _, remote = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        # To connect a datagram socket sends nothing: the kernel only looks up the way.
        with socket.socket(family, kind) as probe:
            probe.connect(remote)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def interface_towards(host: str, port: int) -> str | None:
    """The name of the interface through which a packet to ``host`` would leave; None: no way.

    gloo else listens where the host's own name resolves to, which is often loopback.
    """
    local = address_towards(host, port)
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == local for entry in addresses):
            return name
    return None


def loopback_interface() -> str | None:
    """The name of the interface that leads to this machine itself; None where it is down."""
    return interface_towards(LOOPBACK, DISCARD_PORT)


def no_such_interface(chosen: str, interfaces: Collection[str]) -> str | None:
    """What is wrong with GLOO_SOCKET_IFNAME, in a sentence; None where it is blank, all its
    interfaces are there, or the system lists none. gloo takes whole names, with commas: ^, = and
    beginnings of names are of NCCL_SOCKET_IFNAME."""
    unknown = [name for name in chosen.split(",") if name not in interfaces]
    if not chosen or not unknown or not interfaces:
        return None
    return f"{GLOO_INTERFACE}={chosen}, but there is no interface {unknown[0]!r}"


def why_gloo_cannot_listen(device: Device) -> str | None:
    """Why ranks on a CPU, where gloo carries what they send, cannot use the interface that the
    user has chosen, and what would work; None where they can."""
    chosen, interfaces = os.environ.get(GLOO_INTERFACE, ""), psutil.net_if_addrs()
    wrong = no_such_interface(chosen, interfaces)
    if device != "cpu" or wrong is None:
        return None
    return f"{wrong}; {interface_remedy()}, or unset it"


def interface_remedy() -> str:
    """What GLOO_SOCKET_IFNAME may be: whole names of interfaces that are up."""
    up = [name for name, state in psutil.net_if_stats().items() if state.isup]
    return (
        f"set it to one of {', '.join(up)}: gloo takes whole names, and ^ and = are of "
        "NCCL_SOCKET_IFNAME alone"
    )


def why_ranks_cannot_meet(device: Device, *, is_alone: bool) -> str | None:
    """Why ranks cannot start on this machine, and what to do; None where nothing is in the way.

    ``is_alone``: whether they are those of one machine, which speak over loopback."""
    if (why_not := why_gloo_cannot_listen(device)) is not None:
        return why_not
    needs_loopback = is_alone and GLOO_INTERFACE not in os.environ
    if needs_loopback and address_towards(LOOPBACK, DISCARD_PORT) is None:
        return (
            "the loopback interface is down, over which ranks of one machine speak; start it with "
            "'ip link set lo up' as root"
        )
    folder = tempfile.gettempdir()
    length = len(os.fsencode(folder))
    if length > MOST_BYTES:
        return (
            f"the temporary folder {folder} has a path of {length} bytes, in which no socket fits; "
            f"set TMPDIR to a folder of at most {MOST_BYTES}, such as /tmp"
        )
    return None


def is_here(host: str) -> bool:
    """Whether the name means this machine. All of 127.0.0.0/8 does, whatever lo has."""
    local = {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}
    return any(address in local or is_loopback(address) for address in addresses_of(host))


def is_loopback(address: str) -> bool:
    # fe80::1%eth0: behind the % stands the interface of a link-local address.
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def addresses_of(host: str) -> set[str]:
    """The addresses of the name; none where this machine cannot look it up."""
    try:
        return {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return set()
