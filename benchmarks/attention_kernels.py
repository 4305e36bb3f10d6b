"""Attention's kernels on this GPU, on the shapes that a rank of dsp-720m has.

    python benchmarks/attention_kernels.py --ranks 8

Times forward and backward of torch's scaled_dot_product_attention in bfloat16 (median, ms), and
prints the operations per second of both together. Cross-attention is tried with the text whole and
in pieces (``spbench/layers/attention.py``).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from device_clock import ms_of
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from spbench.layers import attention as layer
from spbench.layers.attention import Scores, attend_whole, cross_attend

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
WHOLE = 2**40


def tensors(*shapes: tuple[int, ...]) -> list[Tensor]:
    options = {"device": "cuda", "dtype": torch.bfloat16, "requires_grad": True}
    return [torch.randn(shape, **options) for shape in shapes]


def line(
    name: str, attend: Callable[[], Tensor], inputs: list[Tensor], forward_flop: float
) -> None:
    """Prints the times of one shape under each backend."""
    text = f"{name:34s}"
    for which, backend in BACKENDS.items():
        with sdpa_kernel(backend):
            try:
                out = attend()
                cotangent = torch.randn_like(out)
                forward_ms = ms_of(attend)
                backward_ms = ms_of(
                    lambda o=out, c=cotangent: torch.autograd.grad(o, inputs, c, retain_graph=True)
                )
            except RuntimeError as error:
                text += f"  {which}: {str(error).splitlines()[0][:40]:40s}"
                continue
        rate = 3.5 * forward_flop / (forward_ms + backward_ms) / 1e9
        text += f"  {which} {forward_ms:7.3f} +{backward_ms:7.3f} ms {rate:4.0f} TFLOP/s"
    print(text)


def self_attention(name: str, shape: tuple[int, ...], dim: int, *, causal: bool = False) -> None:
    q, k, v = tensors(shape, shape, shape)
    scores = Scores(dims=(dim,), causal=causal)
    flop = 4 * q.numel() * shape[dim] / (2 if causal else 1)
    line(name, lambda: attend_whole(q, k, v, scores), [q, k, v], flop)


def cross_attention(name: str, shape: tuple[int, ...], length: int, piece: int) -> None:
    q, k, v = tensors(shape, (shape[0], length, *shape[-2:]), (shape[0], length, *shape[-2:]))
    before, layer.PIECE, layer.LONGER = (layer.PIECE, layer.LONGER), piece, 0
    line(name, lambda: cross_attend(q, k, v), [q, k, v], 4 * q.numel() * length)
    layer.PIECE, layer.LONGER = before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    ranks = parser.parse_args().ranks
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {ranks} ranks")
    by_time, by_space = (1, 64 // ranks, 4096, 16, 72), (1, 64, 4096 // ranks, 16, 72)
    by_heads = (1, 64, 4096, 16 // min(ranks, 16), 72)
    self_attention("space, time sharded", by_time, 2)
    self_attention("time, space sharded", by_space, 1)
    self_attention("space, heads shared out", by_heads, 2)
    self_attention("time, heads shared out", by_heads, 1)
    self_attention("8,192 causal, 4 heads of 128", (1, 8192, 4, 128), 1, causal=True)
    for piece in (WHOLE, 4096, 2048, 1024, 512, 256):
        cut = "whole" if piece == WHOLE else f"pieces of {piece}"
        cross_attention(f"120 of text, space sharded, {cut}", by_space, 120, piece)
        cross_attention(f"120 of text, heads shared, {cut}", by_heads, 120, piece)


if __name__ == "__main__":
    main()
