"""Each check of the doctor, on facts of machines that do not exist."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pynvml
import pytest
from helpers.golden import Golden
from helpers.machines import CPU_BUILD, CUDA_BUILD, GIB, fake_nvml

from spbench.doctor import machine_checks as checks
from spbench.doctor.machine_checks import DeviceChoice, Diagnosis, Space, TorchFacts, gpus_seen
from spbench.results.machine import visible
from spbench.results.nvml import BETWEEN_SOCKETS, NVLINK, GpuState, NvmlReport, read_nvml
from spbench.workload.case import Device

TORN = CUDA_BUILD.model_copy(update={"gpus": 0, "troubles": ["CUDA unknown error"]})


def check(diagnosis: Diagnosis, status: str, text: str, remedy: str = "") -> None:
    """Asserts status, text and remedy; only warn and fail have a remedy."""
    assert diagnosis.status == status, diagnosis
    assert text in diagnosis.found
    assert remedy in diagnosis.remedy
    assert bool(diagnosis.remedy) == (status in ("warn", "fail"))


@pytest.mark.parametrize(
    ("version", "status"), [((3, 11, 0), "ok"), ((3, 14, 1), "ok"), ((3, 10, 9), "fail")]
)
def test_python_must_be_new_enough(version: tuple[int, ...], status: str) -> None:
    """Python must be 3.11 or newer."""
    check(checks.python(version), status, ".".join(map(str, version)))


@pytest.mark.parametrize(
    ("version", "loaded", "status", "text", "remedy"),
    [
        ("", "", "fail", "not installed", "pip install 'torch>=2.11'"),
        ("2.9.1+cu128", CUDA_BUILD, "fail", "2.9.1+cu128 is too old", "pip install"),
        ("odd", CUDA_BUILD, "fail", "odd is too old", "pip install"),
        (
            "2.12.0",
            "ImportError: libnccl.so.2",
            "fail",
            "cannot be loaded: ImportErr",
            "import torch",
        ),
        (
            "2.13.0",
            CUDA_BUILD,
            "fail",
            "2.12.0 is loaded, although pip installed 2.13.0",
            "PYTHONPATH",
        ),
        ("2.12.0+cpu", CPU_BUILD, "ok", "2.12.0+cpu, built for the CPU", ""),
        ("2.12.0a0+git1", CUDA_BUILD, "ok", "built for CUDA 12.8", ""),
    ],
)
def test_torch_must_be_there_and_load(
    version: str, loaded: TorchFacts | str, status: str, text: str, remedy: str
) -> None:
    """torch must be installed, 2.11 or newer, loadable, and the torch that pip installed."""
    check(checks.torch(version, loaded), status, text, remedy)


@pytest.mark.parametrize(
    ("choice", "gpu_count", "loaded", "device"),
    [
        ("auto", 8, CUDA_BUILD, "cuda"),
        ("auto", 8, CPU_BUILD, "cpu"),
        ("auto", 0, CUDA_BUILD, "cpu"),
        ("auto", 8, "broken", "cuda"),
        ("cuda", 0, CPU_BUILD, "cuda"),
        ("cpu", 8, CUDA_BUILD, "cpu"),
    ],
)
def test_where_ranks_are_tried(
    choice: DeviceChoice, gpu_count: int, loaded: TorchFacts | str, device: Device
) -> None:
    """The device is that of --device; auto takes GPUs if torch was built for them."""
    assert checks.device_of(choice, gpu_count, loaded) == device


@pytest.mark.parametrize(
    ("loaded", "choice", "status", "text", "remedy"),
    [
        (CUDA_BUILD, "auto", "ok", "torch computes on 8 GPUs", ""),
        (
            CPU_BUILD,
            "auto",
            "warn",
            "there are 8 GPUs, but torch is built for the CPU only",
            "--device cpu",
        ),
        (CPU_BUILD, "cuda", "fail", "built for the CPU only", "pytorch.org/get-started"),
        (TORN, "auto", "fail", "can use 0 of 8 GPUs: CUDA unknown error", "nvidia-smi"),
        (CUDA_BUILD.model_copy(update={"gpus": 7}), "cuda", "warn", "7 of the 8", "nvidia-smi -L"),
    ],
)
def test_torch_must_be_able_to_use_the_gpus(
    loaded: TorchFacts, choice: DeviceChoice, status: str, text: str, remedy: str
) -> None:
    """A CPU build beside GPUs is a failure only where cuda was asked for."""
    check(checks.cuda(loaded, 8, choice), status, text, remedy)


@pytest.mark.parametrize(
    ("knows", "built", "usable", "status", "text"),
    [
        ((12, 8), "12.8", 8, "ok", "570.1 for CUDA 12.8"),
        ((12, 2), "12.8", 8, "ok", "for CUDA 12.2"),  # minor versions are compatible
        ((12, 8), "13.0", 0, "fail", "for CUDA 12.8 is too old for torch's CUDA 13.0"),
        ((12, 8), "13.0", 8, "ok", "for CUDA 12.8"),  # by a compatibility package
        ((11, 4), "15.0", 0, "fail", "too old"),
        (None, "12.8", 8, "ok", "570.1"),
        ((12, 8), "", 0, "skipped", "570.1; torch is built for the CPU and needs no driver"),
    ],
)
def test_the_driver_must_be_as_new_as_torchs_cuda(
    knows: tuple[int, int] | None, built: str, usable: int, status: str, text: str
) -> None:
    """The major versions are compared, and the remedy names a driver that works."""
    loaded = CUDA_BUILD.model_copy(update={"cuda": built, "gpus": usable})
    diagnosis = checks.driver("570.1", knows, loaded)
    check(diagnosis, status, text)
    assert ("580 or newer" in diagnosis.remedy) == (status == "fail" and built == "13.0")


def test_the_backend_must_be_built_in() -> None:
    """GPUs need NCCL, whose version is shown; a CPU needs gloo."""
    check(checks.backend(CUDA_BUILD, "cuda"), "ok", "2.27.3")
    check(checks.backend(CUDA_BUILD, "cpu"), "ok", "built in")
    check(checks.backend(CPU_BUILD, "cuda"), "fail", "built without it", "built for CUDA")
    check(checks.backend(TorchFacts(version="2.12.0"), "cpu"), "fail", "without it", "reinstall")
    assert checks.backend(CPU_BUILD, "cuda").check == "nccl"


def failing(code: int) -> Callable[..., NoReturn]:
    def fail(*_: object) -> NoReturn:
        raise pynvml.NVMLError(code)

    return fail


def test_what_nvml_tells() -> None:
    """NVML tells the driver, its CUDA, and each GPU's state and links; a power cap is normal."""
    report = read_nvml(fake_nvml())
    assert (report.error, report.driver, report.cuda) == ("", "570.1", (12, 8))
    assert [gpu.throttled for gpu in report.gpus] == [(), (), ("thermal slowdown",)]
    assert [gpu.processes for gpu in report.gpus] == [0, 0, 1]
    assert [gpu.used_bytes for gpu in report.gpus] == [0, GIB, 2 * GIB]
    assert report.paths == {(0, 1): NVLINK, (0, 2): BETWEEN_SOCKETS, (1, 2): BETWEEN_SOCKETS}


