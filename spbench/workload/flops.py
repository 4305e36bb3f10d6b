"""Parameters of a workload and operations of a step, by formula.

torch's FlopCounterMode cannot see CPU attention, so operations are counted by formula and
tested against that mode on the math backend. A multiply and an add are two operations.

    linear      2 x tokens x in x out
    attention   2 x tokens x attended length x (width of q + width of results)
                                                        (scores, and their product with v)
    causal      as attention, with (length + 1) / 2, the mean number of keys of a position
    streams     as attention, of the positions that ask to those that are asked
    window      as attention, with the mean number of keys of a position; sinks are not counted
    documents   as attention, with the mean number of keys of a position in its document
    projected   as attention to so many keys, and 2 x tokens x projection x (width of k + of v)
    pair bias   2 x length^2 x channels x heads, for each sample
    backward    twice the forward; recomputation is not counted (model operations)
    optimizer   not counted: it works element by element, as norms and activations do
"""

import math
from collections import Counter
from dataclasses import dataclass

from spbench.workload.block import Attention, CrossAttention, Mlp, StreamAttention, Sublayer
from spbench.workload.fields import ACROSS_HEADS, OF_AXES
from spbench.workload.mask import Runs
from spbench.workload.sharding import Sizes, Stretch
from spbench.workload.strands import Between, between, crossings
from spbench.workload.workload import Workload


@dataclass(frozen=True, kw_only=True)
class ParameterCount:
    """Parameters of a workload, by whether a strategy may cut them over the ranks."""

    cuttable: int
    """Weights and biases of projections into sublayers, weights of projections out of them, scales
    of norms across heads."""
    replicated: int
    """Norms, modulation, positions, biases added after a reduction, the final projection."""
    of_heads: int
    """The part of ``replicated`` to whose gradients every head adds: norms of a query or key, what
    keys are projected with."""

    @property
    def total(self) -> int:
        return self.cuttable + self.replicated


def parameters(workload: Workload) -> ParameterCount:
    """The parameters that the model has, exactly."""
    if workload.is_attention_alone:
        return _parameters_alone(workload)
    every = workload.strands
    of_strands = [_of_strand(strand) for strand in every.values()]
    replicated, of_heads = (sum(counts) for counts in zip(*of_strands, strict=True))
    for one, times in crossings(workload):
        # A norm of each side, and the bias of the projection out.
        replicated += times * (_norm(one.asking) + _norm(one.asked) + one.asking.hidden)
    axes = every[OF_AXES]
    return ParameterCount(
        cuttable=sum(cut_parameters(workload, 1)),
        replicated=replicated + _norm(axes) + axes.out_channels * (axes.hidden + 1),
        of_heads=of_heads,
    )


def _norm(workload: Workload) -> int:
    return workload.hidden * (2 if workload.norm == "layer" else 1)


def _of_strand(workload: Workload) -> tuple[int, int]:
    """Replicated parameters of one strand's sublayers, condition and positions; and of those the
    ones to whose gradients every head adds."""
    hidden, replicated, of_heads = workload.hidden, 0, 0
    for part in workload.parts:
        for sublayer in part.block:
            sets = part.depth * weight_sets(sublayer)
            modulates = is_modulated(sublayer, workload)
            # A table of shift, scale and gate to which the condition adds, or the norm's affine.
            own = 3 * hidden if modulates else _norm(workload)
            own += hidden  # the bias of the projection out, which is added after a reduction
            if isinstance(sublayer, Attention):
                of_heads += sets * _of_heads(sublayer, workload)
                own += _score_parameters(sublayer, workload)
            replicated += sets * own
    axes = workload.coordinates.items()
    learned = [n for axis, n in axes if workload.position_of(axis) == "learned"]
    return replicated + _condition_parameters(workload) + sum(learned) * hidden, of_heads


def _condition_parameters(workload: Workload) -> int:
    """One projection of the condition to shift, scale and gate of all sublayers, with its bias."""
    return 3 * modulated(workload) * (workload.hidden**2 + workload.hidden)


def condition_parameters(workload: Workload) -> int:
    """Parameters that project the conditions of all strands."""
    return sum(map(_condition_parameters, workload.strands.values()))


