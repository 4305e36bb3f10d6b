#!/usr/bin/env bash
# On gloo a receive that is over says that it is not, until it is waited for; an all-reduce says it by itself.
#
# Package    torch 2.13.0 (CPU build), Python 3.11, gloo on two ranks
# Behaviour  Work.is_completed() of irecv stays False after what was sent is in the tensor, for as long as one looks; once wait()
#            has returned it is True. Of an all_reduce with async_op=True it becomes True when the sum is there, without wait().
# Output     irecv: arrived, completed False, after wait True; all_reduce: summed, completed True
# A guess    that is_completed() may be polled for either, as it may on NCCL: a loop that waits for it, and computes meanwhile, does
#            not end where the messages are from one rank to one other, as between the stages of a pipeline.
#
# Ends with 0 while torch does so, with 1 once it does not.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cat > "$folder/poll.py" <<'PYTHON'
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def is_there(tensor, expected):
    """Whether the values came within a minute; a second later the transfer has long been over."""
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        if bool((tensor == expected).all()):
            time.sleep(1)
            return True
        time.sleep(0.01)
    return False


def rank_main(rank, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    if rank == 0:
        dist.send(torch.full((4,), 7.0), 1)
    else:
        print("torch", torch.__version__.partition("+")[0])
        received = torch.zeros(4)
        work = dist.irecv(received, 0)
        print("irecv arrived", is_there(received, 7.0), "completed", work.is_completed())
        work.wait()
        print("after wait completed", work.is_completed())
    dist.barrier()
    summed = torch.ones(4)
    work = dist.all_reduce(summed, async_op=True)
    if rank == 1:
        print("all_reduce summed", is_there(summed, 2.0), "completed", work.is_completed())
    work.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(rank_main, (sys.argv[1],), nprocs=2)
PYTHON
cat > "$folder/expected" <<'TEXT'
torch 2.13.0
irecv arrived True completed False
after wait completed True
all_reduce summed True completed True
TEXT
"$folder/venv/bin/python" "$folder/poll.py" "$folder/meeting" 2>/dev/null | tee "$folder/seen"
diff "$folder/expected" "$folder/seen"