def test_what_nvml_does_not_tell_is_left_open() -> None:
    """Any question may fail without the others; older drivers have an older question for memory."""

    def memory(index: int, version: int | None = None) -> SimpleNamespace:
        if version is not None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return SimpleNamespace(used=7)

    names = [name for name in vars(fake_nvml()) if name.startswith("nvmlDevice")]
    kept = ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex")
    silent = {name: failing(3) for name in names if name not in kept}
    report = read_nvml(fake_nvml(**silent, nvmlSystemGetCudaDriverVersion_v2=failing(3)))
    assert report.gpus == [GpuState(index=index) for index in range(3)]
    assert (report.paths, report.cuda) == ({}, None)
    assert read_nvml(fake_nvml(nvmlDeviceGetMemoryInfo=memory)).gpus[0].used_bytes == 7


def test_a_gpu_that_is_lost_is_a_failure() -> None:
    """A lost GPU is a failure whatever --device says."""
    lost = read_nvml(fake_nvml(nvmlDeviceGetHandleByIndex=failing(pynvml.NVML_ERROR_GPU_IS_LOST)))
    check(gpus_seen(lost, lost.gpus, "auto", None), "fail", "GPU 0: GPU is lost", "restart")


@pytest.mark.parametrize(
    ("code", "auto", "remedy"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "ok", "--gpus all"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "warn", "modprobe nvidia"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "warn", "restart the machine"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "warn", "/dev/nvidia"),
        (pynvml.NVML_ERROR_UNKNOWN, "warn", "nvidia-smi"),
    ],
)
def test_a_driver_that_does_not_answer(code: int, auto: str, remedy: str) -> None:
    """NVML's error is shown with a remedy; without a driver the CPU still works."""
    report = read_nvml(fake_nvml(nvmlInit=failing(code)))
    text = str(pynvml.NVMLError(code))
    check(gpus_seen(report, [], "cuda", None), "fail", text, remedy)
    check(gpus_seen(report, [], "auto", None), auto, text)


