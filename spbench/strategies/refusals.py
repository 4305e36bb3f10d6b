"""Reasons why a strategy cannot run on a number of ranks, with numbers that would work."""

from collections.abc import Sequence

from spbench.workload.block import Attention, CrossAttention
from spbench.workload.fields import ACROSS_HEADS, OF_AXES
from spbench.workload.workload import Workload


def divisors(ranks: int) -> list[int]:
    """The sizes of groups that so many ranks make, in ascending order."""
    return [size for size in range(1, ranks + 1) if ranks % size == 0]


def heads_why_not(workload: Workload, ranks: int) -> str | None:
    """Why the heads of self-attention cannot be split over the ranks; or None."""
    return _too_few(workload.heads, "heads", ranks)


def cut_why_not(workload: Workload, ranks: int, *, copies: bool = True) -> str | None:
    """Why the weights of every sublayer cannot be cut by heads and columns; or None.

    ``copies``: whether several ranks may hold a copy of a key head, each with some of its queries.
    """
    if workload.is_attention_alone:
        return (
            "an attention alone has no projections whose weights could be cut; strategies that "
            "share heads or pass keys can run it"
        )
    limits = []
    for sublayer in workload.strands[OF_AXES].kinds:
        match sublayer:
            case Attention():
                # A norm of all keys of a position would count the squares of copies twice.
                may_copy = copies and workload.qk_norm != ACROSS_HEADS
                heads = workload.heads if may_copy else workload.key_heads
                limits.append((heads, "heads" if heads == workload.heads else "kv_heads"))
            case CrossAttention():
                unit = "heads of cross_attention" if sublayer.heads else "heads"
                limits.append((sublayer.heads or workload.heads, unit))
    limits += [(workload.columns(mlp), "columns of the mlp") for mlp in workload.mlps]
    return _too_few(*min(limits), ranks) if limits else None


def tp_why_not(workload: Workload, size: int) -> str | None:
    """Why groups of ``size`` ranks cannot cut the weights; or None."""
    if any(attention.pair_bias for attention in workload.attentions):
        return (
            f"groups of tp={size} do not share out a pair bias, by rows across them and by heads "
            "inside; leave out the option tp"
        )
    if workload.streams:
        return (
            f"groups of tp={size} do not share out streams beside the axes "
            f"({', '.join(workload.streams)}); leave out the option tp"
        )
    why_not = cut_why_not(workload, size, copies=False)
    return why_not and why_not.replace(" ranks; use", f" ranks of tp={size}; use")


def _too_few(count: int, unit: str, ranks: int) -> str | None:
    if count >= ranks:
        return None
    return f"{count} {unit} cannot be split over {ranks} ranks; use 1 to {count} ranks"


def blocks_why_not(axis: str, workload: Workload) -> str | None:
    """Why attention along ``axis`` cannot go block by block of keys, on any number of ranks."""
    for attention in workload.attentions:
        # Positions are in row order: of time and space an earlier time comes before all of a later
        # one.
        outermost = next(a for a in workload.axes if a in attention.axes)
        if attention.causal and axis in attention.axes and axis != outermost:
            joined = " and ".join(a for a in workload.axes if a in attention.axes)
            return (
                f"a causal mask over {joined} leaves whole blocks of keys along {outermost} alone; "
                f"shard that axis, of {workload.axes[outermost]} positions"
            )
    return None


def biased_why_not(axis: str, workload: Workload) -> str | None:
    """Why attention along ``axis`` cannot be merged from parts, on any number of ranks."""
    along_axis = [attention for attention in workload.attentions if axis in attention.axes]
    if not any(attention.pair_bias for attention in along_axis):
        return None
    return (
        f"kernels that give the log-sum-exp take no pair bias, which attention along {axis} has; "
        "shard another axis, or take a strategy that shares heads, gathers keys or keeps scores"
    )


def banded_why_not(axis: str, workload: Workload) -> str | None:
    """Why attention along ``axis`` cannot leave out keys by a window or documents, or cannot have
    sinks; or None."""
    along_axis = [attention for attention in workload.attentions if axis in attention.axes]
    kinds = {"window": "a window", "sinks": "sinks", "documents": "documents"}
    has = [key for key in kinds if any(getattr(each, key) for each in along_axis)]
    if not has:
        return None
    return (
        f"it keeps whole rows of scores, and does not serve {kinds[has[0]]}, as attention along "
        f"{axis} has; shard another axis, or take ring, or a strategy that gathers keys or shares "
        "heads"
    )


def grouped_why_not(axis: str, workload: Workload) -> str | None:
    """Why attention along ``axis`` cannot go by groups of ranks and parts of keys; or None."""
    if not any(
        attention.projection and axis in attention.axes for attention in workload.attentions
    ):
        return biased_why_not(axis, workload)
    return (
        f"the projection of keys along {axis} is a sum over all ranks, which groups of ranks do "
        "not make; shard another axis, or take a strategy with one group"
    )


def size_misfit(**sizes: str) -> str | None:
    """Why an option with that value is neither a number of ranks nor ``auto``; or None."""
    ((option, size),) = sizes.items()
    if size == "auto" or (size.isdecimal() and int(size)):
        return None
    return f"{option}={size} is not a number of ranks; write {option}=2, or {option}=auto"


def chunks_misfit(chunks: str) -> str | None:
    """Why an option with that value is no number of chunks; or None."""
    if chunks == "auto" or (chunks.isdecimal() and int(chunks)):
        return None
    return f"chunks={chunks} is not a number of chunks; write chunks=2, or chunks=auto"


def groups_why_not(ranks: int, **sizes: str) -> str | None:
    """Why ``ranks`` do not make groups of the size of an option, unless it is ``auto``; or None."""
    ((option, size),) = sizes.items()
    if size == "auto" or ranks % int(size) == 0:
        return None
    fit = ", ".join(map(str, divisors(ranks)))
    return (
        f"{ranks} ranks do not make groups of {option}={size}; {option} may be {fit}, or "
        f"use a multiple of {size} ranks"
    )


def across_misfit(across: str, names: Sequence[str]) -> str | None:
    """Why the option ``across`` names no strategy that could attend there; or None."""
    if across in names:
        return None
    return f"across={across} is not known; it may be {', '.join(names)}"
