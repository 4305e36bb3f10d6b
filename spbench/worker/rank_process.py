"""A rank's process: it joins the others, does its job and writes its file.

Called by the launcher in each process. On an error the rank writes the failure cause and leaves
by ``os._exit``: taking the process group down after an error can block, and would hide which
rank failed first.
"""

import faulthandler
import os
import re
import signal
import socket
import sys
import time
import traceback
import warnings
from pathlib import Path

import torch

from spbench.comm.group import Group, ProcessGroup, ShareOfGroup, is_broken_connection
from spbench.comm.kv_store import MeetingFile
from spbench.errors import Failure
from spbench.layers.kernels import fastest_kernels
from spbench.results.hand_over import (
    CHECKED,
    RowStatus,
    Sample,
    checks_path,
    sample_path,
    write_atomically,
)
from spbench.results.heartbeat import Heartbeat, find_heartbeats, heartbeat_path
from spbench.results.machine import threads_of_a_rank
from spbench.text import first_line
from spbench.worker.collective_check import exchange_all
from spbench.worker.fault_injection import Fault
from spbench.worker.link_times import time_alone
from spbench.worker.memory import is_out_of_host_memory, is_out_of_memory, keep_freed_memory
from spbench.worker.observer import Observer
from spbench.worker.parent_death import die_with_parent
from spbench.worker.run_case import run_case, verify_all
from spbench.workload.case import Job

MEETING = "SPBENCH_MEETING"
"""The variable that names the file in which ranks of one machine meet."""
OUT_OF_MEMORY = re.compile(r"(?i)Tried to allocate ([\d.]+ \w+)|you tried to allocate (\d+) bytes")
"""The size that could not be allocated, in the words of torch's CUDA and CPU allocators."""
ECHO_S = 0.5
"""Wait of a rank with a broken connection: the death of another rank is the failure cause."""


def run_job(folder: Path) -> None:
    """The process of one rank. ``folder`` holds ``job.json`` and takes the rank's file. SIGUSR1
    makes it write the stacks of its threads into its log, whatever it is stuck in."""
    die_with_parent()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    rank = int(os.environ["RANK"])
    heartbeat, fault = Heartbeat(), None
    try:
        job = Job.read(folder)
        if (heartbeats := find_heartbeats(folder)) is not None:
            heartbeat = Heartbeat(heartbeat_path(heartbeats, rank))
        fault = Fault.of(os.environ | job.environment)
        if fault is not None:
            fault.strike(rank, "init")
        heartbeat.phase("joining")
        meeting = None  # ranks that others start meet at MASTER_ADDR
        if (path := os.environ.get(MEETING)) is not None:
            meeting = MeetingFile(path=Path(path), rank=rank, ranks=job.processes)
        group = connect(job, heartbeat, meeting=meeting)
        observer = Observer(heartbeat=heartbeat, group=group, fault=fault)
        write_atomically(sample_path(folder, rank), work(job, group, observer, folder))
        heartbeat.phase("leaving")
        if fault is not None:
            fault.strike(rank, "teardown")
        group.close()
        heartbeat.phase("ended")
    except BaseException as error:
        traceback.print_exc()
        sample = failure(error, rank, fault)
        write_atomically(sample_path(folder, rank), sample.model_dump_json())
        sys.stdout.flush()
        sys.stderr.flush()
        if sample.status == "comm_error":
            time.sleep(ECHO_S)
        os._exit(1)


