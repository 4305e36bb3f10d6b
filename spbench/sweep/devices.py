"""What is meant by the flags that commands share: strategies, ranks, workload, device."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from spbench.errors import Failure
from spbench.launch.torchrun import joined_ranks
from spbench.results.environment import gpus as gpus_here
from spbench.strategies.registry import UnknownStrategyError, expand_names
from spbench.workload.case import Device
from spbench.workload.catalogue import find
from spbench.workload.load import overridden, overrides_of, with_settings_in_name
from spbench.workload.workload import Workload
from spbench.workload.yaml_lines import WorkloadError

VISIBLE = "CUDA_VISIBLE_DEVICES"
MAX_DIGITS = 9
MAX_PROCESSES = 1024


def parse_strategies(texts: Sequence[str]) -> list[str]:
    """Names with their options, each once, in the order given. Loads no strategy."""
    try:
        return expand_names(texts)
    except UnknownStrategyError as error:
        raise Failure(str(error)) from None


def choose_workload(name: str, settings: Sequence[str]) -> Workload:
    """The workload with its settings; what rows do not show in a column is in its name."""
    try:
        overrides = overrides_of(settings)
        return with_settings_in_name(overridden(find(name), overrides), overrides)
    except WorkloadError as error:
        raise Failure(str(error)) from None


def parse_ranks(
    text: str | None, device: Device, *, share: bool = False, nodes: int = 1
) -> list[int]:
    """Numbers of ranks, each once, that this machine and its like can start."""
    started = joined_ranks()
    if text is None:
        return [started or nodes * (len(visible_gpus()) if device == "cuda" else 2)]
    found: list[int] = []
    for part in text.split(","):
        if not part.strip().isdecimal() or len(part) > MAX_DIGITS or int(part) < 1:
            raise Failure(f"--gpus {text}: {part.strip()!r} is not a number of ranks; write 1,2,4")
        if int(part) not in found:
            found.append(int(part))
    for count in sorted(found, reverse=True):
        why_not = why_not_here(count, device, share=share, nodes=nodes)
        if why_not is not None:
            raise Failure(f"--gpus {count}: {why_not}")
    return found


def why_not_here(ranks: int, device: Device, *, share: bool = False, nodes: int = 1) -> str | None:
    """Why this machine, and its like, cannot start so many ranks, with what would work; or None."""
    started = joined_ranks()
    if started is not None:
        if ranks == started:
            return None
        return f"this process is one of {started} ranks that were started"
    if share:
        return None
    if device == "cpu":
        most = MAX_PROCESSES * nodes
        where = "one machine" if nodes == 1 else f"{nodes} machines"
        return None if ranks <= most else f"too many processes for {where}; use 1 to {most}"
    available = len(visible_gpus()) * nodes
    if ranks <= available:
        return None
    hidden = f" ({_hidden_by()})" if VISIBLE in os.environ else ""
    if nodes > 1:
        return f"{nodes} machines like this one have {available} GPUs; use 1 to {available}"
    return (
        f"this machine has {available} GPUs{hidden}; use 1 to {available}, --device cpu, "
        f"or --nnodes for several machines"
    )


def visible_gpus() -> list[dict[str, Any]]:
    """The GPUs that CUDA would let a process of ours see."""
    shown = os.environ.get(VISIBLE)
    here = gpus_here()
    if shown is None:
        return here
    names = [name for name in shown.split(",") if name.strip() not in ("", "-1")]
    return here[: len(names)]


def choose_device(asked: str) -> Device:
    """cuda where there is a GPU, unless told otherwise."""
    if asked == "cpu" or (asked == "auto" and not visible_gpus()):
        return "cpu"
    if not visible_gpus():
        raise Failure(f"--device cuda: no GPU is visible here ({_hidden_by()}); use cpu")
    return "cuda"


def _hidden_by() -> str:
    """Why a process of ours sees no GPU, or fewer than there are."""
    shown = os.environ.get(VISIBLE)
    return "nvidia-smi shows none" if shown is None else f"{VISIBLE} is {shown!r}"
