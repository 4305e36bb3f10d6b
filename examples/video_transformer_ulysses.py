"""A small video transformer: attention along space, attention along time, an mlp.

B samples, T frames, S patches a frame, C channels; Z heads of D features.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spbench import SequenceGroup

TIME, SPACE, HEADS = 1, 2, 3
DEPTH = 2


class Attention(nn.Module):
    """Self-attention of (B, T, S, H) along one dim; the other is batch."""

    sp: SequenceGroup | None = None

    def __init__(self, hidden: int, heads: int, dim: int):
        super().__init__()
        self.heads, self.dim = heads, dim
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (self.heads, -1))  # (B, T, S, Z, 3 D)
        qkv = self.sp.switch(qkv, self.dim, HEADS) if self.sp else qkv
        q, k, v = qkv.movedim(self.dim, -2).chunk(3, dim=-1)  # (B, the other, Z, attended, D)
        x = F.scaled_dot_product_attention(q, k, v).movedim(-2, self.dim)  # (B, T, S, Z, D)
        x = self.sp.switch(x, HEADS, self.dim) if self.sp else x
        return self.out(x.flatten(-2))


class Block(nn.Module):
    """(B, T, S, H) -> (B, T, S, H)."""

    def __init__(self, hidden: int, heads: int):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(3))
        self.over_space = Attention(hidden, heads, SPACE)
        self.over_time = Attention(hidden, heads, TIME)
        self.mlp = nn.Sequential(
            nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.over_space(self.norms[0](x))
        x = x + self.over_time(self.norms[1](x))
        return x + self.mlp(self.norms[2](x))


class VideoTransformer(nn.Module):
    """(B, T, S, C) -> (B, T, S, C)."""

    def __init__(self, frames: int, patches: int, channels: int, hidden: int, heads: int, sp):
        super().__init__()
        self.sp = sp
        self.embed = nn.Linear(channels, hidden)
        self.time = nn.Parameter(torch.randn(frames, 1, hidden))
        self.space = nn.Parameter(torch.randn(patches, hidden))
        self.blocks = nn.Sequential(*(Block(hidden, heads) for _ in range(DEPTH)))
        self.head = nn.Linear(hidden, channels)
        for block in self.blocks:
            block.over_time.sp = sp
        sp.sum_gradients(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.sp.shard(self.embed(x) + self.time + self.space, TIME)
        return self.head(self.blocks(x))
