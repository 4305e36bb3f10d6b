"""Which of this machine's addresses and interfaces lead to another machine. Sends nothing."""

from __future__ import annotations

import os
import socket

import psutil


def address_towards(host: str, port: int) -> str | None:
    """The local address from which a packet to ``host`` would leave; None: no name, or no way."""
    try:
        family, kind, _, _, there = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(there)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def interface_towards(host: str, port: int) -> str | None:
    """Its name; None if there is no way."""
    address = address_towards(host, port)
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == address for one in addresses):
            return name
    return None


def bind_gloo_towards(host: str, port: int) -> None:
    """Has gloo, which else binds to what the host's own name resolves to, often loopback, listen
    where ``host`` can reach it; unless the variable is set."""
    found = interface_towards(host, port)
    if found is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", found)


def resolves(host: str) -> bool:
    """Whether the name means anything here."""
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return False
    return True


def is_here(host: str) -> bool:
    """Whether the name means this machine. All of 127.0.0.0/8 does, whatever lo has."""
    try:
        there = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    here = {one.address for found in psutil.net_if_addrs().values() for one in found}
    return bool(there & here) or any(map(is_loopback, there))


def is_loopback(address: str) -> bool:
    return address == "::1" or address.startswith("127.")
