#!/usr/bin/env bash
# ring-attention-pytorch gives right outputs and right gradients of queries, and wrong gradients of keys and values.
#
# Package    ring-attention-pytorch 0.5.20, torch 2.13.0 (CPU build, gloo), Python 3.11
# Behaviour  ring_flash_attn(..., ring_reduce_col=True) on 2 and 3 ranks, float32: the output and dQ are those of attention on
#            one device to 1e-6; dK and dV are off by more than their own size. In backward the pass that takes a block's
#            gradients home gives back a pair, what came and what went, each of dK and dV together; the pair is taken for
#            dK and dV, and autograd, to which both are too large, sums them to the shape. Nothing warns.
# Output     2 ranks: out right, dq right, dk wrong, dv wrong / 3 ranks: the same
# A guess    that gradients of keys and values are one device's where the output and the gradient of queries are.
#
# Ends with 0 while it does so, with 1 once it does not.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 ring-attention-pytorch==0.5.20
cat > "$folder/ring.py" <<'PYTHON'
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from ring_attention_pytorch.ring_flash_attention import ring_flash_attn

NAMES = ("out", "dq", "dk", "dv")


def tensors():
    torch.manual_seed(0)
    return [torch.randn(1, 24, 2, 8) for _ in range(4)]


def on_one_device():
    *qkv, grad = tensors()
    leaves = [x.requires_grad_() for x in qkv]
    out = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in leaves)).transpose(1, 2)
    out.backward(grad)
    return [out.detach(), *(x.grad for x in leaves)]


def rank_main(rank, ranks, file):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    *qkv, grad = (x.chunk(ranks, 1)[rank].clone() for x in tensors())
    leaves = [x.requires_grad_() for x in qkv]
    out = ring_flash_attn(*leaves, ring_reduce_col=True, ring_size=ranks)
    out.backward(grad)
    wanted = [x.chunk(ranks, 1)[rank] for x in on_one_device()]
    errors = [(a - b).norm() / b.norm() for a, b in zip([out.detach(), *(x.grad for x in leaves)], wanted)]
    worst = torch.stack(errors)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    if rank == 0:
        said = (f"{name} {'right' if error < 1e-5 else 'wrong'}" for name, error in zip(NAMES, worst))
        print(f"{ranks} ranks:", ", ".join(said), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    for ranks in (2, 3):
        mp.start_processes(rank_main, (ranks, f"{sys.argv[1]}/meeting{ranks}"), ranks)
PYTHON
cat > "$folder/expected" <<'TEXT'
2 ranks: out right, dq right, dk wrong, dv wrong
3 ranks: out right, dq right, dk wrong, dv wrong
TEXT
"$folder/venv/bin/python" "$folder/ring.py" "$folder" | tee "$folder/seen"
diff "$folder/expected" "$folder/seen"