def cut_parameters(workload: Workload, parts: int) -> Sizes:
    """Parameters that each of ``parts`` ranks has of those that are cut, exactly."""
    # Parameters of a place (a number of a head, a column), by the stretch that is cut.
    of_a_place = Counter[Stretch]()
    for strand in workload.strands.values():
        for part in strand.parts:
            for sublayer in part.block:
                for stretch, count in _stretches(sublayer, strand):
                    of_a_place[stretch] += part.depth * weight_sets(sublayer) * count
    for one, times in crossings(workload):
        asking, asked = one.asking.hidden, one.asked.hidden
        # q, k and v with biases; out without
        of_a_place[Stretch(one.heads)] += times * (2 * asking + 2 * asked + 3) * one.head_size
    # 13 heads on 4 ranks: 4, 3, 3 and 3 times what a head has.
    by_kind = [
        [held * count for held in stretch.lengths(parts)] for stretch, count in of_a_place.items()
    ]
    return tuple(sum(of_rank) for of_rank in zip(*by_kind, strict=True))


def _parameters_alone(workload: Workload) -> ParameterCount:
    (attention,) = workload.attentions
    return ParameterCount(
        cuttable=_norms_across_heads(workload),
        replicated=_score_parameters(attention, workload),
        of_heads=_of_heads(attention, workload),
    )


def weight_sets(sublayer: Sublayer) -> int:
    """Weights that a sublayer has for each of its own: two where text has some of its own."""
    return 2 if isinstance(sublayer, Attention | Mlp) and sublayer.double else 1


def _stretches(sublayer: Sublayer, workload: Workload) -> list[tuple[Stretch, int]]:
    """Heads or columns by which its weights are cut, and the parameters of each place of them."""
    hidden = workload.hidden
    match sublayer:
        case Attention():
            # Into q, k and v with a bias each; out of the heads without, which is replicated.
            q, k, v = workload.qkv_stretches
            normed = [(q, 1), (k, 1)] if workload.qk_norm == ACROSS_HEADS else []
            into = [(stretch, hidden + 1) for stretch in (q, k, v)]
            out = (workload.result_stretch(workload.value_size), hidden)
            beside = _stretches(sublayer.beside, workload) if sublayer.beside else []
            return [*into, out, *normed, *beside]
        case CrossAttention():
            heads, head_size = workload.cross_heads(sublayer)
            # q, k, v with biases; out without
            return [(Stretch(heads), (4 * hidden + 3) * head_size)]
        case Mlp():
            columns = Stretch(workload.columns(sublayer))
            return [(columns, sublayer.ways_in * (hidden + 1) + hidden)]
        case StreamAttention():
            return []  # of no strand alone: ``crossings``


def _norms_across_heads(workload: Workload) -> int:
    heads = workload.heads + workload.key_heads
    return heads * workload.head_size if workload.qk_norm == ACROSS_HEADS else 0


def _score_parameters(attention: Attention, workload: Workload) -> int:
    """Replicated parameters of scores: qk-norm, sinks, projection along the sequence, pair bias."""
    return _of_heads(attention, workload) + workload.heads * (attention.pair_bias or 0)


def _of_heads(attention: Attention, workload: Workload) -> int:
    """Those of them to whose gradients every head adds."""
    norms = 2 * workload.head_size if workload.qk_norm is True else 0  # of queries, of keys
    # Linformer's two projections along the sequence, of keys and of values, for all heads.
    sinks = workload.heads if attention.sinks else 0
    return norms + sinks + 2 * (attention.projection or 0) * workload.length(attention)


def is_modulated(sublayer: Sublayer, workload: Workload) -> bool:
    """Whether adaLN acts on it: on self-attention and mlp, as in the DiT family."""
    return workload.modulation != "none" and isinstance(sublayer, Attention | Mlp)


def modulated(workload: Workload) -> int:
    """Sublayers of one strand with vectors of their own in the projection of the condition: blocks
    of a kind share."""
    blocks = {part.block for part in workload.parts}
    return sum(is_modulated(sublayer, workload) for block in blocks for sublayer in block)


def step_flops(workload: Workload) -> int:
    """Operations of one step of the whole batch, all ranks together."""
    # Backward has two products for each of forward: by the input, and by the weight.
    return forward_flops(workload) * (3 if workload.mode == "train" else 1)


