"""Checks Python, torch, and whether torch can use the driver, the GPUs and its backend."""

import re
from collections.abc import Sequence

from spbench.doctor.diagnosis import DeviceChoice, Diagnosis, fail, ok, skipped, warn
from spbench.doctor.torch_probe import TorchFacts
from spbench.text import counted
from spbench.workload.case import Device

LEAST_PYTHON = (3, 11)
LEAST_TORCH = (2, 11)
INSTALL = "pip install 'torch>=2.11'"
REINSTALL = f"reinstall torch, best in a new environment: {INSTALL}"
LOADS = f"read what python -c 'import torch' says; raise --timeout if it is slow; or {REINSTALL}"
CUDA_BUILD = "install a torch that is built for CUDA (https://pytorch.org/get-started)"
DRIVERS = {12: "525", 13: "580"}
"""The oldest driver for each major version of CUDA, which works for all of its minor versions."""


def python(version: Sequence[int]) -> Diagnosis:
    found = ".".join(map(str, version[:3]))
    if tuple(version[:2]) < LEAST_PYTHON:
        return fail("python", f"{found} is too old", "use Python 3.11 or newer")
    return ok("python", found)


def torch(version: str, loaded: TorchFacts | str) -> Diagnosis:
    """``version``: that of the installed package, blank if there is none. ``loaded``: what torch
    says of itself, or why it cannot be loaded."""
    if not version:
        return fail("torch", "not installed", INSTALL)
    if _numbers(version) < LEAST_TORCH:
        return fail("torch", f"{version} is too old", INSTALL)
    if isinstance(loaded, str):
        return fail("torch", f"{version} cannot be loaded: {loaded}", LOADS)
    if _numbers(loaded.version) != _numbers(version):
        found = f"{loaded.version} is loaded, although pip installed {version}"
        return fail("torch", found, "remove the other torch from PYTHONPATH or this folder")
    built = f"built for CUDA {loaded.cuda}" if loaded.cuda else "built for the CPU"
    return ok("torch", f"{loaded.version}, {built}")


def _numbers(version: str) -> tuple[int, ...]:
    """(2, 11) for 2.11.0a0+git1; empty, and so older than any, for what is not a version."""
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:2]))


def device_of(choice: DeviceChoice, gpus: int, loaded: TorchFacts | str) -> Device:
    """The device that ranks are tried on; auto avoids GPUs that torch was not built for."""
    if choice != "auto":
        return choice
    return "cuda" if gpus and not (isinstance(loaded, TorchFacts) and not loaded.cuda) else "cpu"


def cuda(loaded: TorchFacts, gpus: int, choice: DeviceChoice) -> Diagnosis:
    """Whether torch can use all GPUs that the driver shows, which are ``gpus``, one or more."""
    shown = counted(gpus, "GPU")
    if not loaded.cuda:
        grade = fail if choice == "cuda" else warn
        found = f"there are {shown}, but torch is built for the CPU only"
        return grade("cuda", found, f"{CUDA_BUILD}, or use --device cpu")
    if loaded.troubles:
        found = f"torch can use {loaded.gpus} of {shown}: {'; '.join(loaded.troubles)}"
        return fail("cuda", found, "check the GPUs with nvidia-smi; --device cpu works meanwhile")
    if loaded.gpus < gpus:
        found = f"torch sees {loaded.gpus} of the {shown} that the driver shows"
        return warn("cuda", found, "compare CUDA_VISIBLE_DEVICES with what nvidia-smi -L lists")
    return ok("cuda", f"torch computes on {shown}")


def driver(version: str, cuda: tuple[int, int] | None, loaded: TorchFacts) -> Diagnosis:
    """Whether the driver is new enough for the CUDA that torch was built for.

    ``cuda``: the CUDA version that the driver was made for. A compatibility package may make an
    older driver work: it does wherever torch can use a GPU.
    """
    if not loaded.cuda:
        return skipped("driver", f"{version}; torch is built for the CPU and needs no driver")
    if cuda is None:
        return ok("driver", version)
    found = f"{version} for CUDA {cuda[0]}.{cuda[1]}"
    major = _numbers(loaded.cuda)[0]
    if cuda[0] < major and not loaded.gpus:
        newer = f"driver {DRIVERS[major]} or newer" if major in DRIVERS else "a newer driver"
        remedy = f"install {newer}, or a torch built for CUDA {cuda[0]}"
        return fail("driver", f"{found} is too old for torch's CUDA {loaded.cuda}", remedy)
    return ok("driver", found)


def backend(loaded: TorchFacts, device: Device) -> Diagnosis:
    """Whether torch has the library that moves data between ranks."""
    name = "nccl" if device == "cuda" else "gloo"
    if name not in loaded.backends:
        remedy = CUDA_BUILD if device == "cuda" else REINSTALL
        return fail(name, "torch is built without it", remedy)
    return ok(name, loaded.nccl if device == "cuda" and loaded.nccl else "built in")
