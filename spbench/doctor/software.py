"""Python, torch, and whether torch can use what there is."""

from __future__ import annotations

import re
from collections.abc import Sequence

from spbench.doctor.diagnosis import DeviceChoice, Diagnosis, fail, ok, skipped, warn
from spbench.doctor.torch_probe import TorchFacts
from spbench.text import counted
from spbench.workload.case import Device

LEAST_PYTHON = (3, 11)
LEAST_TORCH = (2, 11)
INSTALL = "pip install 'torch>=2.11'"
FRESH = f"install torch afresh, best in a new environment: {INSTALL}"
LOADS = f"see what python -c 'import torch' says; if it is only slow, give --timeout more; {FRESH}"
CUDA_BUILD = "install a torch that is built for CUDA (https://pytorch.org/get-started)"
DRIVERS = {12: "525", 13: "580"}
"""The first driver for each major version of CUDA; any of that version serves all of it."""


def python(version: Sequence[int]) -> Diagnosis:
    said = ".".join(map(str, version[:3]))
    if tuple(version[:2]) < LEAST_PYTHON:
        return fail("python", f"{said} is too old", "use Python 3.11 or newer")
    return ok("python", said)


def torch(version: str, loaded: TorchFacts | str) -> Diagnosis:
    """``version`` as its package says, blank without one; ``loaded``, or why it cannot be."""
    if not version:
        return fail("torch", "not installed", INSTALL)
    if _numbers(version) < LEAST_TORCH:
        return fail("torch", f"{version} is too old", INSTALL)
    if isinstance(loaded, str):
        return fail("torch", f"{version} cannot be loaded: {loaded}", LOADS)
    if _numbers(loaded.version) != _numbers(version):
        said = f"{loaded.version} is loaded, and {version} is what pip installed"
        return fail("torch", said, "look for another torch in PYTHONPATH, or in this folder")
    built = f"built for CUDA {loaded.cuda}" if loaded.cuda else "built for the CPU"
    return ok("torch", f"{loaded.version}, {built}")


def _numbers(version: str) -> tuple[int, ...]:
    """2.11.0a0+git1 is (2, 11); what is no version at all is older than any."""
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:2]))


def device_of(asked: DeviceChoice, gpus: int, loaded: TorchFacts | str) -> Device:
    """Where ranks are tried: with auto not on GPUs that this torch was not built for."""
    if asked != "auto":
        return asked
    is_for_cpu = isinstance(loaded, TorchFacts) and not loaded.cuda
    return "cuda" if gpus and not is_for_cpu else "cpu"


def cuda(loaded: TorchFacts, gpus: int, asked: DeviceChoice) -> Diagnosis:
    """Whether torch can use all of the ``gpus`` that the driver shows, one or more."""
    here = counted(gpus, "GPU")
    if not loaded.cuda:
        grade = fail if asked == "cuda" else warn
        found = f"torch, beside {here}, is built for the CPU alone"
        return grade("cuda", found, f"{CUDA_BUILD}, or compute with --device cpu")
    if loaded.troubles:
        found = f"torch can use {loaded.gpus} of {here}: {'; '.join(loaded.troubles)}"
        return fail("cuda", found, "see what nvidia-smi says; until then --device cpu works")
    if loaded.gpus < gpus:
        found = f"torch sees {loaded.gpus} of the {here} that the driver shows"
        return warn("cuda", found, "see CUDA_VISIBLE_DEVICES, and what nvidia-smi -L lists")
    return ok("cuda", f"torch computes on {here}")


def driver(version: str, knows: tuple[int, int] | None, loaded: TorchFacts) -> Diagnosis:
    """Whether the driver is new enough for the CUDA that torch was built for.

    ``knows``: the CUDA version that the driver itself was made for. A compatibility package may
    make an older one do: where torch can use a GPU, it does.
    """
    if not loaded.cuda:
        return skipped("driver", f"{version}; this torch does without one")
    if knows is None:
        return ok("driver", version)
    said = f"{version} for CUDA {knows[0]}.{knows[1]}"
    major = _numbers(loaded.cuda)[0]
    if knows[0] < major and not loaded.gpus:
        newer = f"driver {DRIVERS[major]} or newer" if major in DRIVERS else "a newer driver"
        remedy = f"install {newer}, or a torch built for CUDA {knows[0]}"
        return fail("driver", f"{said} is too old for torch's CUDA {loaded.cuda}", remedy)
    return ok("driver", said)


def backend(loaded: TorchFacts, device: Device) -> Diagnosis:
    """What moves data between ranks."""
    name = "nccl" if device == "cuda" else "gloo"
    if name not in loaded.backends:
        remedy = CUDA_BUILD if device == "cuda" else FRESH
        return fail(name, "this torch is built without it", remedy)
    return ok(name, loaded.nccl if device == "cuda" and loaded.nccl else "built in")
