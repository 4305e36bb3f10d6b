"""Builds of torch and GPUs that are not there, for the doctor to look at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml

from spbench.doctor.machine_checks import TorchFacts

GIB = 2**30


BOTH = ["gloo", "nccl"]


CPU_BUILD = TorchFacts(version="2.12.0+cpu", backends=["gloo"])


CUDA_BUILD = TorchFacts(version="2.12.0", cuda="12.8", nccl="2.27.3", backends=BOTH, gpus=8)


def fake_nvml(**instead: Any) -> SimpleNamespace:
    """NVML of a machine with three GPUs: the first two by NVLink, the third at another socket,
    busy and hot."""
    linked = {(0, 1): 0}
    answers: dict[str, Any] = {
        "NVMLError": pynvml.NVMLError,
        "NVML_P2P_CAPS_INDEX_NVLINK": 2,
        "NVML_P2P_STATUS_OK": 0,
        "nvmlMemory_v2": 2,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 3,
        "nvmlSystemGetDriverVersion": lambda: "570.1",
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 12080,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda _: "NVIDIA H200",
        "nvmlDeviceGetUUID": lambda index: f"GPU-{index}abc",
        "nvmlDeviceGetMemoryInfo": lambda i, version=None: SimpleNamespace(used=i * GIB),
        "nvmlDeviceGetUtilizationRates": lambda index: SimpleNamespace(gpu=45 * index),
        "nvmlDeviceGetComputeRunningProcesses": lambda index: [object()] * (index == 2),
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda index: (4, 0, 0x40)[index],
        "nvmlDeviceGetP2PStatus": lambda a, b, _: linked.get((a, b), 5),
        "nvmlDeviceGetTopologyCommonAncestor": lambda a, b: 50,
    }
    return SimpleNamespace(**answers | instead)
