#!/usr/bin/env bash
# The storage of a weight under fully_shard says the size of the whole weight, not of the part that the rank holds.
#
# Package    torch 2.13.0 (CPU build), Python 3.11, gloo on two ranks
# Behaviour  untyped_storage().nbytes() of a weight of 256 KiB that two ranks share (a DTensor) is 256 KiB on each, and so it is of
#            its gradient and of AdamW's two moments. What a rank holds of each is 128 KiB: the storage of to_local().
# Output     weight, gradient, exp_avg, exp_avg_sq: 262144 of 131072 each
# A guess    that shape and nbytes speak of the whole, as a DTensor is meant to, and the storage of memory that is there. Who sums
#            storages to tell what a rank holds, each once since tensors share them, counts as much as there would be without sharding.
#
# Ends with 0 while torch does so, with 1 once it does not.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cat > "$folder/moments.py" <<'PYTHON'
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def told(name, tensor):
    held = tensor.to_local()
    return f"{name} {tensor.untyped_storage().nbytes()} of {held.untyped_storage().nbytes()}"


def rank_main(rank, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    model = nn.Linear(64, 1024, bias=False)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    if rank == 0:
        print("torch", torch.__version__.partition("+")[0])
        print(told("weight", model.weight))
        print(told("gradient", model.weight.grad))
        for name in ("exp_avg", "exp_avg_sq"):
            print(told(name, optimizer.state[model.weight][name]))
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(rank_main, (sys.argv[1],), nprocs=2)
PYTHON
cat > "$folder/expected" <<'TEXT'
torch 2.13.0
weight 262144 of 131072
gradient 262144 of 131072
exp_avg 262144 of 131072
exp_avg_sq 262144 of 131072
TEXT
"$folder/venv/bin/python" "$folder/moments.py" "$folder/meeting" 2>/dev/null | tee "$folder/seen"
diff "$folder/expected" "$folder/seen"
