"""Proves that a model of your own, made parallel, equals one device. On two CPU ranks:

    torchrun --nproc-per-node 2 examples/own_model.py

``video_transformer.py`` is the plain model, without spbench; the other two differ from it in ten
lines each. No length divides by two.
"""

import os
import sys

import torch
import torch.distributed as dist
import video_transformer
import video_transformer_dsp
import video_transformer_ulysses
from video_transformer import HEADS, SPACE, TIME

import spbench

SIZES = {"frames": 13, "patches": 9, "channels": 4, "hidden": 40, "heads": 5}


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)  # the same weights and inputs on every rank
    plain = video_transformer.VideoTransformer(**SIZES)
    x = torch.randn(2, SIZES["frames"], SIZES["patches"], SIZES["channels"])
    for form in (video_transformer_dsp, video_transformer_ulysses):
        sp = spbench.SequenceGroup({TIME: 13, SPACE: 9, HEADS: 5})
        proof = spbench.prove(plain, form.VideoTransformer(**SIZES, sp=sp), x, group=sp)
        if sp.rank == 0:
            print(f"{form.__name__} is {proof}")
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" not in os.environ:
        sys.exit("start it with: torchrun --nproc-per-node 2 examples/own_model.py")
    main()
