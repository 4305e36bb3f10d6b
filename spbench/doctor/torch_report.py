"""Loads torch and says what it can do here, as one line of JSON.

Run as ``python -m spbench.doctor.torch_report cuda|cpu``: a process of its own, since a torch with
a library missing, or a driver that does not answer, must not take ``spbench doctor`` along.
"""

from __future__ import annotations

import sys
import warnings

import torch

from spbench.comm.nccl_gloo import available_backends
from spbench.doctor.torch_facts import TorchFacts
from spbench.results.safe_query import told


def torch_facts(device: str) -> TorchFacts:
    """Of the GPUs only if ``device`` is cuda: to look at them takes seconds."""
    gpus, troubles = _gpus() if device == "cuda" and torch.version.cuda else (0, [])
    version = told(torch.cuda.nccl.version)
    return TorchFacts(
        version=str(torch.__version__),
        cuda=torch.version.cuda or "",
        nccl="" if version is None else ".".join(map(str, version)),
        backends=available_backends(),
        gpus=gpus,
        troubles=troubles,
    )


def _gpus() -> tuple[int, list[str]]:
    """How many can be used, and what is wrong with the others or with all."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if not torch.cuda.is_available():
            return 0, [_why_none(caught)]
    tried = [_trouble(index) for index in range(torch.cuda.device_count())]
    return sum(not one for one in tried), [one for one in tried if one]


def _why_none(caught: list[warnings.WarningMessage]) -> str:
    """torch warns of a driver that it cannot use, and raises when it is made to."""
    if caught:
        return _first_line(caught[0].message)
    try:
        torch.cuda.init()
    except Exception as error:
        return _first_line(error)
    return "torch finds no GPU"


def _trouble(index: int) -> str:
    """What a GPU answers to a first small sum; blank if that is right."""
    try:
        total = torch.ones(8, device=f"cuda:{index}").sum().item()
    except Exception as error:
        return f"GPU {index}: {_first_line(error)}"
    return "" if total == 8 else f"GPU {index}: eight ones sum up to {total:g}"


def _first_line(said: Warning | Exception | str) -> str:
    return str(said).strip().split("\n")[0][:300]


if __name__ == "__main__":
    print(torch_facts(sys.argv[1]).model_dump_json())
