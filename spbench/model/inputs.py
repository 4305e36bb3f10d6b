"""Seeded inputs and weights of a step, equal on every rank, whatever part of them it holds.

The activation, text that is attended with it, and the pair tensors are sharded, and so is a
condition for each token; other conditions and cross-attention's context are whole on every rank.
A stream beside the axes has inputs of its own, of all these kinds but text and pairs.

Each tensor has its own random stream, seeded by its name, so that a rank makes any whole
tensor by itself, one at a time, and keeps its part: nothing is broadcast.
"""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from spbench.layers.linear import part_of
from spbench.workload.fields import OF_AXES
from spbench.workload.sharding import Run, Shard
from spbench.workload.workload import Workload

CPU = torch.device("cpu")
ROW_SHIFT = 40.0
"""Further factor on the biases of sharp keys. One number that all keys have in common leaves a
softmax as it is and moves its log-sum-exp: by several hundred, to either side of zero."""


def named_tensor(
    name: str, shape: tuple[int, ...], seed: int, device: torch.device = CPU
) -> Tensor:
    """Standard normal float32 numbers that depend on name, shape, seed and kind of device alone.

    Parameters
    ----------
    name, seed
        What the numbers are drawn by: any other name gives others.
    shape
        Of the whole tensor.
    device
        Where it is made. A CPU and a GPU draw different numbers.

    Returns
    -------
    Tensor
        float32.
    """
    generator = torch.Generator(device).manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    return torch.randn(shape, generator=generator, device=device)


@torch.no_grad()
def load_weights(
    model: nn.Module,
    rank: int,
    seed: int,
    sharpness: float = 1.0,
    keys: Mapping[str, Run] = MappingProxyType({}),
) -> None:
    """Sets weights at the usual scale, biases and tables small but not zero, norms near one.

    They are made on the device of each. Where ``sharpness`` is 8 and more, rows of scores differ by
    hundreds, and all scores of a row are hundreds below zero or above, which a careless softmax,
    log-sum-exp or merge does not survive.

    Parameters
    ----------
    model
        Its parameters are overwritten; of one that is cut, with this rank's part.
    rank
        This rank, among those that share samples.
    seed
        The same weights for the same seed, whatever the strategy.
    sharpness
        Factor on the projections to q, k and v; 1: as they are usual.
    keys
        Where the keys of all heads are in biases of projections to q, k and v, by their names.
    """
    for name, parameter in model.named_parameters():
        if parameter.is_meta:  # there is nothing to fill
            continue
        part = part_of(parameter)
        shape = list(parameter.shape)
        if part is not None:
            shape[part.dim] = part.length
        mean, scale = _mean_and_scale(name, shape)
        whole = named_tensor(name, tuple(shape), seed, parameter.device).mul_(scale).add_(mean)
        if ".qkv" in name or ".kv." in name or ".q." in name:
            whole *= sharpness  # scores grow with its square
            if sharpness > 1.0 and name in keys:
                whole.narrow(0, *keys[name]).mul_(ROW_SHIFT)
        if part is not None:
            # A rank of cut weights keeps its runs of each stretch: queries, keys and values apart.
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


Held = Mapping[int, Sequence[Run]]
"""The parts of a tensor along its dims that a rank holds, the sharded axis first; of other dims it
has all."""
PIECES = 64
"""Pieces at most that a seeded tensor is made in."""


class Samples(NamedTuple):
    """Samples of a rank, as (first, count); None: all."""

    computed: Run | None
    entering: Run | None
    """Those of inputs that get gradients: none where another stage of a pipeline is given them."""


