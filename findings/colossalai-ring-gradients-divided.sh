#!/usr/bin/env bash
# ColossalAI's ring self-attention returns the gradients of queries, keys and values divided by the number of ranks.
#
# Package    colossalai 0.5.0, torch 2.13.0 (CPU build, gloo), Python 3.11. It asks for torch 2.5.1 at most and transformers
#            4.51.3: it is installed without what it asks for, then what importing it needs.
# Behaviour  softmax between RingQK and RingAV, 1, 2 and 3 ranks, float32: the output is that of attention on one device to
#            1e-6; dQ, dK and dV are those on one device divided by the number of ranks, and right to 1e-6 once multiplied by
#            it. Only these are divided. In a model the gradient that goes past attention, along the residual, is not, so that
#            no factor on the loss or the learning rate makes up for it.
#            RingQK and RingAV wait for the accelerator, and the one for CPUs raises there. One that does not takes its place.
# Output     1 rank: all right / 2 ranks: out right, dq, dk and dv right / 2 / 3 ranks: out right, dq, dk and dv right / 3
# A guess    that the gradient of a shard is that shard of the gradient, as with one rank.
#
# Ends with 0 while it does so, with 1 once it does not.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 psutil==7.2.2 einops==0.8.2 transformers==5.24.0 \
    peft==0.21.2 galore-torch==1.0 bitsandbytes==0.50.2
"$folder/venv/bin/pip" install --quiet --no-deps colossalai==0.5.0
cat > "$folder/ring.py" <<'PYTHON'
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from colossalai.accelerator import CpuAccelerator, set_accelerator
from colossalai.legacy.context import ParallelMode
from colossalai.legacy.core import global_context
from colossalai.legacy.nn.layer.parallel_sequence import RingAV, RingQK

NAMES = ("out", "dq", "dk", "dv")


class SynchronousCpu(CpuAccelerator):
    def synchronize(self, device=None):
        pass


def tensors():
    torch.manual_seed(0)
    return [torch.randn(2, 24, 8) for _ in range(4)]


def on_one_device():
    *qkv, grad = tensors()
    q, k, v = leaves = [x.requires_grad_() for x in qkv]
    out = torch.softmax(q @ k.mT / 8**0.5, dim=-1) @ v
    out.backward(grad)
    return [out.detach(), *(x.grad for x in leaves)]


def ring_attention(q, k, v):
    heads, length, depth = q.shape
    scores = RingQK.apply(q, k, 1, heads, length)
    return RingAV.apply(torch.softmax(scores / depth**0.5, dim=-1), v, 1, heads, depth, length)


def verdict(seen, wanted, ranks):
    for divisor, said in ((1, "right"), (ranks, f"right / {ranks}")):
        worst = (seen * divisor - wanted).norm() / wanted.norm()
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        if worst < 1e-5:
            return said
    return "wrong"


def rank_main(rank, ranks, file):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    set_accelerator(SynchronousCpu())
    for mode in (ParallelMode.GLOBAL, ParallelMode.SEQUENCE):
        global_context._register_dist(rank, ranks, dist.group.WORLD, None, list(range(ranks)), mode)
    global_context.add_global_rank(ParallelMode.GLOBAL, rank)
    *qkv, grad = (x.chunk(ranks, 1)[rank].clone() for x in tensors())
    leaves = [x.requires_grad_() for x in qkv]
    out = ring_attention(*leaves)
    out.backward(grad)
    wanted = [x.chunk(ranks, 1)[rank] for x in on_one_device()]
    pairs = zip([out.detach(), *(x.grad for x in leaves)], wanted)
    said = [f"{name} {verdict(*pair, ranks)}" for name, pair in zip(NAMES, pairs)]
    if rank == 0:
        print(f"{ranks} ranks:", ", ".join(said), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    for ranks in (1, 2, 3):
        mp.start_processes(rank_main, (ranks, f"{sys.argv[1]}/meeting{ranks}"), ranks)
PYTHON
cat > "$folder/expected" <<'TEXT'
1 ranks: out right, dq right, dk right, dv right
2 ranks: out right, dq right / 2, dk right / 2, dv right / 2
3 ranks: out right, dq right / 3, dk right / 3, dv right / 3
TEXT
"$folder/venv/bin/python" -W ignore "$folder/ring.py" "$folder" | tee "$folder/seen"
diff "$folder/expected" "$folder/seen"
