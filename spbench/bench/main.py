"""What a rank's process does: joins the others, lives through its job, writes its file.

Called by the launcher in each process. On an error the rank writes what it knows and leaves
by ``os._exit``: taking the process group down after an error can block, and would hide which
rank failed first.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import torch

from spbench.bench.fault import Fault
from spbench.bench.rank import live_case
from spbench.bench.verify import verify_all
from spbench.comm.group import Group, ProcessGroup, ShareOfGroup, is_broken_connection
from spbench.results.sample import CHECKED, Sample, Status, sample_path, write_atomically
from spbench.strategies.registry import load
from spbench.workload.case import Case
from spbench.workload.job import Job

PR_SET_PDEATHSIG = 1
ECHO_S = 0.5
"""A broken connection is mostly the echo of another rank's death, which is to be seen first."""


def run_job(folder: str) -> None:
    """The process of one rank. ``folder`` holds ``job.json`` and takes the rank's file."""
    die_with_parent()
    faulthandler.enable()
    place = Path(folder)
    job = Job.read(place)
    rank = int(os.environ["RANK"])
    fault: Fault | None = None
    try:
        fault = Fault.of(os.environ)
        group = connect(job)
        if job.case is not None:
            text = run_case(job.case, group, fault).model_dump_json()
        else:
            text = run_checks(job, group)
        write_atomically(sample_path(place, rank), text)
        group.close()
    except BaseException as error:
        traceback.print_exc()
        last_words = failure(error, rank, fault)
        write_atomically(sample_path(place, rank), last_words.model_dump_json())
        sys.stdout.flush()
        sys.stderr.flush()
        if last_words.status == "comm_error":
            time.sleep(ECHO_S)
        os._exit(1)


def connect(job: Job) -> Group:
    """The group of this job, on this rank's device."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    os.environ.update(job.environment)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local_ranks))
    device = torch.device(job.device, local_rank) if job.device == "cuda" else torch.device("cpu")
    if job.device == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)  # one attention kernel, whatever the shape
    if job.case is not None and job.case.kind == "one_gpu_share":
        return ShareOfGroup(device, job.case.ranks)
    group = ProcessGroup(device, job.timeout_s)
    group.warm()
    return group


def run_case(case: Case, group: Group, fault: Fault | None = None) -> Sample:
    """The case's sample, with what the rank knows of its device and libraries."""
    torch.manual_seed(case.seed + group.rank)
    sample = live_case(case, group, fault)
    is_cuda = group.device.type == "cuda"
    versions = {"torch": str(torch.__version__)}
    if is_cuda:
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
        versions |= {"cuda": torch.version.cuda or "", "nccl": nccl}
    return sample.model_copy(
        update={
            "device_name": torch.cuda.get_device_name(group.device) if is_cuda else "cpu",
            "versions": versions,
            "environment": {
                name: os.environ.get(name, "") for name in load(case.strategy).environment
            }
            | ({} if fault is None else fault.environment),
        }
    )


def run_checks(job: Job, group: Group) -> str:
    """What this rank found in every check of the job, as its file will hold it."""
    return CHECKED.dump_json(verify_all(job.checks, group)).decode()


def failure(error: BaseException, rank: int, fault: Fault | None = None) -> Sample:
    """A rank's last words."""
    first_line = str(error).strip().split("\n")[0][:300]
    return Sample(
        rank=rank,
        status=status_of(error),
        reason=f"{type(error).__name__}: {first_line}",
        failed_at_s=time.time(),
        environment={} if fault is None else fault.environment,
    )


def status_of(error: BaseException) -> Status:
    """Which row status an exception of a rank means."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "oom"
    text = str(error)
    if "out of memory" in text or "ALLOC_FAILED" in text:
        return "oom"
    if isinstance(error, MemoryError) or "can't allocate memory" in text:
        return "host_oom"
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        return "interrupted"
    return "comm_error" if is_broken_connection(error) else "crash"


def die_with_parent() -> None:
    """On Linux: the kernel kills this process when the one that started it dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
