"""Loads torch in a process of its own and reports what it can do on this machine.

The parent calls ``probe``; the child is ``python -m spbench.doctor.torch_probe cuda|cpu``, which
prints the facts as one line of JSON. A torch that lacks a library, or a driver that does not
answer, then cannot take ``spbench doctor`` down with it. Only the child imports torch.
"""

import gc
import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from spbench.doctor.machine_checks import TorchFacts
from spbench.errors import or_none
from spbench.launch.process import safe_path
from spbench.text import first_line, signal_name
from spbench.workload.case import Device

CHILD = (sys.executable, "-m", "spbench.doctor.torch_probe")


def probe(device: Device, timeout_s: float, command: Sequence[str] = CHILD) -> TorchFacts | str:
    """What torch says of itself, and of the GPUs if ``device`` is cuda; or why it cannot say."""
    try:
        done = subprocess.run(
            [*command, device],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            env=os.environ | safe_path(),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"loading it takes longer than {timeout_s:g} s"
    if done.returncode < 0:
        return f"loading it ended by {signal_name(-done.returncode)}"
    if done.returncode:
        return _last_line(done.stderr) or f"loading it ended with exit code {done.returncode}"
    try:
        return TorchFacts.model_validate_json(_last_line(done.stdout))
    except ValidationError:
        return f"instead of its facts it printed {_last_line(done.stdout)!r}"


def _last_line(text: str) -> str:
    """The error of a traceback; or the facts, above which a library may have printed anything."""
    lines = text.strip().splitlines()
    return lines[-1].strip()[:300] if lines else ""


def torch_facts(device: str) -> TorchFacts:
    """Looks at GPUs only if ``device`` is cuda, since that takes seconds."""
    import torch

    from spbench.comm.nccl_gloo import available_backends

    gpus, troubles = _usable_gpus(torch) if device == "cuda" and torch.version.cuda else (0, [])
    nccl = or_none(torch.cuda.nccl.version)
    return TorchFacts(
        version=str(torch.__version__),
        cuda=torch.version.cuda or "",
        nccl="" if nccl is None else ".".join(map(str, nccl)),
        backends=available_backends(),
        gpus=gpus,
        troubles=troubles,
    )


def _usable_gpus(torch: Any) -> tuple[int, list[str]]:
    """How many GPUs torch can use, and what is wrong with the others or with all."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if not torch.cuda.is_available():
            return 0, [_why_none(torch, caught)]
    tried = [_trouble(torch, index) for index in range(torch.cuda.device_count())]
    return tried.count(""), [trouble for trouble in tried if trouble]


def _why_none(torch: Any, caught: list[warnings.WarningMessage]) -> str:
    """torch warns of a driver that it cannot use; otherwise initialising CUDA raises the reason."""
    if caught:
        return first_line(caught[0].message)
    try:
        torch.cuda.init()
    except Exception as error:
        return first_line(error)
    return "torch finds no GPU"


def _trouble(torch: Any, index: int) -> str:
    """What is wrong with a first small sum on a GPU; blank if nothing is."""
    try:
        total = torch.ones(8, device=f"cuda:{index}").sum().item()
    except Exception as error:
        return f"GPU {index}: {first_line(error)}"
    return "" if total == 8 else f"GPU {index}: the sum of eight ones is {total:g}"


if __name__ == "__main__":
    gc.disable()
    print(torch_facts(sys.argv[1]).model_dump_json())
    gc.freeze()