@final
@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Inputs of one model."""

    x: Tensor
    """(B, *axes, H)."""
    conditions: tuple[Tensor, ...]
    """One of (B, H), or of (B, T, H) with a vector for each position of time; or one of
    (B, *axes, H) for each of the model's ``condition_cuts``, as the activation is cut there."""
    context: Tensor
    """(B, L, H), the tokens that cross-attention attends to."""
    text: Tensor | None
    """(B, L, H), the tokens that take part in self-attention; its L is sharded. None: there are
    none."""
    pairs: dict[str, Tensor]
    """(B, S, S, C) for each axis whose attention has a pair bias; its first S is sharded."""
    streams: dict[str, "Inputs"] = field(default_factory=dict)
    """Those of each stream beside the axes, whose activation is (B, S, H)."""

    @property
    def tensors(self) -> list[Tensor]:
        of_streams = [x for own in self.streams.values() for x in (*own.conditions, own.context)]
        return [*self.leaves, *self.conditions, self.context, *of_streams]

    @property
    def leaves(self) -> list[Tensor]:
        """Inputs that get gradients."""
        text = [] if self.text is None else [self.text]
        streams = [x for own in self.streams.values() for x in own.leaves]
        return [self.x, *text, *self.pairs.values(), *streams]

    def map(self, change: Callable[[Tensor], Tensor]) -> "Inputs":
        return Inputs(
            x=change(self.x),
            conditions=tuple(map(change, self.conditions)),
            context=change(self.context),
            text=None if self.text is None else change(self.text),
            pairs={axis: change(pair) for axis, pair in self.pairs.items()},
            streams={name: own.map(change) for name, own in self.streams.items()},
        )

    def with_leaves(self, leaves: Sequence[Tensor], **others: Any) -> "Inputs":
        """Others in the place of ``leaves``, in their order; and of ``others``, by name."""
        assert not self.streams, "stages of a pipeline pass on no streams"
        x, *rest = leaves
        text = None if self.text is None else rest.pop(0)
        pairs = dict(zip(self.pairs, rest, strict=True))
        return replace(self, x=x, text=text, pairs=pairs, **others)

    def requiring_grad(self, wanted: bool) -> "Inputs":
        """These inputs; all but condition and context get gradients if ``wanted``."""
        for leaf in self.leaves:
            leaf.requires_grad_(wanted)
        return self

    def forget_gradients(self) -> None:
        for leaf in self.leaves:
            leaf.grad = None

    @property
    def gradients(self) -> dict[str, Tensor]:
        """Gradients that a backward pass has left, by name."""
        named = {"gradient of the input": self.x.grad}
        named |= {} if self.text is None else {GRADIENT_OF_TEXT: self.text.grad}
        named |= {gradient_name(axis): pair.grad for axis, pair in self.pairs.items()}
        named |= {gradient_of_stream(name): own.x.grad for name, own in self.streams.items()}
        return {name: grad for name, grad in named.items() if grad is not None}


GRADIENT_OF_TEXT = "gradient of the text"


def gradient_name(axis: str) -> str:
    return f"gradient of the pairs of {axis}"


def gradient_of_stream(name: str) -> str:
    return f"gradient of stream {name}"


def seeded(
    workload: Workload,
    seed: int,
    device: torch.device = CPU,
    dtype: torch.dtype = torch.float32,
    cuts: Mapping[str, Shard] = MappingProxyType({}),
    condition_cuts: Sequence[Shard | None] = (None,),
    rank: int = 0,
    samples: Samples | None = None,
) -> Inputs:
    """Inputs on ``device``, the same for any strategy; of those in ``cuts`` what ``rank`` holds.

    Parameters
    ----------
    workload, seed
        What the inputs are of, and what their numbers are drawn by.
    device, dtype
        Where they are made, and as what.
    cuts
        How the activation, text, pairs and streams are cut, by name; whole where it has none.
    condition_cuts
        A condition for each: how it is cut; None: it is whole.
    rank
        Whose parts they are.
    samples
        Those that are wanted of all; None: all.

    Returns
    -------
    Inputs
        In shapes of what ``rank`` holds.
    """
    of_samples = samples or Samples(None, None)
    makes = partial(seeded_part, seed=seed, device=device, dtype=dtype)

    def of_strand(stream: str, cuts: Mapping[str, Shard], cut_as: Sequence[Shard | None]) -> Inputs:
        strand = workload.strands[stream]
        batch, hidden = strand.samples, strand.hidden
        axes, row = (batch, *strand.axes.values()), positions_of_a_row(strand)

        def part(
            name: str,
            shape: tuple[int, ...],
            cut: Shard | None,
            row: int = 1,
            of: Run | None = of_samples.entering,
        ) -> Tensor:
            name = f"{name} of {stream}" if stream else name
            return makes(name, shape, held=held_by(rank, cut, of), row=row)

        def pairs_of(axis: str, channels: int) -> Tensor:
            name, length = f"pairs of {axis}", strand.axes[axis]
            return part(name, (batch, length, length, channels), cut=cuts.get(name))

        condition = (batch, *strand.conditioned_axes.values(), hidden)
        context = (batch, max(1, strand.context_tokens), hidden)
        of_tokens = row if strand.modulation == "per_token" else 1
        computed = of_samples.computed
        return Inputs(
            x=part("x", (*axes, hidden), cut=cuts.get("x"), row=row),
            conditions=tuple(
                part("condition", condition, cut=cut, row=of_tokens, of=computed) for cut in cut_as
            ),
            context=part("context", context, cut=None, of=computed),
            text=part("text", (batch, strand.text, hidden), cut=cuts.get("text"))
            if strand.text
            else None,
            pairs={axis: pairs_of(axis, channels) for axis, channels in strand.pairs.items()},
        )

    def of_stream(name: str) -> Inputs:
        cut = cuts.get(f"stream {name}")
        along = cut if workload.modulation == "per_token" else None
        return of_strand(name, {} if cut is None else {"x": cut}, [along])

    streams = {name: of_stream(name) for name in workload.streams}
    return replace(of_strand(OF_AXES, cuts, condition_cuts), streams=streams)


