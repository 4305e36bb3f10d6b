#!/usr/bin/env bash
# The ring attention of diffusers has right gradients on 2 ranks, and wrong gradients of keys and values from 3 ranks on.
#
# Package    diffusers 0.42.1, torch 2.13.0 (CPU build, gloo), Python 3.11
# Behaviour  ring attention on 2, 3 and 4 ranks (ring_degree), float32: the output and dQ are those of attention on one device
#            to 1e-6. dK and dV are so on 2 ranks; on 3 and 4 they are off by about their own size. Each rank goes through the
#            blocks of keys upwards from its own, and hands the gradients summed so far to the rank above. That rank adds
#            those of the block that it is at, which is another block. Handed to the rank below, they come out right. On 2
#            ranks the two are one rank. Nothing warns.
#            The kernels are arguments here: torch's flash attention on a CPU. Those of diffusers that return the logarithm
#            of the sum of exponentials, which a ring needs, run on GPUs.
# Output     2 ranks: out right, dq right, dk right, dv right / 3 and 4 ranks: out right, dq right, dk wrong, dv wrong
# A guess    that a ring proved on 2 ranks is right on any number.
#
# Ends with 0 while it does so, with 1 once it does not.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 diffusers==0.42.1
cat > "$folder/ring.py" <<'PYTHON'
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from diffusers import ContextParallelConfig, ParallelConfig
from diffusers.models.attention_dispatch import _templated_context_parallel_attention

NAMES = ("out", "dq", "dk", "dv")
flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def heads_first(*tensors):
    return [x.transpose(1, 2).contiguous() for x in tensors]


def forward_op(ctx, q, k, v, *options, _save_ctx, _parallel_config):
    if _save_ctx:
        ctx.save_for_backward(q, k, v)
    return [x.transpose(1, 2) for x in flash(*heads_first(q, k, v))]


def backward_op(ctx, grad, *, query, key, value, out, lse):
    dropout, causal = 0.0, False
    grads = flash_backward(*heads_first(grad, query, key, value, out, lse), dropout, causal)
    return [x.transpose(1, 2) for x in grads]


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
    config = ParallelConfig(context_parallel_config=ContextParallelConfig(ring_degree=ranks))
    mesh = dist.init_device_mesh("cpu", (ranks, 1), mesh_dim_names=("ring", "ulysses"))
    config.setup(rank, ranks, torch.device("cpu"), mesh=mesh)
    *qkv, grad = (x.chunk(ranks, 1)[rank].clone() for x in tensors())
    leaves = [x.requires_grad_() for x in qkv]
    operations = {"forward_op": forward_op, "backward_op": backward_op}
    out = _templated_context_parallel_attention(*leaves, **operations, _parallel_config=config)
    out.backward(grad)
    wanted = [x.chunk(ranks, 1)[rank] for x in on_one_device()]
    errors = [(a - b).norm() / b.norm() for a, b in zip([out.detach(), *(x.grad for x in leaves)], wanted)]
    worst = torch.stack(errors)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    if rank == 0:
        said = (f"{name} {'right' if error < 1e-5 else 'wrong'}" for name, error in zip(NAMES, worst))
        print(f"{ranks} ranks:", ", ".join(said), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    for ranks in (2, 3, 4):
        mp.start_processes(rank_main, (ranks, f"{sys.argv[1]}/meeting{ranks}"), ranks)
PYTHON
cat > "$folder/expected" <<'TEXT'
2 ranks: out right, dq right, dk right, dv right
3 ranks: out right, dq right, dk wrong, dv wrong
4 ranks: out right, dq right, dk wrong, dv wrong
TEXT
"$folder/venv/bin/python" -W ignore "$folder/ring.py" "$folder" | tee "$folder/seen"
diff "$folder/expected" "$folder/seen"