def connect(
    job: Job,
    heartbeat: Heartbeat | None = None,
    patience_s: float | None = None,
    meeting: MeetingFile | None = None,
) -> Group:
    """The group of this job, on this rank's device, in the job's environment.

    Parameters
    ----------
    job
        Its device, environment and deadlines.
    heartbeat
        Shows each transfer.
    patience_s
        Seconds for one transfer. Where a parent watches it need not be short: the parent's
        deadlines come first, and it can tell who hangs.
    meeting
        The file where ranks of one machine meet; None: at MASTER_ADDR.

    Returns
    -------
    Group
        Warmed up; of a share without any other rank.

    Raises
    ------
    Failure
        Where no GPU can be this rank's.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    os.environ.update(job.environment)
    if job.device == "cpu":
        keep_freed_memory()
    torch.set_num_threads(threads_of_a_rank(local_ranks))
    device = torch.device("cpu")
    if job.device == "cuda":
        device = torch.device("cuda", device_index(local_rank, torch.cuda.device_count()))
    group: Group
    if job.case is not None and job.case.kind == "one_gpu_share":
        group = ShareOfGroup(device, job.case.ranks, heartbeat)
    else:
        # Beyond every deadline of the parent, which ends a rank that hangs and says where it stood.
        patience_s = patience_s or job.timeout_s + job.hang_s
        group = ProcessGroup(device, patience_s, heartbeat, meeting)
        # Buffers of NCCL and sockets of gloo are made now, not in the first step.
        group.warm()
    if job.device == "cuda":
        # Backward has threads of its own; each binds the device with its first product.
        warnings.filterwarnings("ignore", "Attempting to run cuBLAS, but there was no current")
    return group


def device_index(local_rank: int, visible: int) -> int:
    """Which of the GPUs that this rank sees is its own. Raises Failure where none can be. A rank
    that sees one GPU has it to itself: srun and other launchers hide the others."""
    if visible == 1:
        return 0
    if local_rank < visible:
        return local_rank
    seen = f"sees {visible} GPUs" if visible else "sees no GPU"
    raise Failure(
        f"LOCAL_RANK={local_rank}, and this rank {seen}; a node takes as many ranks as it has "
        f"GPUs, where each rank sees all of them, or just its own (srun --gpus-per-task=1)"
    )


def work(job: Job, group: Group, observer: Observer, folder: Path) -> str:
    """Does what the job asks of this rank.

    Parameters
    ----------
    job
        What is asked: a case, exchanges, times of transfers and kernels, or checks.
    group, observer
        The ranks, and this one's instruments.
    folder
        Of the launch; checks are written there as they are made.

    Returns
    -------
    str
        What the rank's file will hold, as JSON.
    """
    with fastest_kernels(group.device):
        if job.case is not None:
            return run_case(job.case, group, observer, job.environment).model_dump_json()
        if job.collectives:
            return exchange_all(group, observer).model_dump_json()
        if job.transfers or job.kernels:
            asked = (job.transfers, job.kernels, job.steps, group, observer)
            return time_alone(*asked, is_one_node=len(job.nodes) < 2).model_dump_json()
        checked = []
        folder.mkdir(parents=True, exist_ok=True)  # ranks that joined have none before this
        with checks_path(folder, group.rank).open("w", encoding="utf-8", buffering=1) as file:
            for check in verify_all(job.checks, group, observer):
                file.write(f"{check.model_dump_json()}\n")
                checked.append(check)
        return CHECKED.dump_json(checked).decode()


def failure(error: BaseException, rank: int, fault: Fault | None = None) -> Sample:
    """The failure cause, as the rank that failed writes it down."""
    status = status_of(error)
    reason = f"{type(error).__name__}: {first_line(error)}"
    # CUDA says "Tried to allocate 2.00 GiB", the CPU "you tried to allocate 4194304 bytes".
    request = OUT_OF_MEMORY.search(str(error))
    if status in ("oom", "host_oom") and request is not None:
        size = request[1] or f"{int(request[2]) / 2**20:,.1f} MiB"
        reason = f"out of memory when it asked for {size}"
    return Sample(
        rank=rank,
        status=status,
        reason=reason,
        host=socket.gethostname(),
        failed_at_s=time.time(),
        environment={} if fault is None else fault.environment,
    )


def status_of(error: BaseException) -> RowStatus:
    """The row's status after a rank raised ``error``."""
    if is_out_of_host_memory(error):
        return "host_oom"
    if is_out_of_memory(error):
        return "oom"
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        return "interrupted"
    return "comm_error" if is_broken_connection(error) else "crash"