def positions_of_a_row(workload: Workload) -> int:
    """How many positions of the first axis have the same place along the first of the model's that
    it is: 1, but for axes that are one. Of 21 x 30 x 52 positions in a row 30 x 52."""
    _, *inner = workload.grid(next(iter(workload.axes))).values()
    return prod(inner)


def held_by(rank: int, cut: Shard | None, samples: Run | None) -> Held:
    """What ``rank`` holds of a tensor that is ``cut``, of these ``samples``; None: of all."""
    held = {of_dim.dim: of_dim.runs[rank] for of_dim in cut.cuts} if cut else {}
    return held if samples is None else {**held, 0: [samples]}


def seeded_part(
    name: str,
    shape: tuple[int, ...],
    seed: int,
    *,
    device: torch.device,
    dtype: torch.dtype,
    held: Held,
    row: int = 1,
) -> Tensor:
    """A rank's part of a seeded tensor: what is ``held`` of it.

    It is made in pieces along dim 1, the first sequence axis, so that no rank ever holds a whole
    activation. The sharded axis is the outermost in memory. ``row``: positions of dim 1 that a
    piece has all of or none (``positions_of_a_row``), so that a strategy for which several axes
    are one gets the numbers of one for which they are not.

    Parameters
    ----------
    name, shape, seed
        Of the whole tensor.
    device, dtype
        Where the part is made, and as what.
    held
        The runs that the rank has along each dim; all of a dim that is not there.
    row
        Positions of dim 1 that a piece has all of or none.

    Returns
    -------
    Tensor
        The part, the first dim of ``held`` outermost in memory.
    """
    sizes, outermost = list(shape), next(iter(held), 0)
    for dim, runs in held.items():
        sizes[dim] = sum(length for _, length in runs)
    # In memory the sharded dim comes first; seen, it is where it was.
    sizes.insert(0, sizes.pop(outermost))
    part = torch.empty(sizes, device=device, dtype=dtype).movedim(0, outermost)
    if part.is_meta or not part.numel():  # there is nothing to fill
        return part
    filled, rows = 0, shape[1] // row
    most = math.ceil(rows / PIECES)  # rows of a piece
    # 100 rows in pieces of 2 are 50; 30 rows are 30 pieces of 1. A piece depends on where it
    # begins, never on who makes it.
    for first in range(0, rows, most):
        piece = (shape[0], min(most, rows - first) * row, *shape[2:])
        inside = {dim: _inside(runs, dim, first * row, piece) for dim, runs in held.items()}
        if not all(inside.values()):
            continue
        kept = named_tensor(f"{name} from {first}", piece, seed, device)
        for dim in reversed(inside):  # the samples first, of which a rank may have few
            kept = torch.cat([kept.narrow(dim, *run) for run in inside[dim]], dim)
        part.narrow(1, filled, kept.shape[1]).copy_(kept)
        filled += kept.shape[1]
    return part


def _inside(runs: Sequence[Run], dim: int, first: int, piece: tuple[int, ...]) -> list[Run]:
    """The runs in a piece that begins at ``first`` of dim 1, from its own beginning."""
    if dim != 1:
        return list(runs)
    # the part of each run that lies between the piece's first position and its end
    ends = [(max(start, first), min(start + n, first + piece[1])) for start, n in runs]
    return [(start - first, end - start) for start, end in ends if start < end]
