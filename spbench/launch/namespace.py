"""A network namespace of its own for a process and all that it starts: loopback, and nothing else.

What the kernel counts there was sent by those processes alone. Root gets one as it is; anybody
else inside a user namespace, where the kernel lets users make one. That is granted only to a
process of a single thread: one enters before torch is imported, and nothing here imports it.

    python -m spbench.launch.namespace              tries it, and says what is missing
    python -m spbench.launch.namespace -m MODULE    goes on in it as python -m MODULE
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

INTO = ("-m", "spbench.launch.namespace")
"""Before the words of a Python that is to run in one."""
ENVIRONMENT: Mapping[str, str] = {"GLOO_SOCKET_IFNAME": "lo"}
"""Of ranks in one: gloo would look up the host's name, for which there is nobody to ask."""

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS = 0x8913, 0x8914
IFF_UP = 1
INTERFACE = struct.Struct("16sh22x")
"""struct ifreq as far as it is used here: a name and its flags."""

SEND_ONCE = {"tcp_sack": "0", "tcp_early_retrans": "0", "tcp_reordering": "127"}
"""Of this namespace alone. Loopback loses nothing, but packets that leave from several cores
overtake each other, and TCP takes those that are late for lost: docs/decisions/0018."""

WORKS = {
    errno.EPERM: "run it as root, in a container with --cap-add SYS_ADMIN, or where users may make "
    "namespaces (on Ubuntu: sysctl kernel.apparmor_restrict_unprivileged_userns=0)",
    errno.ENOSPC: "its limit is reached: raise the sysctls user.max_net_namespaces and "
    "user.max_user_namespaces",
}
OTHERWISE = "a Linux kernel with network and user namespaces would do"


def enter() -> None:
    """Moves this process into a new one, whose loopback is up. Raises OSError."""
    uid, gid = os.geteuid(), os.getegid()
    try:
        _unshare(CLONE_NEWNET)
    except PermissionError:
        _unshare(CLONE_NEWUSER | CLONE_NEWNET)
        _stay(uid, gid)
    _bring_up("lo")
    _send_once()


def current() -> str:
    """The namespace that this process is in, as ``net:[4026531833]``."""
    return str(Path("/proc/self/ns/net").readlink())


def why_not() -> str | None:
    """Why processes started from here can have none, with what would work; or None.

    A child tries it, so that this process stays where it is.
    """
    if sys.platform != "linux":
        return f"network namespaces are Linux's, and this is {sys.platform}; {OTHERWISE}"
    tried = subprocess.run(
        [sys.executable, *INTO],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if tried.returncode == 0:
        return None
    return tried.stdout.strip() or f"trying it ended with exit code {tried.returncode}; {OTHERWISE}"


def reason(error: OSError) -> str:
    """What the kernel answered, and what would work."""
    works = WORKS.get(error.errno or 0, OTHERWISE)
    return f"the kernel refuses a network namespace ({error.strerror}); {works}"


def main(*words: str) -> int:
    """1, with the reason on stdout, where there can be none; else goes on as a Python that gets
    ``words``, or without any is done: 0."""
    try:
        enter()
    except OSError as error:
        sys.stdout.write(f"{reason(error)}\n")
        return 1
    if words:
        os.execv(sys.executable, [sys.executable, *words])
    return 0


def _unshare(flags: int) -> None:
    own = getattr(os, "unshare", None)  # from Python 3.12 on
    if own is not None:
        own(flags)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _stay(uid: int, gid: int) -> None:
    """In a new user namespace: this user and group stay who they are, and files theirs."""
    place = Path("/proc/self")
    (place / "setgroups").write_text("deny")  # the kernel's condition for mapping a group
    (place / "uid_map").write_text(f"{uid} {uid} 1")
    (place / "gid_map").write_text(f"{gid} {gid} 1")


def _bring_up(name: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = INTERFACE.pack(name.encode(), 0)
        _, flags = INTERFACE.unpack(fcntl.ioctl(any_socket, SIOCGIFFLAGS, asked))
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, INTERFACE.pack(name.encode(), flags | IFF_UP))


def _send_once() -> None:
    """Or, where the kernel has no such setting or lets nobody change it, sometimes twice."""
    for name, value in SEND_ONCE.items():
        with contextlib.suppress(OSError):
            Path("/proc/sys/net/ipv4", name).write_text(value)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
