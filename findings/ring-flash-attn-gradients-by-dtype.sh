#!/usr/bin/env bash
# The rings of ring-flash-attn and yunchang round dQ of float16 to bfloat16, and have wrong gradients in float32.
#
# Package    ring-flash-attn 0.1.8, yunchang 0.6.4, transformers 4.57.6 (the former's import needs it, and fails with 5),
#            torch 2.13.0 (CPU build, gloo), Python 3.11
# Behaviour  ring_flash_attn_func on 2 ranks, not causal. bfloat16: all is right, to bfloat16's digits. float16: the output,
#            dK and dV have float16's digits, dQ bfloat16's: it is cast to that, whatever q is. float32: the output is right,
#            dQ wrong. The sums over blocks start with `.to(torch.float32)` of the buffer that each block is written to: in
#            16 bits this is a copy, in float32 the buffer, which the next block overwrites. dK and dV are wrong too where
#            they leave after that: which they do changes from run to run, so that they are not in the output.
#            flash_attn needs a GPU. A stand-in with its signatures calls torch's flash attention on a CPU. The real one
#            takes 16 bits only, so that float32 is what one meets with another kernel in its place.
# Output     for each package: float32 dq wrong / float16 dq as bfloat16, dk and dv as float16 / bfloat16 all as bfloat16
# A guess    that a gradient has its tensor's digits, and that a sum kept in float32 is right for float32 if it is for 16 bits.
#
# Ends with 0 while they do so, with 1 once they do not.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 ring-flash-attn==0.1.8 yunchang==0.6.4 \
    transformers==4.57.6
mkdir "$folder/flash_attn"
cat > "$folder/flash_attn/__init__.py" <<'PYTHON'
__version__ = "2.8.3"
flash_attn_func = None  # imported, not called
PYTHON
cat > "$folder/flash_attn/flash_attn_interface.py" <<'PYTHON'
import torch

flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
_flash_attn_varlen_forward = _flash_attn_varlen_backward = None  # imported, not called


def heads_first(*tensors):
    return [x.transpose(1, 2).contiguous() for x in tensors]


def _flash_attn_forward(q, k, v, dropout_p, softmax_scale, causal, **others):
    out, lse = flash(*heads_first(q, k, v), dropout_p, causal, scale=softmax_scale)
    return out.transpose(1, 2), lse, None, None


def _flash_attn_backward(
    dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal, *others, **named_others
):
    parts = (*heads_first(dout, q, k, v, out), softmax_lse.contiguous())
    for into, grad in zip((dq, dk, dv), flash_backward(*parts, dropout_p, causal, scale=softmax_scale)):
        into.copy_(grad.transpose(1, 2))
PYTHON
cat > "$folder/ring.py" <<'PYTHON'
import sys
from importlib import import_module

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

RANKS = 2
NAMES = ("out", "dq", "dk", "dv")
DIGITS = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 1e-2}  # largest error over size that is called these digits


def tensors(dtype):
    torch.manual_seed(0)
    return [torch.randn(1, 24, 2, 8).to(dtype) for _ in range(4)]


def on_one_device_in_float32(dtype):
    *qkv, grad = (x.float() for x in tensors(dtype))
    leaves = [x.requires_grad_() for x in qkv]
    out = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in leaves)).transpose(1, 2)
    out.backward(grad)
    return [out.detach(), *(x.grad for x in leaves)]


def worst_errors(ring, dtype, rank):
    *qkv, grad = (x.chunk(RANKS, 1)[rank].clone() for x in tensors(dtype))
    leaves = [x.requires_grad_() for x in qkv]
    out = ring(*leaves)
    out.backward(grad)
    wanted = [x.chunk(RANKS, 1)[rank] for x in on_one_device_in_float32(dtype)]
    errors = [(a - b).norm() / b.norm() for a, b in zip([out.detach(), *(x.grad for x in leaves)], wanted)]
    worst = torch.stack(errors)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    return worst.tolist()


def rank_main(rank, file):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=RANKS)
    for package in ("ring_flash_attn", "yunchang"):
        ring = import_module(package).ring_flash_attn_func
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            named = list(zip(NAMES, worst_errors(ring, dtype, rank)))
            if dtype == torch.float32:
                named = named[:2]  # the others' errors change from run to run
            said = (f"{name} {next((d for d in DIGITS if error < DIGITS[d]), 'wrong')}" for name, error in named)
            if rank == 0:
                print(f"{package}, {str(dtype).removeprefix('torch.')}:", ", ".join(said), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.start_processes(rank_main, (f"{sys.argv[1]}/meeting",), RANKS)
PYTHON
cat > "$folder/expected" <<'TEXT'
ring_flash_attn, float32: out float32, dq wrong
ring_flash_attn, float16: out float16, dq bfloat16, dk float16, dv float16
ring_flash_attn, bfloat16: out bfloat16, dq bfloat16, dk bfloat16, dv bfloat16
yunchang, float32: out float32, dq wrong
yunchang, float16: out float16, dq bfloat16, dk float16, dv float16
yunchang, bfloat16: out bfloat16, dq bfloat16, dk bfloat16, dv bfloat16
TEXT
"$folder/venv/bin/python" -W ignore "$folder/ring.py" "$folder" | tee "$folder/seen"
diff "$folder/expected" "$folder/seen"
