"""Environment variables that change how torch runs: in run.json, in each row, and in comparisons.

A value is kept if its name is on the list ``KEPT``, or if it is a number or a yes or no of a
library: whatever else is in the environment may be a secret. Of other values of libraries a few
digits of a hash are kept, so that two runs that differ in one are told apart.

A row has those of CUDA, NCCL, torch and OpenMP as its ranks had them, as ``NAME=value``; where
ranks differ, as ``NAME@rank1=value``. Words are quoted as a shell would, so that values may
hold spaces.
"""

import hashlib
import os
import re
import shlex
from collections.abc import Mapping

VARIABLES = re.compile(r"^(NCCL|(PY)?TORCH|CUDA|OMP|MKL|GLOO|SPBENCH|SLURM)_")
LIBRARIES = re.compile(r"^(NCCL|(PY)?TORCH|CUDA|OMP|MKL|GLOO)_")
IN_ROWS = re.compile(r"^(NCCL|(PY)?TORCH|CUDA|OMP)_")
KEPT = re.compile(
    r"""
    NCCL_(ALGO|PROTO|NET|COMM_ID|HOSTID|VERSION|LAUNCH_MODE|CTA_POLICY|DEBUG|DEBUG_SUBSYS|IB_HCA
        |IB_ADDR_RANGE|RAS_ADDR|\w+_(IFNAME|FILE|PATH|LEVEL|PLUGIN|FAMILY))
    | CUDA_(VISIBLE_DEVICES|DEVICE_ORDER|MODULE_LOADING|HOME|VERSION|(\w+_)?(PATH|DIRECTORY))
    | TORCH_(HOME|CUDA_ARCH_LIST|LOGS|DISTRIBUTED_DEBUG|CPP_LOG_LEVEL|\w+_FILE)
    | PYTORCH_(((CUDA|HIP)_)?ALLOC_CONF|VERSION|KERNEL_CACHE_PATH)
    | OMP_(NUM_THREADS|PLACES|PROC_BIND|SCHEDULE|WAIT_POLICY|STACKSIZE|DISPLAY_\w+|TARGET_OFFLOAD)
    | MKL_(THREADING_LAYER|INTERFACE_LAYER|ENABLE_INSTRUCTIONS|CBWR|DOMAIN_NUM_THREADS)
    | GLOO_(SOCKET_IFNAME|DEVICE_TRANSPORT)
    | SPBENCH_(FAULT|BASELINES|(RUN|COMPARE|PLOT|BASELINE|CHECK|VERIFY|SHOW|LIST|DOCTOR)_\w+)
    | SLURM_(JOB_?ID|STEP_?ID|PROCID|LOCALID|NODEID|NNODES|NTASKS|NPROCS|NODELIST|CLUSTER_NAME
        |(JOB|STEP)_(NAME|NUM_NODES|NODELIST|PARTITION|GPUS|CPUS_PER_NODE|NUM_TASKS)
        |(STEP_)?(NTASKS|TASKS)_PER_NODE|CPUS_(PER_TASK|ON_NODE)|GPUS(_\w+)?|(CPU|GPU|MEM)_BIND
        |MEM_PER_(NODE|CPU|GPU)|DISTRIBUTION|THREADS_PER_CORE|TOPOLOGY_ADDR)
    """,
    re.VERBOSE,
)
"""Names whose values are kept as they are, but for passwords in URLs."""
PLAIN = re.compile(r"(-?[\d.,]{1,20}|true|false|yes|no|on|off|)", re.ASCII | re.IGNORECASE)
SECRET = re.compile(r"AUTH|COOKIE|CREDENTIAL|JWT|KEY|PASS|PRIVATE|SECRET|TOKEN", re.IGNORECASE)
"""Words that no name of a kept value may hold, whatever else says that it may be kept."""
IN_URL = re.compile(r"(?<=://)[^/\s]*@")
"""A user's name and password in a URL."""
NONE = "none"
"""A row whose ranks had none of them; in a row of an older version the column is blank."""
ASKED = "*"
"""In place of a value that the strategy asked for, which is part of the strategy."""
WITHOUT_EFFECT = {
    "CUDA_VISIBLE_DEVICES": "which GPUs; column hardware says of what kind they are",
    "CUDA_DEVICE_ORDER": "how GPUs are numbered",
    "OMP_NUM_THREADS": "each rank sets its own number of threads when it starts",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "how a failed transfer ends",
    "CUDA_HOME": "a toolkit that torch does not run with",
    "CUDA_PATH": "a toolkit that torch does not run with",
    "CUDA_VERSION": "of a container's toolkit; column cuda has torch's own",
    "NCCL_VERSION": "of a container's library; column nccl has torch's own",
    "CUDA_CACHE_PATH": "where files lie",
    "NCCL_DEBUG_FILE": "where files lie",
    "TORCH_HOME": "where files lie",
    "NCCL_SOCKET_IFNAME==lo": "on which interface ranks of one machine meet",
}
"""Variables that differ between runs without effect on times, or values; why they have none."""


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that matter to torch and spbench, with the values that may be known."""
    return {
        name: shown(name, value) for name, value in sorted(environ.items()) if VARIABLES.match(name)
    }


def shown(name: str, value: str) -> str:
    """The value of a variable, or what stands in its place where it may be a secret."""
    is_library = LIBRARIES.match(name)
    is_kept = KEPT.fullmatch(name) or (is_library and PLAIN.fullmatch(value))
    if is_kept and not SECRET.search(name):
        return without_passwords(value)
    if is_library and not SECRET.search(name):
        return f"(hidden, hash {hashlib.sha256(os.fsencode(value)).hexdigest()[:4]})"
    return "(hidden)"


def without_passwords(text: str) -> str:
    """A text whose URLs have neither user nor password."""
    return IN_URL.sub("(hidden)@", text)


def of_a_rank(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that a row keeps, as text that any file can hold, whatever their bytes."""
    return {
        name: " ".join(os.fsencode(value).decode(errors="replace").splitlines())
        for name, value in variables(environ).items()
        if IN_ROWS.match(name)
    }


def column_of(by_rank: Mapping[int, Mapping[str, str]]) -> str:
    """The variables of all ranks as one text; blank if no rank's are known."""
    words: list[str] = []
    for name in sorted({name for of_rank in by_rank.values() for name in of_rank}):
        values = {rank: of_rank.get(name) for rank, of_rank in by_rank.items()}
        if len(set(values.values())) == 1:
            words.append(f"{name}={next(iter(values.values()))}")
            continue
        set_on = {rank: value for rank, value in values.items() if value is not None}
        words += [f"{name}@rank{rank}={value}" for rank, value in set_on.items()]
    return shlex.join(words) or (NONE if by_rank else "")


def read_column(text: str) -> dict[str, str]:
    """The values by name, or by name and rank; empty for ``NONE``, and for what cannot be read."""
    try:
        words = [] if text == NONE else shlex.split(text)
    except ValueError:  # a quote without its end: somebody edited the row
        words = []
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def compared(variables_column: str, environment_column: str) -> str:
    """The variables of a row that its time may depend on; blank if they are not known.
    ``environment_column``: what the strategy asked for, whose values are replaced by ``ASKED``."""
    if not variables_column:
        return ""
    asked = {word.partition("=")[0] for word in environment_column.split()}
    kept = {
        name: ASKED if variable in asked else value
        for name, value in read_column(variables_column).items()
        if (variable := name.partition("@")[0]) not in WITHOUT_EFFECT
        and f"{variable}={value}" not in WITHOUT_EFFECT
    }
    return shlex.join(f"{name}={value}" for name, value in kept.items()) or NONE
