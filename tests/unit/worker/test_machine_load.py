"""What a rank notes of its machine, and what disturbs a launch: all that it may, no more."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn, final

import psutil
import pynvml
import pytest
import torch
from helpers.golden import Golden

from spbench.comm.group import ShareOfGroup
from spbench.results.conditions import Conditions, as_columns
from spbench.worker import machine_load
from spbench.worker.machine_load import Gpu, Machine, hardware

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
QUIET: dict[str, Any] = {"host": "a", "cores": 8, "wall_s": 10.0, "busy_s": 20.0, "cpu_s": 10.0}
GPU: dict[str, Any] = {
    "gpu_clock_mhz": 1980.0,
    "gpu_power_w": 500.0,
    "gpu_temperature_c": 50.0,
    "gpu_throttle": [],
    "gpu_processes": 1,
    "hardware": "NVIDIA H200 140 GiB 700 W",
}


@final
class Alone(ShareOfGroup):  # type: ignore[misc]
    """One rank that tells when it meets the others, of which there are none."""

    def __init__(self, device: torch.device = CPU, met: Callable[[], object] = lambda: None):
        super().__init__(device, 1)
        self.barrier = met  # type: ignore[assignment]


def ranks(*of_each: dict[str, Any], **of_all: Any) -> list[Conditions]:
    return [Conditions.model_validate(of_all | one) for one in of_each]


def test_our_own_ranks_are_no_others() -> None:
    """A machine is quiet if all 20 core-seconds in 10 s are those of the ranks."""
    columns = as_columns("cpu", ranks(QUIET, QUIET))
    assert (columns["others_cores"], columns["noisy"]) == (0.0, "")


def test_work_of_others_makes_a_cpu_launch_noisy() -> None:
    """A tenth of the cores in use makes a launch noisy; on CUDA it is only recorded."""
    for busy_s, noisy in ((27.9, ""), (29.0, "others used 0.9 of 8 cores")):
        columns = as_columns("cpu", ranks(QUIET | {"busy_s": busy_s}, QUIET))
        assert columns["others_cores"] == pytest.approx((busy_s - 20) / 10)
        assert columns["noisy"] == noisy
    columns = as_columns("cuda", ranks(QUIET | {"busy_s": 50.0}, QUIET))
    assert (columns["others_cores"], columns["noisy"]) == (3.0, "")


@pytest.mark.parametrize(("busy_s", "others"), [(19.0, 0.0), (9.9, None), (0.0, None)])
def test_more_of_our_own_than_the_machine_counted(busy_s: float, others: float | None) -> None:
    """A little less than the ranks' own time counts as 0 cores, much less as not known."""
    columns = as_columns("cpu", ranks(QUIET | {"busy_s": busy_s}, QUIET | {"busy_s": busy_s}))
    assert (columns["others_cores"], columns["noisy"]) == (others, "")


def test_a_short_window_tells_nothing_of_others() -> None:
    """A window below half a second gives no figure, since ticks of 10 ms are too coarse."""
    for wall_s, others in ((0.49, None), (0.5, 8.0)):
        columns = as_columns("cpu", ranks(QUIET | {"wall_s": wall_s, "busy_s": 14.0}))
        assert columns["others_cores"] == others
        assert bool(columns["noisy"]) == (others is not None)


def test_the_host_that_is_taken_most_of_counts(golden: Golden) -> None:
    """The host with the largest share counts; ranks' time is deducted on their own host alone."""
    small = QUIET | {"host": "b", "busy_s": 15.0, "cores": 4}
    large = QUIET | {"host": "c", "busy_s": 110.0, "cpu_s": 100.0, "cores": 192}
    for of_ranks in (ranks(QUIET, QUIET, small, large), ranks(large, small, QUIET, QUIET)):
        columns = as_columns("cpu", of_ranks)
        assert columns["others_cores"] == pytest.approx(0.5)
        golden(columns["noisy"])