def executed_flops(workload: Workload) -> int:
    """Operations of one step with those that checkpointing runs again: a whole forward, or under
    selective checkpointing what the scores of self-attentions take."""
    if workload.recomputes:
        return step_flops(workload) + forward_flops(workload)
    again = 0
    if workload.recomputes_attention:
        again = sum(
            part.depth * score_flops(sublayer, strand)
            for strand in workload.strands.values()
            for part in strand.parts
            for sublayer in part.block
            if isinstance(sublayer, Attention)
        )
    return step_flops(workload) + again


def forward_flops(workload: Workload) -> int:
    """Operations of forward of the whole batch, all ranks together."""
    if workload.is_attention_alone:
        return score_flops(workload.attentions[0], workload)
    total = sum(
        part.depth * sublayer_flops(sublayer, workload)
        for part in workload.parts
        for sublayer in part.block
    )
    for strand in workload.strands.values():
        # Vectors of the condition: one a sample, or one for each position of some axes.
        vectors = strand.samples * math.prod(strand.conditioned_axes.values())
        total += 2 * vectors * 3 * modulated(strand) * strand.hidden**2
    tokens = workload.samples * workload.tokens
    return total + 2 * tokens * workload.hidden * workload.out_channels


def block_flops(workload: Workload) -> list[int]:
    """Operations of forward of each block of the stack; all that is in none counts to the last."""
    of_stacks = [
        [sum(sublayer_flops(sublayer, workload) for sublayer in part.block)] * part.depth
        for part in workload.parts
    ]
    blocks = [flops for of_stack in of_stacks for flops in of_stack]
    blocks[-1] += forward_flops(workload) - sum(blocks)
    return blocks


def sublayer_flops(sublayer: Sublayer, workload: Workload) -> int:
    """Operations of a sublayer in forward, all ranks together."""
    if isinstance(sublayer, StreamAttention):
        return _flops_between(between(sublayer, workload))
    sublayer, workload = workload.at_home(sublayer)
    hidden, tokens = workload.hidden, workload.samples * workload.all_tokens
    match sublayer:
        case Attention():
            width = sum(workload.qkv_widths) + workload.result_width
            beside = sublayer_flops(sublayer.beside, workload) if sublayer.beside else 0
            return 2 * tokens * hidden * width + score_flops(sublayer, workload) + beside
        case CrossAttention():
            tokens = workload.samples * workload.tokens
            width = math.prod(workload.cross_heads(sublayer))
            # q and the way out for each position, k and v for each token of the text.
            ways = 4 * (tokens + workload.samples * sublayer.length) * hidden * width
            return ways + 4 * tokens * sublayer.length * width
        case Mlp():
            return 2 * (sublayer.ways_in + 1) * tokens * hidden * workload.columns(sublayer)
        case StreamAttention():
            raise AssertionError("an attention between strands is of no strand")


def _flops_between(one: Between) -> int:
    """Operations of forward of an attention from strand to strand."""
    asking, asked = (side.samples * side.tokens for side in (one.asking, one.asked))
    # q and the way out for each position that asks, k and v for each that is asked.
    ways = 4 * (asking * one.asking.hidden + asked * one.asked.hidden) * one.width
    return ways + 4 * asking * one.asked.tokens * one.width


def pairs_seen(attention: Attention, workload: Workload, rows: Runs) -> int:
    """Pairs of a query at these positions of one attended sequence and a key that it sees, without
    a projection."""
    if mask := workload.mask(attention):
        return mask.pairs(rows)
    if attention.causal:  # query i sees the keys 0 to i
        return sum(n * first + n * (n + 1) // 2 for first, n in rows)
    return sum(n for _, n in rows) * workload.length(attention)


def score_flops(attention: Attention, workload: Workload) -> int:
    """Operations of the scores of one attention in forward, and of their product with values."""
    # Of each pair of query and key a product of queries' size, and one of results'.
    width = workload.attention_width + workload.result_width
    tokens, length = workload.samples * workload.all_tokens, workload.length(attention)
    if attention.projection:
        # Each position against the projected keys, and each key and value into the projection.
        _, *keys_values = workload.qkv_widths
        return 2 * tokens * attention.projection * (width + sum(keys_values))
    # The bias of each head is a product over the channels of each pair of positions.
    biases = workload.samples * length**2 * (attention.pair_bias or 0) * workload.heads
    pairs = tokens // length * pairs_seen(attention, workload, ((0, length),))
    return 2 * pairs * width + 2 * biases
