"""Weights that are equal on every rank, whatever part of them it holds.

Each tensor has its own random stream, seeded by its name, so that a rank makes any whole
tensor by itself, one at a time, and keeps its part: nothing is broadcast.
"""

import zlib

import torch
from torch import Tensor, nn

from spbench.layers.linear import part_of

CPU = torch.device("cpu")
ROW_SHIFT = 40.0
"""Further factor on the biases of sharp keys. One number that all keys have in common leaves a
softmax as it is and moves its log-sum-exp: by several hundred, to either side of zero."""


def named_tensor(
    name: str, shape: tuple[int, ...], seed: int, device: torch.device = CPU
) -> Tensor:
    """Standard normal float32 numbers that depend on name, shape, seed and kind of device alone;
    none on the device ``meta``."""
    if device.type == "meta":
        return torch.empty(shape, device=device)
    generator = torch.Generator(device).manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    return torch.randn(shape, generator=generator, device=device)


@torch.no_grad()
def load_weights(
    model: nn.Module, rank: int, seed: int, sharpness: float = 1.0, key_heads: int = 0
) -> None:
    """Sets weights at the usual scale, biases and tables small but not zero, norms near one.

    They are made on the device of each. ``sharpness`` multiplies the projections to q, k and v: at
    8 and more, rows of scores differ by hundreds, and all scores of a row are hundreds below zero
    or above, which a careless softmax, log-sum-exp or merge does not survive. ``key_heads``: of the
    self-attentions, whose heads are those of queries, of keys and of values, one after another.
    """
    for name, parameter in model.named_parameters():
        part = part_of(parameter)
        shape = list(parameter.shape)
        if part is not None:
            shape[part.dim] = part.length
        mean, scale = _mean_and_scale(name, shape)
        whole = named_tensor(name, tuple(shape), seed, parameter.device).mul_(scale).add_(mean)
        if ".qkv" in name or ".kv." in name or ".q." in name:
            whole *= sharpness
            if sharpness > 1.0 and name.endswith(".qkv.bias"):
                whole[-2 * key_heads : -key_heads] *= ROW_SHIFT
        if part is not None:
            whole = torch.cat([whole.narrow(part.dim, *run) for run in part.runs[rank]], part.dim)
        parameter.copy_(whole)


def _mean_and_scale(name: str, shape: list[int]) -> tuple[float, float]:
    """The scale goes by the elements that each output sums over: out of attention by two dims."""
    if name.endswith("norm.weight"):
        return 1.0, 0.1
    if not name.endswith(".weight"):
        return 0.0, 0.1
    out_of_heads = len(shape) == 3 and name.endswith(".out.weight")
    return 0.0, (shape[-1] * shape[-2] if out_of_heads else shape[-1]) ** -0.5