def test_what_is_not_known_is_blank() -> None:
    """A rank without conditions, or no rank at all, gives no figure and no noise."""
    for of_ranks in ([], [Conditions()], ranks(QUIET, QUIET | {"cpu_s": None})):
        columns = as_columns("cpu", of_ranks)
        assert (columns["noisy"], columns["gpu_clock_mhz"], columns["load_average"]) == (
            "",
            None,
            None,
        )
        assert columns["gpu_neighbours"] is None
    assert as_columns("cpu", [Conditions()])["others_cores"] is None


def test_a_rank_that_noted_nothing_keeps_its_number(golden: Golden) -> None:
    """Other ranks keep their numbers; the cores of other processes are not known then."""
    hot = ranks(QUIET | {"gpu": "y", "busy_s": 90.0, "gpu_throttle": ["thermal slowdown"]})
    columns = as_columns("cpu", [None, *hot])
    golden(columns["noisy"])
    assert columns["others_cores"] is None
    assert as_columns("cpu", [None])["hardware"] == ""


def test_both_clocks_are_those_of_the_gpu_that_differs_most() -> None:
    """Blank where either is not known."""
    alike = {"timed_clock_mhz": 1980.0, "silent_clock_mhz": 1975.0}
    capped = {"timed_clock_mhz": 1980.0, "silent_clock_mhz": 1700.0}
    columns = as_columns("cuda", ranks(alike, capped, {"timed_clock_mhz": 1000.0}))
    assert (columns["timed_clock_mhz"], columns["silent_clock_mhz"]) == (1980.0, 1700.0)
    assert "silent_clock_mhz" not in as_columns("cuda", ranks({"timed_clock_mhz": 1000.0}))


