"""Which of this machine's addresses and interfaces lead to another machine. Sends nothing."""

from __future__ import annotations

import ipaddress
import socket

import psutil


def address_towards(host: str, port: int) -> str | None:
    """The local address from which a packet to ``host`` would leave; None: no name, or no way."""
    try:
        family, kind, _, _, remote = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
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


def resolves(host: str) -> bool:
    """Whether this machine can look up the name."""
    return bool(_addresses(host))


def is_here(host: str) -> bool:
    """Whether the name means this machine. All of 127.0.0.0/8 does, whatever lo has."""
    interfaces = psutil.net_if_addrs().values()
    local = {entry.address for entries in interfaces for entry in entries}
    return any(address in local or is_loopback(address) for address in _addresses(host))


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _addresses(host: str) -> set[str]:
    try:
        return {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return set()
