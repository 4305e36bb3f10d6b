"""How a rank that somebody else started joins the others, or says who does not come."""

import hashlib
import os
import sys
import threading
from collections.abc import Callable

import click

from spbench.comm.group import Group
from spbench.comm.kv_store import KeyValueStore
from spbench.errors import UNFIT, Failure
from spbench.launch.cluster import versions_here
from spbench.launch.failure_notices import FailureNotices
from spbench.launch.roll_call import Arrival, Roll, RollCall
from spbench.results.hand_over import Sample
from spbench.worker.fault_injection import Fault
from spbench.worker.rank_process import connect, failure
from spbench.workload.case import Job

NCCL_S = 12.0
"""So much later than gloo this rank gives up itself: NCCL may wait for ever."""


def keep_stdout() -> None:
    """Sends what libraries write into file descriptor 1, as NCCL does, to stderr from here on.
    Only ``sys.stdout``, where results go, still leads to stdout, if it has led there."""
    try:
        if sys.stdout.fileno() != 1:
            return
    except (OSError, ValueError, AttributeError):
        return
    sys.stdout.flush()
    mine = os.fdopen(os.dup(1), "w", 1, encoding=sys.stdout.encoding, errors=sys.stdout.errors)
    os.dup2(2, 1)
    sys.stdout = mine


def call_roll(
    job: Job, place: tuple[str, int], asked: str, decide: Callable[[], dict[str, str]]
) -> tuple[Roll, KeyValueStore]:
    """Roll and store of the ranks that meet at ``place``. Raises Failure: see ``RollCall``."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    digest = hashlib.sha256(asked.encode()).hexdigest()[:12]
    alike = {"the cases": digest, "--hang-after": f"{job.hang_s:g} s"}
    call = RollCall(
        host=place[0],
        port=place[1],
        holds_store=rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
        me=Arrival(rank=rank, asked={"WORLD_SIZE": f"{size}", **versions_here(), **alike}),
        ranks=size,
        within_s=job.hang_s,
        attempt=os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
    )
    return call.answer(decide)


def join(job: Job, rank: int, notices: FailureNotices, fault: Fault | None = None) -> Group:
    """The process group. Raises Failure that names the ranks that do not join it in time."""

    def give_up() -> None:
        mine = Sample(rank=rank, status="comm_error", reason="the other ranks are not reached")
        click.echo(f"Error: {notices.why_not_joined(mine, job.hang_s)}", err=True)
        os._exit(UNFIT)

    watch = threading.Timer(job.hang_s + NCCL_S, give_up)
    watch.daemon = True
    watch.start()
    try:
        return connect(job, patience_s=job.hang_s)
    except Exception as error:
        mine = failure(error, rank, fault)
        if mine.status != "comm_error":
            notices.leave(mine)
            raise
        raise Failure(notices.why_not_joined(mine, job.hang_s), UNFIT) from error
    finally:
        watch.cancel()