def test_gpus_that_are_named_without_a_driver() -> None:
    """The missing driver is said; a variable that hides all GPUs is no warning."""
    none = NvmlReport(error="NVML Shared Library Not Found", code=12)
    for name in ("MIG-3f9c1a2e-0000-5000-8000-000000000001", "GPU-3f9c1a2e", "0"):
        check(gpus_seen(none, [], "auto", name), "warn", "no driver is here", "NVIDIA's driver")
        check(gpus_seen(none, [], "cuda", name), "fail", "Not Found", "NVIDIA's driver")
    for hidden in (None, "", "-1", "NoDevFiles"):
        check(gpus_seen(none, [], "auto", hidden), "ok", "ranks run on the CPU")


def test_gpus_that_cuda_alone_shows() -> None:
    """A container without NVML has them, and is told how to get it."""
    none = NvmlReport(error="NVML Shared Library Not Found", code=12)
    for choice in ("auto", "cuda"):
        diagnosis = gpus_seen(none, seen("H200", "H200"), choice, None)
        check(diagnosis, "warn", "2 x H200, as CUDA shows; NVML does not", "compute,utility")


def seen(*names: str) -> list[GpuState]:
    return [GpuState(index=index, name=name) for index, name in enumerate(names)]


def test_the_gpus_that_there_are() -> None:
    """How many of which; of several models the slowest sets the pace; none is a failure only
    where they are asked for."""
    alike, mixed = seen("A100", "A100"), seen("A100", "A30")
    report = NvmlReport(driver="570.1", gpus=alike)
    check(gpus_seen(report, alike, "cuda", None), "ok", "2 x A100")
    check(gpus_seen(report, mixed, "auto", None), "warn", "1 x A100, 1 x A30", "one model")
    check(gpus_seen(report, [], "auto", ""), "ok", "CUDA_VISIBLE_DEVICES='' hides all of 2 GPUs")
    check(gpus_seen(report, [], "cuda", ""), "fail", "hides all", "unset CUDA_VISIBLE")
    check(gpus_seen(NvmlReport(), [], "cuda", None), "fail", "the driver shows none", "lspci")


@pytest.mark.parametrize(
    ("shown", "indices"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        ("", []),
        ("-1", []),
        ("1,7,2", [1]),
        ("GPU-2a, 0", [2, 0]),
        ("MIG-77", []),
    ],
)
def test_which_gpus_are_visible(shown: str | None, indices: list[int]) -> None:
    """GPUs are named by number or identity, up to the first unknown name, as CUDA does it."""
    assert [gpu.index for gpu in visible(read_nvml(fake_nvml()).gpus, shown)] == indices


def test_gpus_that_others_use() -> None:
    """Processes, memory and work each show use; other containers may show in only one."""
    here = read_nvml(fake_nvml()).gpus
    check(checks.gpus_idle(here[:1]), "ok", "no other process")
    diagnosis = checks.gpus_idle(here)
    check(diagnosis, "warn", "GPU 1: 1.0 GiB in use, 45 % busy; GPU 2: 1 compute process, 2.0 GiB")
    assert "CUDA_VISIBLE_DEVICES" in diagnosis.remedy
    check(checks.gpus_idle(seen("A100")), "ok", "no other process")


def test_gpus_that_are_held_down() -> None:
    """The GPU and the cause of its throttling are named."""
    here = read_nvml(fake_nvml()).gpus
    check(checks.gpu_clocks(here[:2]), "ok", "not throttled; a locked clock")
    check(checks.gpu_clocks(here), "warn", "GPU 2: thermal slowdown", "cool")


def test_how_gpus_are_joined(golden: Golden) -> None:
    """A path between sockets is a warning, and the remedy names GPUs without one."""
    here = seen("A", "A", "A", "A")
    linked = dict.fromkeys(combinations(range(4), 2), NVLINK)
    check(checks.gpu_links(linked, here), "ok", "NVLink between all 6 pairs")
    halves = dict.fromkeys(((0, 2), (1, 3)), "one PCIe switch (PIX)")
    apart = dict.fromkeys(((0, 1), (0, 3), (1, 2), (2, 3)), BETWEEN_SOCKETS)
    diagnosis = checks.gpu_links(halves | apart, here)
    check(diagnosis, "warn", "between sockets (SYS): 4 pairs, one PCIe switch (PIX): 2 pairs")
    golden(diagnosis.remedy)
    check(checks.gpu_links(halves | apart, [here[1], here[3]]), "ok", "(PIX): 1 pair")
    lonely = checks.gpu_links(apart, [here[0], here[1]])
    assert (lonely.status, "avoids" in lonely.remedy) == ("warn", False)
    check(checks.gpu_links({}, here), "ok", "does not tell")