def test_retries_of_silent_blocks_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent steps have memory of their own, which a timed one need not have been short of."""
    seen = itertools.chain([5], [6, 9, 9, 11], itertools.repeat(11))
    monkeypatch.setattr(machine_load, "alloc_retries", lambda _: next(seen))
    machine = Machine(ShareOfGroup(torch.device("cpu"), 1))
    for is_silent in (False, True, False, True):
        machine.look(is_silent)
    assert machine.seen().alloc_retries == 1


def test_retries_of_the_allocator_disturb(golden: Golden) -> None:
    """They are counted, and the launch is noisy: emptying a cache takes long."""
    columns = as_columns("cuda", ranks({"alloc_retries": 0}, {"alloc_retries": 3}))
    assert columns["alloc_retries"] == 3
    golden(columns["noisy"])


def test_figures_of_gpus() -> None:
    """A row has the lowest clock, the highest power and temperature, and each hardware once."""
    hot = {"gpu_clock_mhz": 1200.0, "gpu_power_w": 300.0, "gpu_temperature_c": 88.0}
    columns = as_columns("cuda", ranks({"gpu": "x"}, {"gpu": "y"} | hot, **GPU))
    assert (columns["gpu_clock_mhz"], columns["gpu_power_w"]) == (1200.0, 500.0)
    assert (columns["gpu_temperature_c"], columns["gpu_neighbours"], columns["noisy"]) == (
        88.0,
        0,
        "",
    )
    assert columns["hardware"] == "NVIDIA H200 140 GiB 700 W"
    two = ranks({"hardware": "one"}, {"hardware": "other"}, {"hardware": "one"})
    assert as_columns("cuda", two)["hardware"] == "one, other"


def test_throttling_makes_noise_but_for_the_power_cap(golden: Golden) -> None:
    """The cap is recorded; heat, brakes and hardware slowdown are named with their GPU."""
    capped = {"gpu_throttle": ["power cap"]}
    hot = {"gpu_throttle": ["power cap", "hardware slowdown", "thermal slowdown"]}
    quiet = as_columns("cuda", ranks(capped | {"gpu": "x"}, {"gpu": "y"}, **GPU))
    assert (quiet["gpu_throttle"], quiet["noisy"]) == ("power cap", "")
    columns = as_columns("cuda", ranks(capped | {"gpu": "x"}, hot | {"gpu": "y"}, **GPU))
    golden(columns["gpu_throttle"])
    golden(columns["noisy"], "second")


def test_processes_of_others_on_a_gpu_make_noise(golden: Golden) -> None:
    """Neighbours are all processes but the ranks, of which several may share a GPU."""
    crowded = ranks({"gpu": "x", "gpu_processes": 2}, {"gpu": "y", "gpu_processes": 3}, **GPU)
    columns = as_columns("cuda", crowded)
    assert columns["gpu_neighbours"] == 2
    golden(columns["noisy"])
    shared = as_columns("cuda", ranks(*[{"gpu": "x", "gpu_processes": 2}] * 2, **GPU))
    assert (shared["gpu_neighbours"], shared["noisy"]) == (0, "")


def test_a_list_of_processes_without_ours_tells_nothing(golden: Golden) -> None:
    """Neighbours are then not known, which differs from 0; those of another GPU still count."""
    hidden = ranks({"gpu": "x", "gpu_processes": 0}, **GPU)
    assert as_columns("cuda", hidden)["gpu_neighbours"] is None
    half = ranks(*[{"gpu": "x", "gpu_processes": 1}] * 2, **GPU)
    assert as_columns("cuda", half)["gpu_neighbours"] is None
    both = as_columns("cuda", [*hidden, *ranks({"gpu": "y", "gpu_processes": 2}, **GPU)])
    assert both["gpu_neighbours"] == 1
    golden(both["noisy"])


def test_an_older_or_newer_rank_file_is_read() -> None:
    """Fields that this version does not know are ignored."""
    assert Conditions.model_validate({"host": "a", "humidity": 0.4}).host == "a"


def test_a_rank_sees_its_own_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank records wall time, its own core-seconds, and the machine's, stolen ones included."""
    seconds = {"user": 5.0, "nice": 1.0, "system": 2.0, "idle": 9.0, "steal": 1.0, "guest": 5.0}
    later = {name: 2 * value for name, value in seconds.items()}
    answers = iter([SimpleNamespace(**seconds), SimpleNamespace(**later)])
    monkeypatch.setattr(psutil, "cpu_times", lambda: next(answers))
    machine = Machine(Alone())
    end_s = time.process_time() + 0.05
    while time.process_time() < end_s:
        pass
    conditions = machine.seen()
    assert conditions.busy_s == 9.0
    assert conditions.cpu_s is not None and 0.05 <= conditions.cpu_s < 1.0
    assert conditions.wall_s is not None and conditions.wall_s >= 0.04
    assert (conditions.cores, conditions.gpu_clock_mhz) == (psutil.cpu_count(), None)
    assert conditions.load_average is not None and conditions.host


