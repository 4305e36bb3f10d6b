"""The machine's name, and the variables that change how ranks run."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Mapping, Sequence

import psutil

from spbench.doctor.diagnosis import Diagnosis, fail, ok, warn
from spbench.results.environment import variables
from spbench.results.safe_query import told
from spbench.workload.case import Device

RESOLVE_S = 5.0
CHOSEN = "GLOO_SOCKET_IFNAME"
SPOILING = (
    "CUDA_LAUNCH_BLOCKING",
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
    "SPBENCH_FAULT",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_NCCL_ENABLE_TIMING",
)
"""With them steps are slower, or something else than a plain run is measured."""
OFF = ("", "0", "OFF", "FALSE", "NO")
OF_OTHERS = "SLURM_"
"""Dozens in any job, and none that torch reads."""


def addresses_of(name: str, timeout_s: float = RESOLVE_S) -> list[str] | None:
    """None while nothing has answered in time; empty if there are none."""
    found: list[list[str]] = []

    def ask() -> None:
        try:
            answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except OSError:
            answers = []
        found.append(list(dict.fromkeys(str(answer[4][0]) for answer in answers)))

    asking = threading.Thread(target=ask, daemon=True)  # a resolver cannot be stopped
    asking.start()
    asking.join(timeout_s)
    return found[0] if found else None


def interfaces() -> dict[str, list[str]]:
    """The addresses of each network interface of this machine; none where it does not tell."""
    return {
        name: [one.address.partition("%")[0] for one in addresses]
        for name, addresses in (told(psutil.net_if_addrs) or {}).items()
    }


def host_name(
    name: str,
    addresses: Sequence[str] | None,
    there: Mapping[str, Sequence[str]],
    chosen: str,
    device: Device,
) -> Diagnosis:
    """gloo listens at the address that the name resolves to, or on the interface ``chosen``."""
    if chosen:
        wrong = [one for one in chosen.split(",") if one not in there]
        if wrong and there:
            grade = fail if device == "cpu" else warn  # NCCL has a variable of its own
            found = f"{CHOSEN}={chosen}, and there is no {wrong[0]!r}"
            return grade("host name", found, f"choose of {', '.join(there)}")
        return ok("host name", f"{name}; gloo listens on {chosen} ({CHOSEN})")
    remedy = f"name it in /etc/hosts, or set {CHOSEN} (to lo for one machine)"
    if addresses is None:
        return warn("host name", f"{name} does not resolve in {RESOLVE_S:g} s", remedy)
    if not addresses:
        return warn("host name", f"{name} does not resolve; gloo keeps to the loopback", remedy)
    found = f"{name} is {', '.join(addresses[:3])}"
    if all(map(_is_loopback, addresses)):
        return ok("host name", f"{found}: good for one machine; of several, run sets {CHOSEN}")
    ours = {address for of_one in there.values() for address in of_one}
    if ours and not any(_is_loopback(one) or one in ours for one in addresses):
        return warn("host name", f"{found}, which is no address of this machine", remedy)
    return ok("host name", found)


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def settings(environ: Mapping[str, str]) -> Diagnosis:
    """The variables that torch, NCCL, gloo and we read, values of secret names hidden."""
    every = variables(dict(environ))
    found = {name: value for name, value in every.items() if not name.startswith(OF_OTHERS)}
    said = ", ".join(f"{name}={value}" for name, value in found.items()) or "none that matter"
    spoiling = [name for name in SPOILING if found.get(name, "").upper() not in OFF]
    if spoiling:
        return warn("variables", said, f"unset {' '.join(spoiling)}, unless you mean it")
    return ok("variables", said)
