#!/usr/bin/env bash
# yunchang's Ulysses with one of torch's attentions lets heads attend to other heads' keys, and has no backward.
#
# Package    yunchang 0.6.4, torch 2.13.0 (CPU build, gloo), Python 3.11
# Behaviour  UlyssesAttention(group, attn_type=AttnType.TORCH_FLASH), not causal, float32: right on 1 rank; on 2 ranks the
#            output is off by more than half of its size. The same with TORCH_MATH, TORCH_EFFICIENT and TORCH_CUDNN. Behind
#            each of the four stands one ring attention over the default group. Ulysses has by then given each rank the whole
#            sequence of its own heads: passing keys round a ring adds those of other ranks' heads. backward() raises.
#            The operation that all four call is for GPUs. torch's one for CPUs is put in its place here, which takes the
#            same tensors and returns the same two results.
# Output     1 rank: right for all four / 2 ranks: wrong for all four / backward: RuntimeError on both
# A guess    that the local attention of Ulysses is local: AttnType.FA is. And that a choice that cannot be trained says so
#            when it is made.
#
# Ends with 0 while it does so, with 1 once it does not.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 yunchang==0.6.4
cat > "$folder/ulysses.py" <<'PYTHON'
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
import yunchang.kernels.attention
from yunchang import UlyssesAttention
from yunchang.kernels import AttnType

TYPES = (AttnType.TORCH_FLASH, AttnType.TORCH_MATH, AttnType.TORCH_EFFICIENT, AttnType.TORCH_CUDNN)


def flash_on_cpu(q, k, v, dropout_p, is_causal, scale):
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout_p, is_causal, scale=scale)


def rank_main(rank, ranks, file):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    yunchang.kernels.attention._scaled_dot_product_flash_attention = flash_on_cpu
    torch.manual_seed(0)
    qkv = [torch.randn(1, 24, 4, 8, requires_grad=True) for _ in range(3)]
    shards = [x.chunk(ranks, 1)[rank] for x in qkv]
    whole = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in qkv)).transpose(1, 2)
    wanted = whole.chunk(ranks, 1)[rank]
    for attn_type in TYPES:
        out = UlyssesAttention(dist.group.WORLD, attn_type=attn_type)(*shards)
        worst = (out - wanted).norm().detach() / wanted.norm().detach()
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        if rank == 0:
            said = "right" if worst < 1e-5 else "off by more than half" if worst > 0.5 else "wrong"
            print(f"{ranks} ranks, {attn_type.value}: {said}", flush=True)
    try:
        out.sum().backward()
    except RuntimeError as error:
        if rank == 0:
            print(f"{ranks} ranks, backward: {error}", flush=True)


if __name__ == "__main__":
    for ranks in (1, 2):
        mp.start_processes(rank_main, (ranks, f"{sys.argv[1]}/meeting{ranks}"), ranks)
PYTHON
cat > "$folder/expected" <<'TEXT'
1 ranks, torch_flash: right
1 ranks, torch_math: right
1 ranks, torch_efficient: right
1 ranks, torch_cudnn: right
1 ranks, backward: Not implemented backward for PyTorch attention types
2 ranks, torch_flash: off by more than half
2 ranks, torch_math: off by more than half
2 ranks, torch_efficient: off by more than half
2 ranks, torch_cudnn: off by more than half
2 ranks, backward: Not implemented backward for PyTorch attention types
TEXT
"$folder/venv/bin/python" -W ignore "$folder/ulysses.py" "$folder" | tee "$folder/seen"
diff "$folder/expected" "$folder/seen"
