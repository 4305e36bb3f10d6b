"""``spbench doctor``: checks whether this machine is fit, and says what to do if it is not."""

import os
from dataclasses import asdict

import click

from spbench.cli import options
from spbench.cli.help_page import HelpPage
from spbench.cli.option_types import Count
from spbench.doctor.examine import examine
from spbench.doctor.machine_checks import DeviceChoice
from spbench.errors import DONE, UNFIT, Failure
from spbench.launch.torchrun import joined_ranks
from spbench.report.doctor_table import show_diagnoses
from spbench.report.tables import print_json
from spbench.results.cuda_driver import cuda_gpus
from spbench.results.machine import VISIBLE, is_cudas_to_say, visible
from spbench.results.nvml import GpuState, NvmlReport, read_nvml
from spbench.sweep.devices import MAX_PROCESSES
from spbench.text import counted


@click.command("doctor", cls=HelpPage)
@click.option(
    "-g",
    "--gpus",
    type=Count(1, MAX_PROCESSES),
    metavar="N",
    help="Ranks that try every collective.  [default: one per GPU; on a CPU 2 to 8, by cores]",
)
@options.duration_option(
    "--timeout", "120", "Time for torch to load, and for each start of ranks: 90, 90s, 2m."
)
@options.device_option
@options.json_option
def command(gpus: int | None, timeout: float, device: DeviceChoice, *, as_json: bool) -> int:
    """Check whether this machine is fit: software, GPUs, cores, memory, and every collective.

    Two ranks, then all, exchange known numbers through every collective. Each check is ok, warn
    (figures may suffer) or fail (runs would fail, or be wrong); warn and fail come with a remedy.
    Exit code 6 if any check fails.
    """
    if joined_ranks() is not None:
        raise Failure("doctor starts its ranks itself; call it without torchrun, on each machine")
    driver, usable = _driver_and_gpus(gpus, device)
    diagnoses = examine(device, gpus, timeout, dict(os.environ), driver, usable)
    if as_json:
        print_json([asdict(diagnosis) for diagnosis in diagnoses])
    else:
        show_diagnoses(diagnoses)
    return UNFIT if any(diagnosis.status == "fail" for diagnosis in diagnoses) else DONE


def _driver_and_gpus(gpus: int | None, device: DeviceChoice) -> tuple[NvmlReport, list[GpuState]]:
    """What NVML tells, and the GPUs that ranks may use, with the index -1 where NVML does not know
    them. Raises Failure if they are too few."""
    import pynvml

    driver, shown = read_nvml(pynvml), os.environ.get(VISIBLE)
    usable = visible(driver.gpus, shown)
    if is_cudas_to_say(driver.gpus, shown):
        usable = [GpuState(index=-1, name=gpu["name"]) for gpu in cuda_gpus()]
    if gpus is not None and device != "cpu" and 0 < len(usable) < gpus:
        raise Failure(
            f"--gpus {gpus}: this machine has {counted(len(usable), 'GPU')}; "
            f"use 1 to {len(usable)}, or --device cpu"
        )
    return driver, usable