def test_ranks_meet_before_each_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks meet before each look, so that they see the same seconds."""
    order: list[str] = []

    def look() -> SimpleNamespace:
        order.append("look")
        return SimpleNamespace(user=1.0)

    monkeypatch.setattr(psutil, "cpu_times", look)
    Machine(Alone(met=lambda: order.append("meet"))).seen()
    assert order[-4:] == ["meet", "look"] * 2


def test_hardware_stays_the_same() -> None:
    """The text names the processor and the number of cores that this process may use."""
    text = hardware(CPU, None)
    assert text == hardware(CPU, None)
    assert text.endswith(f" x{len(os.sched_getaffinity(0))}")


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """As torch and NVML tell of one GPU; an answer that is an exception is raised."""
    known = SimpleNamespace(uuid="1-2", name="NVIDIA H200", total_memory=140 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: known)
    answers: dict[str, Any] = {
        "nvmlInit": None,
        "nvmlShutdown": None,
        "nvmlDeviceGetHandleByUUID": "handle",
        "nvmlDeviceGetClockInfo": 1980,
        "nvmlDeviceGetPowerUsage": 512_300,
        "nvmlDeviceGetTemperature": 61,
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0,
        "nvmlDeviceGetComputeRunningProcesses": ["us", "them"],
        "nvmlDeviceGetPowerManagementLimit": 700_000,
    }

    def answer(name: str) -> Any:
        def given(*_: object) -> Any:
            answers["calls"].append(name)
            if isinstance(answers[name], Exception):
                raise answers[name]
            return answers[name]

        return given

    for name in answers:
        monkeypatch.setattr(pynvml, name, answer(name))
    answers["calls"] = []
    return answers


def gpu_state(looks: int = 1) -> dict[str, Any]:
    """The state of a GPU after a look before all blocks and one after each of ``looks`` blocks."""
    gpu = Gpu(CUDA)
    for _ in range(looks):
        gpu.look()
    return gpu.state()


def test_a_gpu_is_asked_for_its_state(one_gpu: dict[str, Any]) -> None:
    """NVML's clock, power in watts, temperature and processes are recorded."""
    assert gpu_state() == {
        "gpu": "GPU-1-2",
        "gpu_clock_mhz": 1980,
        "timed_clock_mhz": 1980,
        "gpu_power_w": 512.3,
        "gpu_temperature_c": 61,
        "gpu_throttle": [],
        "gpu_processes": 2,
    }
    machine = Machine(Alone(CUDA))
    machine.look()
    seen = machine.seen()
    assert seen.hardware == "NVIDIA H200 140 GiB 700 W"
    assert (seen.gpu_power_w, seen.gpu_processes) == (512.3, 2)


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        (pynvml.nvmlClocksThrottleReasonGpuIdle, []),
        (pynvml.nvmlClocksThrottleReasonApplicationsClocksSetting, []),
        (pynvml.nvmlClocksThrottleReasonSwPowerCap, ["power cap"]),
        (pynvml.nvmlClocksThrottleReasonHwSlowdown, ["hardware slowdown"]),
        (pynvml.nvmlClocksThrottleReasonSwThermalSlowdown, ["software thermal slowdown"]),
        (pynvml.nvmlClocksThrottleReasonHwThermalSlowdown, ["thermal slowdown"]),
        (pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown, ["power brake"]),
        (0x04 | 0x40 | 0x01, ["power cap", "thermal slowdown"]),
    ],
)
def test_reasons_of_a_slower_clock(one_gpu: dict[str, Any], bits: int, reasons: list[str]) -> None:
    """Reasons are known by NVML's own constants; an idle GPU is not throttled."""
    one_gpu["nvmlDeviceGetCurrentClocksThrottleReasons"] = bits
    assert gpu_state()["gpu_throttle"] == reasons


def test_what_a_gpu_does_not_tell_is_blank(one_gpu: dict[str, Any]) -> None:
    """One answer that fails leaves the others; without NVML there are none, and no error."""
    unsupported = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    one_gpu["nvmlDeviceGetPowerUsage"] = one_gpu["nvmlDeviceGetPowerManagementLimit"] = unsupported
    machine = Machine(Alone(CUDA))
    machine.look()
    conditions = machine.seen()
    assert (conditions.gpu_power_w, conditions.gpu_temperature_c) == (None, 61)
    assert conditions.hardware == "NVIDIA H200 140 GiB"
    one_gpu["nvmlDeviceGetHandleByUUID"] = unsupported
    assert gpu_state() == {"gpu": "GPU-1-2"}
    one_gpu["nvmlInit"] = pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    assert gpu_state() == {"gpu": "GPU-1-2"}


def test_a_gpu_is_looked_at_while_it_works(one_gpu: dict[str, Any]) -> None:
    """What happens in the second of three blocks is seen; what an idle GPU tells before the
    first and after the last is not."""
    clock, power, bits, listed = (
        "nvmlDeviceGetClockInfo",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        "nvmlDeviceGetComputeRunningProcesses",
    )
    busy = {clock: 1900, power: 650_000, bits: 0x04, listed: ["us"]}
    event = {clock: 1200, power: 300_000, bits: 0x40, listed: ["us", "them"]}
    idle = {clock: 345, power: 90_000, bits: 0x80, listed: ["us"]}
    one_gpu |= idle
    machine = Machine(Alone(CUDA))
    for state in (busy, event, busy):
        one_gpu |= state
        machine.look()
    one_gpu |= idle
    conditions = machine.seen()
    assert (conditions.gpu_clock_mhz, conditions.gpu_power_w, conditions.gpu_processes) == (
        1200,
        650.0,
        2,
    )
    assert conditions.gpu_throttle == ["power cap", "thermal slowdown"]


