"""Attention from one strand of a workload to another: its sizes.

A workload with streams is workloads side by side (``WorkloadFields.strands``): a strand of the
axes, and one of each stream.

    axes {time: 16, height: 34, width: 60}, streams {audio: 126}

    strand ""        attention over time, height, width; cross-attention to text; mlp
    strand "audio"   attention over audio; cross-attention to text; mlp
    between them     attention from the axes to audio, and from audio to the axes

A strand has the sizes, weights, operations, plan and inputs of any workload. What is left is
attention between strands, whose queries are of the one and whose keys are of the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

from spbench.workload.block import AXES, Attention, StreamAttention
from spbench.workload.fields import DTYPE_BYTES, OF_AXES
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True, kw_only=True)
class Between:
    """Attention from the positions of one strand to those of another: its sizes."""

    asking: Workload
    """The strand whose positions have queries, and get the results."""
    asked: Workload
    """The strand whose positions have keys and values."""
    asked_name: str
    heads: int
    head_size: int
    """Numbers of a head of queries, keys and values alike."""

    @property
    def width(self) -> int:
        """Numbers of all heads at one position."""
        return self.heads * self.head_size

    @property
    def attended(self) -> Workload:
        """The keys' positions as one axis, and attention along it with these heads: what a strategy
        is asked about that shares out the heads or passes the keys."""
        axis = self.asked_name or AXES
        attention = Attention.model_construct(axes=(axis,))
        changes: dict[str, Any] = {"qk_norm": False, "positions": "none", "modulation": "none"}
        changes |= {"heads": self.heads, "head_dim": self.head_size, "kv_heads": None}
        changes |= {"v_head_dim": None, "stacks": None, "depth": 1, "block": (attention,)}
        positions = self.asking.on_grids({axis: {axis: self.asked.tokens}})
        return positions.model_copy(update=changes)

    @property
    def token_bytes(self) -> int:
        """Bytes of the queries of one position of all samples, or of its keys, or of its values."""
        return self.asking.samples * self.width * DTYPE_BYTES[self.asking.dtype]


@lru_cache(maxsize=100)
def between(sublayer: StreamAttention, workload: Workload) -> Between:
    """The sizes of an attention to another strand."""
    sides = workload.strands
    asked_name = OF_AXES if sublayer.to == AXES else sublayer.to
    asking = sides[sublayer.stream or OF_AXES]
    heads, size = sublayer.heads or asking.heads, sublayer.head_dim
    if size is None:
        size = asking.hidden // heads if sublayer.heads else asking.head_size
    return Between(
        asking=asking, asked=sides[asked_name], asked_name=asked_name, heads=heads, head_size=size
    )


def crossings(workload: Workload) -> Iterator[tuple[Between, int]]:
    """The attentions from strand to strand of each stack's block, and how often that repeats."""
    for part in workload.parts:
        for sublayer in part.block:
            if isinstance(sublayer, StreamAttention):
                yield between(sublayer, workload), part.depth
