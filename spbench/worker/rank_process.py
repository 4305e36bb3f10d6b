"""A rank's process: it joins the others, does its job and writes its file.

Called by the launcher in each process. On an error the rank writes what it knows and leaves
by ``os._exit``: taking the process group down after an error can block, and would hide which
rank failed first.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path

import torch

from spbench.comm.group import Group, ProcessGroup, ShareOfGroup
from spbench.layers.attention import fastest_kernels
from spbench.results.heartbeat import Heartbeat, find_heartbeats, heartbeat_path
from spbench.results.sample import CHECKED, sample_path, write_atomically
from spbench.worker.collective_check import exchange_all
from spbench.worker.failure import failure
from spbench.worker.fault_injection import Fault, PlantedFault
from spbench.worker.observer import Observer
from spbench.worker.parent_death import die_with_parent
from spbench.worker.run_case import run_case
from spbench.worker.turn_client import TurnClient
from spbench.worker.verify import verify_all
from spbench.workload.case import Job

ECHO_S = 0.5
"""Wait of a rank with a broken connection: the death of another rank is the failure cause."""


def run_job(folder: str) -> None:
    """The process of one rank. ``folder`` holds ``job.json`` and takes the rank's file.

    SIGUSR1 makes it write the stacks of its threads into its log, whatever it is stuck in.
    """
    die_with_parent()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    place = Path(folder)
    rank = int(os.environ["RANK"])
    heartbeat, fault = Heartbeat(), None
    try:
        job = Job.read(place)
        if (heartbeats := find_heartbeats(place)) is not None:
            heartbeat = Heartbeat(heartbeat_path(heartbeats, rank))
        fault = Fault.of(os.environ | job.environment)
        if fault is not None:
            fault.strike(rank, "init")
        heartbeat.phase("joining")
        group = connect(job, heartbeat)
        turns = with_turns(job, group, heartbeat)
        write_atomically(sample_path(place, rank), work(job, group, heartbeat, fault, turns))
        heartbeat.phase("leaving")
        if fault is not None:
            fault.strike(rank, "teardown")
        group.close()
        heartbeat.phase("ended")
    except BaseException as error:
        traceback.print_exc()
        sample = failure(error, rank, fault)
        write_atomically(sample_path(place, rank), sample.model_dump_json())
        sys.stdout.flush()
        sys.stderr.flush()
        if sample.status == "comm_error":
            time.sleep(ECHO_S)
        os._exit(1)


def connect(job: Job, heartbeat: Heartbeat | None = None, patience_s: float | None = None) -> Group:
    """The group of this job, on this rank's device, in the job's environment.

    ``patience_s``: for one transfer. Where a parent watches it need not be short: the parent's
    deadlines come first, and it can tell who hangs.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    os.environ.update(job.environment)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local_ranks))
    device = torch.device(job.device, local_rank) if job.device == "cuda" else torch.device("cpu")
    group: Group
    if job.case is not None and job.case.kind == "one_gpu_share":
        group = ShareOfGroup(device, job.case.ranks, heartbeat)
    else:
        group = ProcessGroup(device, patience_s or job.timeout_s + job.hang_s, heartbeat)
        group.warm()
    if job.device == "cuda":
        # Backward has threads of its own; each binds the device with its first product.
        warnings.filterwarnings("ignore", "Attempting to run cuBLAS, but there was no current")
    return group


def with_turns(job: Job, group: Group, heartbeat: Heartbeat) -> TurnClient | None:
    """This rank's line to the server of turns; None where any rank has none."""
    turns = TurnClient.of(os.environ, job.processes, heartbeat.working)
    (missing,) = group.largest([float(turns is None)])
    return None if missing else turns


def work(
    job: Job,
    group: Group,
    heartbeat: Heartbeat | None = None,
    fault: Fault | None = None,
    turns: TurnClient | None = None,
) -> str:
    """Does what the job asks of this rank, and returns what its file will hold."""
    planted = fault and PlantedFault(
        fault=fault,
        rank=group.rank,
        extra_collective=lambda: group.gather_text(""),
        synchronise=group.synchronise,
    )
    observer = Observer(heartbeat=heartbeat or Heartbeat(), fault=planted, turns=turns)
    with fastest_kernels(group.device):
        if job.case is not None:
            return run_case(job.case, group, observer).model_dump_json()
        if job.collectives:
            return exchange_all(group, observer).model_dump_json()
        return CHECKED.dump_json(verify_all(job.checks, group, observer)).decode()
