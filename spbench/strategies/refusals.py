"""How many ranks can share heads and columns, said in a sentence with values that work."""

from __future__ import annotations

from spbench.workload.block import Attention, CrossAttention, Mlp, Sublayer
from spbench.workload.workload import Workload


def heads_why_not(workload: Workload, ranks: int) -> str | None:
    """For strategies that share the heads of self-attention between the ranks."""
    return _too_few(workload.heads, "heads", ranks)


def cut_why_not(workload: Workload, ranks: int) -> str | None:
    """For strategies that cut the weights of every sublayer, by whole groups of heads."""
    found = []
    for sublayer in workload.block:
        match sublayer:
            case Attention():
                what = "heads" if workload.key_heads == workload.heads else "kv_heads"
                found.append((workload.key_heads, what))
            case CrossAttention():
                own = "heads of cross_attention" if sublayer.heads else "heads"
                found.append((sublayer.heads or workload.heads, own))
            case Mlp():
                found.append((workload.columns(sublayer), "columns of the mlp"))
    fewest, what = min(found)
    return _too_few(fewest, what, ranks)


def _too_few(count: int, what: str, ranks: int) -> str | None:
    if count >= ranks:
        return None
    return (
        f"{count} {what} give {ranks - count} of {ranks} ranks nothing to do; "
        f"use 1 to {count} ranks"
    )


def nothing_to_switch(workload: Workload) -> str:
    """For strategies that shard an axis that is not attended, where each attention takes all."""
    if len(workload.axes) == 1:
        return "it shards an axis that is not attended, and needs a second sequence axis"
    return (
        f"every attention joins {', '.join(workload.axes)}, which leaves no axis to shard; "
        "strategies that share heads, pass keys or cut weights can run it"
    )


def too_short(sublayer: Sublayer, workload: Workload, ranks: int) -> str:
    """For the same, where the axes that ``sublayer`` leaves free are shorter than the ranks."""
    others = [a for a in workload.axes if a not in sublayer.attended] or list(workload.axes)
    axis = max(others, key=workload.axes.__getitem__)
    attended = " and ".join(sublayer.attended)
    while_ = f" while {attended} is attended" if attended else ""
    return (
        f"no axis has {ranks} positions to shard{while_}: the longest is {axis} with "
        f"{workload.axes[axis]}; use 1 to {workload.axes[axis]} ranks"
    )