def test_without_a_timed_block_nothing_is_told_of_a_load(one_gpu: dict[str, Any]) -> None:
    """Of the first look only the number of processes counts."""
    assert gpu_state(looks=0) == {"gpu": "GPU-1-2", "gpu_processes": 2}


def test_nvml_is_opened_once_and_closed_once(one_gpu: dict[str, Any]) -> None:
    """NVML is opened before anything is timed, and closed after all looks."""
    gpu = Gpu(CUDA)
    opened = one_gpu["calls"].count("nvmlInit"), one_gpu["calls"].count("nvmlShutdown")
    one_gpu["calls"].clear()
    gpu.look()
    assert "nvmlInit" not in one_gpu["calls"]
    assert "nvmlDeviceGetHandleByUUID" not in one_gpu["calls"]
    gpu.state()
    assert (opened, one_gpu["calls"].count("nvmlShutdown")) == ((1, 0), 1)


def refuse(*_: object) -> NoReturn:
    raise RuntimeError("not here")


@pytest.mark.parametrize(
    ("owner", "name", "blank"),
    [
        (os, "getloadavg", {"load_average"}),
        (psutil, "cpu_times", {"busy_s"}),
        (psutil, "cpu_count", {"cores"}),
        (time, "process_time", {"cpu_s"}),
        (machine_load, "cpu_name", set()),
        (os, "sched_getaffinity", set()),
        (machine_load, "_host", {"host"}),
    ],
)
def test_a_fact_that_fails_is_blank_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, blank: set[str]
) -> None:
    """All other facts are recorded; the hardware's text leaves out only the missing word."""
    monkeypatch.setattr(owner, name, refuse)
    conditions = Machine(Alone()).seen()
    facts = ("load_average", "busy_s", "cores", "cpu_s", "host", "wall_s", "hardware")
    assert {fact for fact in facts if getattr(conditions, fact) in (None, "")} == blank


def test_where_processes_cannot_be_tied_to_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without sched_getaffinity all cores count."""
    monkeypatch.delattr(os, "sched_getaffinity")
    assert hardware(CPU, None).endswith(f" x{os.cpu_count()}")


def test_without_any_of_it_a_gpu_runs_too(
    one_gpu: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a missing pynvml nor a torch that does not know its GPU stops a run."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Machine(Alone(CUDA)).seen().gpu_processes is None
    monkeypatch.setattr(torch.cuda, "get_device_properties", refuse)
    assert Machine(Alone(CUDA)).seen().hardware == ""


def test_an_answer_of_another_kind_stops_nothing(one_gpu: dict[str, Any]) -> None:
    """Conditions that do not validate are left blank."""
    one_gpu["nvmlDeviceGetTemperature"] = "warm"
    machine = Machine(Alone(CUDA))
    machine.look()
    assert machine.seen() == Conditions()


def test_the_typical_speed_of_the_median_processor_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of looks behind each block, but for those too coarse to tell: the time of the typical one."""
    rates = iter([99.0, 0.0, 60.0, 80.0, 20.0])
    fake = SimpleNamespace(look=lambda: next(rates))
    monkeypatch.setattr(machine_load, "ProcessorSpeed", lambda _: fake)
    machine = Machine(Alone())
    for is_silent in (False, True, False, True, False):
        machine.look(is_silent)
    seen = machine.seen()
    assert seen.cpu_gflop_per_s == pytest.approx(2 / (1 / 60 + 1 / 80))
    faster, slower = (seen.model_copy(update={"cpu_gflop_per_s": x}) for x in (99.0, 10.0))
    assert as_columns("cpu", [faster, seen, slower])["cpu_gflop_per_s"] == seen.cpu_gflop_per_s
    assert as_columns("cpu", [Conditions()])["cpu_gflop_per_s"] is None
