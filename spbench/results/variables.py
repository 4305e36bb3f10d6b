"""Environment variables that change how torch runs: in run.json, in each row, and in comparisons.

A row has those of CUDA, NCCL, torch and OpenMP as its ranks had them, as ``NAME=value``; where
ranks differ, as ``NAME@rank1=value``. Words are quoted as a shell would, so that values may
hold spaces.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping

VARIABLES = re.compile(r"^(NCCL|(PY)?TORCH|CUDA|OMP|MKL|GLOO|SPBENCH|SLURM)_")
IN_ROWS = re.compile(r"^(NCCL|(PY)?TORCH|CUDA|OMP)_")
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS", re.IGNORECASE)
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
}
"""Variables that differ between runs without effect on times, and why they have none."""


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that matter to torch and spbench; values whose name sounds secret are hidden."""
    return {
        name: "(hidden)" if SECRET.search(name) else value
        for name, value in sorted(environ.items())
        if VARIABLES.match(name)
    }


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

    ``environment_column``: what the strategy asked for, whose values are replaced by ``ASKED``.
    """
    if not variables_column:
        return ""
    asked = {word.partition("=")[0] for word in environment_column.split()}
    kept = {
        name: ASKED if variable in asked else value
        for name, value in read_column(variables_column).items()
        if (variable := name.partition("@")[0]) not in WITHOUT_EFFECT
    }
    return shlex.join(f"{name}={value}" for name, value in kept.items()) or NONE
