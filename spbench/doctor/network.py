"""Checks the machine's host name, and the variables that change how ranks run."""

import socket
import threading
from collections.abc import Mapping, Sequence

import psutil

from spbench.doctor.diagnosis import Diagnosis, fail, ok, warn
from spbench.errors import or_none
from spbench.launch.interfaces import (
    GLOO_INTERFACE,
    interface_remedy,
    is_loopback,
    no_such_interface,
)
from spbench.results.variables import variables
from spbench.workload.case import Device

RESOLVE_S = 5.0
DISTORTING = (
    "CUDA_LAUNCH_BLOCKING",
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
    "SPBENCH_FAULT",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_NCCL_ENABLE_TIMING",
)
"""Variables that make steps slower, or make a run measure something else."""
OFF = ("", "0", "OFF", "FALSE", "NO")
IGNORED_PREFIX = "SLURM_"
"""Any job has dozens of these, and torch reads none."""


def addresses_of(name: str, timeout_s: float = RESOLVE_S) -> list[str] | None:
    """The addresses that ``name`` resolves to; None if the resolver does not answer in time."""
    answers: list[list[str]] = []

    def resolve() -> None:
        entries = or_none(lambda: socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)) or []
        answers.append(list(dict.fromkeys(str(entry[4][0]) for entry in entries)))

    thread = threading.Thread(target=resolve, daemon=True)  # a resolver cannot be stopped
    thread.start()
    thread.join(timeout_s)
    return answers[0] if answers else None


def interfaces() -> dict[str, list[str]]:
    """The addresses of each network interface; empty where the system does not list them."""
    return {
        name: [entry.address.partition("%")[0] for entry in addresses]
        for name, addresses in (or_none(psutil.net_if_addrs) or {}).items()
    }


def host_name(
    name: str,
    addresses: Sequence[str] | None,
    interfaces: Mapping[str, Sequence[str]],
    chosen: str,
    device: Device,
) -> Diagnosis:
    """gloo listens at the address that the name resolves to, or on the interface ``chosen``."""
    if chosen:
        if (wrong := no_such_interface(chosen, interfaces)) is not None:
            grade = fail if device == "cpu" else warn  # NCCL has a variable of its own
            return grade("host name", wrong, interface_remedy())
        return ok("host name", f"{name}; gloo listens on {chosen} ({GLOO_INTERFACE})")
    remedy = f"add it to /etc/hosts, or set {GLOO_INTERFACE} (to lo for one machine)"
    if addresses is None:
        return warn("host name", f"{name} did not resolve within {RESOLVE_S:g} s", remedy)
    if not addresses:
        return warn("host name", f"{name} does not resolve; gloo uses the loopback only", remedy)
    found = f"{name} is {', '.join(addresses[:3])}"
    if all(map(is_loopback, addresses)):
        several = f"for several machines, run sets {GLOO_INTERFACE}"
        return ok("host name", f"{found}, which is enough for one machine; {several}")
    own = {address for listed in interfaces.values() for address in listed}
    if own and not any(is_loopback(address) or address in own for address in addresses):
        return warn("host name", f"{found}, which is not an address of this machine", remedy)
    return ok("host name", found)


def distorting(environ: Mapping[str, str]) -> list[str]:
    """Names of the variables that are set and not switched off, and distort what is measured."""
    return [name for name in DISTORTING if environ.get(name, "").upper() not in OFF]


def settings(environ: Mapping[str, str]) -> Diagnosis:
    """Lists the variables that torch, NCCL, gloo and spbench read, with secret values hidden."""
    every = variables(dict(environ))
    read = {name: every[name] for name in every if not name.startswith(IGNORED_PREFIX)}
    found = ", ".join(f"{name}={value}" for name, value in read.items()) or "none that matter"
    if names := distorting(environ):
        remedy = f"unset {' '.join(names)}, unless you want to measure their effect"
        return warn("variables", found, remedy)
    return ok("variables", found)
