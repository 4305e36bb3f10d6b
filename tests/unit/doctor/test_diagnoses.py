"""Each check of the doctor, on facts of machines that do not exist."""

from __future__ import annotations

import os
import resource
import socket
import tempfile
import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import psutil
import pynvml
import pytest
from helpers.machines import CPU_BUILD, CUDA_BUILD, GIB, fake_nvml

from spbench.doctor import checks, noise
from spbench.doctor.checks import DeviceChoice, Diagnosis, Space, TorchFacts, gpus_seen
from spbench.doctor.noise import Load
from spbench.results.cgroup import Allowed
from spbench.results.environment import visible
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


def test_how_gpus_are_joined() -> None:
    """A path between sockets is a warning, and the remedy names GPUs without one."""
    here = seen("A", "A", "A", "A")
    linked = dict.fromkeys(combinations(range(4), 2), NVLINK)
    check(checks.gpu_links(linked, here), "ok", "NVLink between all 6 pairs")
    halves = dict.fromkeys(((0, 2), (1, 3)), "one PCIe switch (PIX)")
    apart = dict.fromkeys(((0, 1), (0, 3), (1, 2), (2, 3)), BETWEEN_SOCKETS)
    diagnosis = checks.gpu_links(halves | apart, here)
    check(diagnosis, "warn", "between sockets (SYS): 4 pairs, one PCIe switch (PIX): 2 pairs")
    assert "CUDA_VISIBLE_DEVICES=0,2 avoids paths between sockets" in diagnosis.remedy
    check(checks.gpu_links(halves | apart, [here[1], here[3]]), "ok", "(PIX): 1 pair")
    lonely = checks.gpu_links(apart, [here[0], here[1]])
    assert (lonely.status, "avoids" in lonely.remedy) == ("warn", False)
    check(checks.gpu_links({}, here), "ok", "does not tell")


@pytest.mark.parametrize(
    ("ours", "quota", "ranks", "device", "status", "text", "remedy"),
    [
        (16, None, 8, "cpu", "ok", "16 cores", ""),
        (4, None, 4, "cpu", "ok", "4 of 16 cores usable", ""),
        (
            16,
            8.0,
            2,
            "cuda",
            "warn",
            "16 cores, but the control group's quota is the time of 8",
            "--cpuset-cpus",
        ),
        (4, 8.0, 2, "cpu", "ok", "4 of 16 cores usable", ""),
        (
            4,
            None,
            8,
            "cpu",
            "warn",
            "4 of 16 cores usable, fewer than the 8 ranks",
            "at most 4 ranks",
        ),
        (1, None, 2, "cpu", "warn", "1 of 16 cores usable, fewer than the 2 ranks", "more cores"),
        (4, None, 8, "cuda", "ok", "4 of 16 cores usable", ""),
    ],
)
def test_cores(
    ours: int, quota: float | None, ranks: int, device: Device, status: str, text: str, remedy: str
) -> None:
    """Fewer usable cores than ranks, or a quota below them, is a warning."""
    check(checks.cores(16, ours, Allowed(cores=quota), ranks, device), status, text, remedy)


def test_memory() -> None:
    """Less free or allowed memory than the ranks need is a warning."""
    none = Allowed()
    check(checks.memory(64 * GIB, 32 * GIB, none, 8), "ok", "32 of 64 GiB free")
    check(checks.memory(64 * GIB, 3 * GIB, none, 8), "warn", "3 of 64 GiB free", "need about 8 GiB")
    for limit, status in ((16, "ok"), (4, "warn")):
        diagnosis = checks.memory(64 * GIB, 32 * GIB, Allowed(memory_bytes=limit * GIB), 8)
        check(diagnosis, status, f"free; the control group allows {limit} GiB")
    diagnosis = checks.memory(64 * GIB, 32 * GIB, Allowed(memory_bytes=2 * 64 * GIB), 8)
    assert "allows" not in diagnosis.found


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


