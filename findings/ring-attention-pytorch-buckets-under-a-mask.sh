#!/usr/bin/env bash
# ring-attention-pytorch attends to the wrong keys under a mask, where a rank's positions are no multiple of the bucket.
#
# Package    ring-attention-pytorch 0.5.20, torch 2.13.0 (CPU build, gloo), Python 3.11
# Behaviour  ring_flash_attn(..., causal=True, ring_reduce_col=True) on 2 ranks with 1,536 positions each: at the default
#            bucket_size, 1,024, the output is off by 1e-2; at 512 and 768 it is one device's to 1e-6. A rank's buckets are
#            counted by a division that rounds down: of two buckets, one whole and one half, it counts one, so that those of
#            the second rank begin one too early, and the mask lies elsewhere. Without a mask nothing is numbered, and all is
#            right. Nothing warns.
# Output     bucket_size 512: right / bucket_size 768: right / bucket_size 1024: wrong
# A guess    that a bucket is how much is computed at once, and no part of the result.
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

RANKS, POSITIONS = 2, 3072


def rank_main(rank, file):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    qkv = [torch.randn(1, POSITIONS, 2, 8) for _ in range(3)]
    wanted = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in qkv), is_causal=True).transpose(1, 2)
    for bucket in (512, 768, 1024):
        mine = (x.chunk(RANKS, 1)[rank] for x in qkv)
        out = ring_flash_attn(*mine, causal=True, bucket_size=bucket, ring_reduce_col=True, ring_size=RANKS)
        own = wanted.chunk(RANKS, 1)[rank]
        worst = (out - own).norm() / own.norm()
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        if rank == 0:
            print(f"bucket_size {bucket}: {'right' if worst < 1e-5 else 'wrong'}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.start_processes(rank_main, (f"{sys.argv[1]}/meeting",), RANKS)
PYTHON
cat > "$folder/expected" <<'TEXT'
bucket_size 512: right
bucket_size 768: right
bucket_size 1024: wrong
TEXT
"$folder/venv/bin/python" "$folder/ring.py" "$folder" | tee "$folder/seen"
diff "$folder/expected" "$folder/seen"
