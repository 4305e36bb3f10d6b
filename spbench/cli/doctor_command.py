"""``spbench doctor``: whether this machine is fit, and what to do where it is not."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

import click

from spbench.cli import options
from spbench.doctor.diagnosis import DeviceChoice
from spbench.doctor.examine import Examination, examine
from spbench.errors import DONE, UNFIT, Failure
from spbench.launch.torchrun import joined_ranks
from spbench.report.doctor_table import show_diagnoses
from spbench.results.nvml import ask, visible
from spbench.sweep.devices import MAX_PROCESSES


@click.command(
    "doctor", short_help="Say whether this machine is fit, and what to do where it is not."
)
@click.option(
    "-g",
    "--gpus",
    type=click.IntRange(1, MAX_PROCESSES),
    metavar="N",
    help="Ranks that try every collective.  [default: all GPUs, or 2 to 8 by the cores of a CPU]",
)
@options.lasting("--timeout", "120", "For torch to load, and for each start of ranks: 90, 90s, 2m.")
@options.device_option
@options.json_option
def command(gpus: int | None, timeout: float, device: DeviceChoice, as_json: bool) -> int:
    """Say whether this machine is fit: software, GPUs, limits, noise, and ranks that try it.

    Two ranks, then all, go through every collective with numbers that are known beforehand. Each
    line is ok, warn (figures may suffer) or fail (runs would fail, or be wrong), the last two
    with what to do. Exit code 6 if any failed.
    """
    if joined_ranks() is not None:
        raise Failure("doctor starts its ranks itself; call it without torchrun, on each machine")
    patient = _patient(gpus, timeout, device)
    found = examine(patient, lambda sentence: click.echo(sentence, err=True))
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found], indent=2))
    else:
        show_diagnoses(found)
    return UNFIT if any(one.status == "fail" for one in found) else DONE


def _patient(gpus: int | None, timeout_s: float, device: DeviceChoice) -> Examination:
    import pynvml

    driver = ask(pynvml)
    here = visible(driver.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if gpus is not None and device != "cpu" and 0 < len(here) < gpus:
        raise Failure(
            f"--gpus {gpus}: this machine has {len(here)}; use 1 to {len(here)}, or --device cpu"
        )
    return Examination(
        asked=device,
        ranks=gpus,
        timeout_s=timeout_s,
        environ=dict(os.environ),
        driver=driver,
        here=here,
    )