def test_a_folder_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial file is removed again; a folder that cannot be written says why."""
    space = checks.space(tmp_path)
    assert (space.why_not, 0 < space.free_bytes <= space.total_bytes) == ("", True)
    assert list(tmp_path.iterdir()) == []
    assert checks.space(tmp_path / "nowhere").why_not == "No such file or directory"
    assert checks.space(None).folder == tempfile.gettempdir()

    def none() -> NoReturn:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    assert checks.space(None).why_not == "No usable temporary directory found"


def test_open_files() -> None:
    """The files that a rank needs grow with the number of ranks."""
    check(checks.open_files(1024, 8), "ok", "1,024")
    check(
        checks.open_files(256, 8),
        "warn",
        "at most 256, and each of 8 ranks may need 384",
        "ulimit -n 384",
    )
    check(checks.open_files(None, 1024), "ok", "no limit")
    assert checks.soft_limit(resource.RLIMIT_NOFILE) in (
        None,
        resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )


def test_locked_memory(tmp_path: Path) -> None:
    """A limit on locked memory matters only with InfiniBand."""
    check(checks.locked_memory(2**23, []), "ok", "at most 8 MiB; without InfiniBand")
    check(
        checks.locked_memory(2**23, ["mlx5_0"]),
        "warn",
        "too little for InfiniBand (mlx5_0)",
        "ulimit -l",
    )
    check(checks.locked_memory(None, ["mlx5_0"]), "ok", "no limit")
    for name in ("mlx5_1", "mlx5_0"):
        (tmp_path / "ib" / name).mkdir(parents=True)
    assert checks.infiniband(tmp_path / "ib") == ["mlx5_0", "mlx5_1"]
    assert checks.infiniband(tmp_path / "none") == []


THERE = {"lo": ["127.0.0.1", "::1"], "eth0": ["10.0.0.5"]}


@pytest.mark.parametrize(
    ("addresses", "chosen", "status", "text", "remedy"),
    [
        (["10.0.0.5"], "", "ok", "box is 10.0.0.5", ""),
        (["127.0.1.1"], "", "ok", "127.0.1.1, which is enough for one machine", ""),
        (["::1%lo"], "", "ok", "enough for one machine", ""),
        (["192.168.7.7"], "", "warn", "192.168.7.7, which is not an address of this", "/etc/hosts"),
        ([], "", "warn", "box does not resolve;", "/etc/hosts"),
        (None, "", "warn", "did not resolve within 5 s", "GLOO_SOCKET_IFNAME"),
        ([], "eth0", "ok", "gloo listens on eth0", ""),
        ([], "lo,eth0", "ok", "gloo listens on lo,eth0", ""),
        ([], "eth7", "fail", "there is no interface 'eth7'", "one of lo, eth0"),
    ],
)
def test_the_host_name(
    addresses: list[str] | None, chosen: str, status: str, text: str, remedy: str
) -> None:
    """The name should resolve to this machine; a chosen interface must exist."""
    check(checks.host_name("box", addresses, THERE, chosen, "cpu"), status, text, remedy)


def test_a_host_name_that_matters_less() -> None:
    """On GPUs gloo's interface is only a warning; unknown interfaces are not a problem."""
    diagnosis = checks.host_name("box", [], THERE, "eth7", "cuda")
    check(diagnosis, "warn", "there is no interface 'eth7'", "one of")
    check(checks.host_name("box", [], {}, "eth7", "cpu"), "ok", "gloo listens on eth7")
    check(checks.host_name("box", ["10.9.9.9"], {}, "", "cpu"), "ok", "box is 10.9.9.9")


def test_names_are_resolved_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name resolves, does not resolve, or takes too long."""
    assert "127.0.0.1" in (checks.addresses_of("127.0.0.1") or [])
    assert "127.0.0.1" in [
        address for of_interface in checks.interfaces().values() for address in of_interface
    ]

    def unknown(*_: object, **__: object) -> NoReturn:
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert checks.addresses_of("nobody") == []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(0.2) or [])
    assert checks.addresses_of("slow", timeout_s=0.01) is None


def test_variables_are_told() -> None:
    """Variables are listed with secrets hidden; those that distort figures are a warning."""
    diagnosis = checks.settings(
        {"NCCL_DEBUG": "INFO", "TORCH_TOKEN": "hunter2", "SLURM_JOB_ID": "7"}
    )
    check(diagnosis, "ok", "NCCL_DEBUG=INFO, TORCH_TOKEN=(hidden)")
    assert "hunter2" not in diagnosis.found
    assert "SLURM" not in diagnosis.found
    check(checks.settings({"HOME": "/root"}), "ok", "none that matter")
    spoilt = {"CUDA_LAUNCH_BLOCKING": "1", "NCCL_P2P_DISABLE": "0", "SPBENCH_FAULT": "x"}
    diagnosis = checks.settings(spoilt)
    check(diagnosis, "warn", "CUDA_LAUNCH_BLOCKING=1", "unset CUDA_LAUNCH_BLOCKING SPBENCH_FAULT,")


def test_others_at_work() -> None:
    """Other processes on over a tenth of a CPU's cores are a warning; on GPUs only a fact."""
    busy = Load(cores=8, busy_cores=1.26, load_average=2.0, busiest=[("make (7)", 1.2)])
    text = "other processes use 1.3 of 8 cores; load average 2.0"
    check(noise.quiet(busy, "cpu"), "warn", text, "end them or wait (make (7) uses 1.2);")
    check(noise.quiet(busy, "cuda"), "ok", text)
    check(
        noise.quiet(Load(cores=8, busy_cores=0.5), "cpu"),
        "ok",
        "other processes use 0.5 of 8 cores",
    )
    check(noise.quiet(Load(cores=1, busy_cores=0.9), "cpu"), "warn", "of 1 core", "wait until")


def test_who_is_at_work_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cores of other processes are counted and named; those of this process are not."""
    shares = {os.getpid(): 50.0, 2: 120.0, 3: 1.0}

    class Process:
        def __init__(self, pid: int | None = None) -> None:
            self.pid = pid or os.getpid()

        def cpu_percent(self) -> float:
            if self.pid == 4:
                raise psutil.NoSuchProcess(4)
            return shares[self.pid]

        def name(self) -> str:
            return f"p{self.pid}"

    monkeypatch.setattr(psutil, "Process", Process)
    everyone = [Process(pid) for pid in (2, 3, 4, os.getpid())]
    monkeypatch.setattr(psutil, "process_iter", lambda: everyone)
    monkeypatch.setattr(psutil, "cpu_percent", lambda: 50.0)
    monkeypatch.setattr(psutil, "cpu_count", lambda: 4)
    load = noise.load(lambda _: None)
    assert (load.cores, load.busy_cores) == (4, pytest.approx(1.5))
    assert list(load.busiest) == [("p2 (2)", pytest.approx(1.2))]
