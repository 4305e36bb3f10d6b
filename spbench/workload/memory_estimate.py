"""About the memory of a rank's step, by formula: what it keeps, not what passes by."""

from __future__ import annotations

from spbench.workload.block import Attention, Mlp, Sublayer
from spbench.workload.flops import modulated, parameters
from spbench.workload.workload import DTYPE_BYTES, Workload


def step_bytes(
    workload: Workload, ranks: int, *, parts: int, copies: int, scored_axis: str
) -> float:
    """About the peak of a rank in a step: weights, gradients, the optimizer's moments, and what
    backward needs of its part.

    ``parts``: ranks that cut weights; ``copies``: ranks that hold each position between two
    sublayers; ``scored_axis``: of attention along it scores are kept, too.
    """
    count, part = parameters(workload), 1 / ranks
    weights = count.replicated + count.cuttable / parts
    sets = 1 if workload.mode == "forward" else 2 if workload.optimizer == "none" else 4
    whole = copies * workload.samples * workload.all_tokens * workload.hidden
    kept = _kept_in_all(workload, scored_axis, copies)
    if workload.recomputes:
        kept += workload.blocks * whole
    if workload.modulation == "per_token":
        kept += 3 * modulated(workload) * whole
    return DTYPE_BYTES[workload.dtype] * (sets * weights + part * (kept + 2 * whole))


def _kept_in_all(workload: Workload, scored_axis: str, copies: int) -> float:
    """About the elements kept at once: of all blocks, of the largest, or of a sublayer alone."""
    parts = workload.parts
    blocks = [
        sum(_kept(each, workload, scored_axis, copies) for each in part.block) for part in parts
    ]
    if workload.mode == "forward":
        return max(kept / len(part.block) for kept, part in zip(blocks, parts, strict=True))
    if workload.recomputes:
        return max(blocks)
    return sum(kept * part.depth for kept, part in zip(blocks, parts, strict=True))


def _kept(sublayer: Sublayer, workload: Workload, scored_axis: str, copies: int) -> float:
    """About the elements that backward needs of a sublayer; of scores where a bias needs them."""
    tokens, hidden = workload.samples * workload.all_tokens, copies * workload.hidden
    match sublayer:
        case Attention(projection=None):
            times = 2.0 if sublayer.pair_bias else 1.25 * (scored_axis in sublayer.attended)
            widths = 4 * (hidden + workload.attention_width)
            widths += _kept_columns(sublayer.beside, workload) if sublayer.beside else 0
            return tokens * (widths + times * workload.length(sublayer) * workload.heads)
        case Mlp():
            return tokens * (4 * hidden + _kept_columns(sublayer, workload))
    return 4 * tokens * (hidden + workload.hidden)


def _kept_columns(mlp: Mlp, workload: Workload) -> int:
    return (mlp.ways_in + 1) * workload.columns(mlp)
