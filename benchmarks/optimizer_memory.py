"""Prints what an optimizer has to hold on the fullest rank, strategy by strategy: arithmetic.

    python benchmarks/optimizer_memory.py --workload dsp-720m --ranks 1,8

The model is made on torch's meta device, where weights have shapes and no memory, once for each
rank. Two columns: two moments a weight in the workload's dtype, as spbench's AdamW has; and
12 bytes a weight, as training in mixed precision has (weights and both moments in float32).
"""

from __future__ import annotations

import argparse

import torch

from spbench.comm.collectives import Collectives
from spbench.comm.fake import silent_transports
from spbench.model.transformer import model_of
from spbench.strategies.registry import load, places
from spbench.workload.catalogue import find, with_settings
from spbench.workload.fields import DTYPE_BYTES
from spbench.workload.workload import Workload

MIXED_BYTES = 12


def most_weights(work: Workload, strategy: str, ranks: int) -> int:
    """Weights of the rank that holds most of them."""

    loaded = load(strategy)
    cut = loaded.flattened(work)

    def held(rank: int) -> int:
        comm = Collectives(silent_transports(rank, ranks).strategy)
        with torch.device("meta"):
            model = model_of(loaded.on(cut, comm.size), comm)
        return sum(weight.numel() for weight in model.parameters())

    return max(map(held, range(ranks)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", default="dsp-720m")
    parser.add_argument("--strategy", default=",".join(places()))
    parser.add_argument("--ranks", default="1,8")
    parser.add_argument("--set", action="append", default=[])
    asked = parser.parse_args()
    work = with_settings(find(asked.workload), asked.set)
    each = 2 * DTYPE_BYTES[work.dtype]
    print(f"{work.name}, {work.dtype}: arithmetic, not measured")
    print(f"strategy      ranks  weights (millions)  {each} bytes each, MB  12 bytes each, MB")
    for strategy in asked.strategy.split(","):
        for ranks in map(int, asked.ranks.split(",")):
            if why := load(strategy).declines(work, ranks):
                print(f"{strategy:13s} {ranks:5d}  {why}")
                continue
            count = most_weights(work, strategy, ranks)
            sizes = f"{count * each / 1e6:19.1f}  {count * MIXED_BYTES / 1e6:17.1f}"
            print(f"{strategy:13s} {ranks:5d}  {count / 1e6:18.1f}  {sizes}")


if __name__ == "__main__":
    main()