@pytest.mark.parametrize(
    ("ours", "ranks", "device", "status", "text", "remedy"),
    [
        (16, 8, "cpu", "ok", "16 cores", ""),
        (4, 4, "cpu", "ok", "4 of 16 cores usable", ""),
        (4, 8, "cpu", "warn", "4 of 16 cores usable, fewer than the 8 ranks", "at most 4 ranks"),
        (1, 2, "cpu", "warn", "1 of 16 cores usable, fewer than the 2 ranks", "more cores"),
        (4, 8, "cuda", "ok", "4 of 16 cores usable", ""),
    ],
)
def test_cores(ours: int, ranks: int, device: Device, status: str, text: str, remedy: str) -> None:
    """Fewer usable cores than ranks are a warning on a CPU."""
    check(checks.cores(16, ours, ranks, device), status, text, remedy)


def test_memory() -> None:
    """Less free memory than the ranks need is a warning."""
    check(checks.memory(64 * GIB, 32 * GIB, 8), "ok", "32 of 64 GiB free")
    check(checks.memory(64 * GIB, 3 * GIB, 8), "warn", "3 of 64 GiB free", "need about 8 GiB")


def test_shared_memory() -> None:
    """/dev/shm must be writable, and NCCL needs 1 GiB of it."""
    small = Space(folder="/dev/shm", total_bytes=2**26, free_bytes=2**25)
    check(checks.shared_memory(small, 8, "cuda"), "warn", "32 MiB of 64 MiB free", "--shm-size")
    check(checks.shared_memory(small, 1, "cuda"), "ok", "32 MiB of 64 MiB free")
    check(checks.shared_memory(small, 8, "cpu"), "ok", "free")
    large = Space(folder="/dev/shm", total_bytes=16 * GIB, free_bytes=8 * GIB)
    check(checks.shared_memory(large, 8, "cuda"), "ok", "8 GiB of 16 GiB free")
    closed = Space(folder="/dev/shm", why_not="Read-only file system")
    check(checks.shared_memory(closed, 2, "cpu"), "fail", "Read-only", "--shm-size")


def test_folders() -> None:
    """Folders must be writable and have some free space."""
    wide = Space(folder="/data", total_bytes=64 * GIB, free_bytes=8 * GIB)
    tight = Space(folder="/data", total_bytes=64 * GIB, free_bytes=GIB // 2)
    closed = Space(folder="/data", why_not="Permission denied")
    check(checks.folder("this folder", wide), "ok", "8 GiB free in /data")
    check(checks.folder("this folder", tight), "warn", "512 MiB free in /data", "free some space")
    check(checks.folder("this folder", closed), "fail", "cannot write to /data: Perm", "--out")
    check(checks.folder("temporary", closed), "fail", "cannot write to /data", "TMPDIR")


def test_a_folder_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    """The trial file is removed again; a folder that cannot be written says why."""
    space = checks.space(tmp_path)
    assert (space.why_not, 0 < space.free_bytes <= space.total_bytes) == ("", True)
    assert list(tmp_path.iterdir()) == []
    golden(checks.space(tmp_path / "nowhere").why_not)
    assert checks.space(None).folder == tempfile.gettempdir()

    def none() -> NoReturn:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    golden(checks.space(None).why_not, "second")


def test_variables_are_told() -> None:
    """Variables are listed with secrets hidden; those that distort figures are a warning."""
    diagnosis = checks.settings(
        {"NCCL_DEBUG": "INFO", "TORCH_TOKEN": "hunter2", "SLURM_JOB_ID": "7"}, [], "cpu"
    )
    check(diagnosis, "ok", "NCCL_DEBUG=INFO, TORCH_TOKEN=(hidden)")
    assert "hunter2" not in diagnosis.found
    assert "SLURM" not in diagnosis.found
    check(checks.settings({"HOME": "/root"}, ["lo"], "cpu"), "ok", "none that matter")
    spoilt = {"CUDA_LAUNCH_BLOCKING": "1", "NCCL_P2P_DISABLE": "0", "SPBENCH_FAULT": "x"}
    diagnosis = checks.settings(spoilt, [], "cuda")
    check(diagnosis, "warn", "CUDA_LAUNCH_BLOCKING=1", "unset CUDA_LAUNCH_BLOCKING SPBENCH_FAULT,")


def test_gloos_interface() -> None:
    """One that is not there is a failure on a CPU, a warning on GPUs; where the system lists none,
    nothing is known."""
    chosen, there = {"GLOO_SOCKET_IFNAME": "eth7"}, ["lo", "eth0"]
    text = "GLOO_SOCKET_IFNAME=eth7, but there is no interface 'eth7'"
    check(checks.settings(chosen, there, "cpu"), "fail", text, "one of lo")
    check(checks.settings(chosen, there, "cuda"), "warn", text, "one of lo")
    check(checks.settings(chosen, [], "cpu"), "ok", "GLOO_SOCKET_IFNAME=eth7")
    several = {"GLOO_SOCKET_IFNAME": "lo,eth0"}
    check(checks.settings(several, there, "cpu"), "ok", "GLOO_SOCKET_IFNAME=lo,eth0")
