"""What a published case computes, in our terms: a workload, a strategy, ranks, and how it ran.

What cannot be expressed is a Failure with the reason; nothing is left out silently.

A published engine flattens its tokens into one sequence, so several axes that are always attended
jointly become one. The branches of guidance that a mesh has apart are not computed together. Tensor
parallelism beside a strategy is Megatron's with another across its groups: where an engine sums
activations we gather and scatter them, which are as many bytes.
"""

import math
from dataclasses import dataclass
from typing import Any, final

from published_points import Point, PublishedCase, PublishedCell
from published_terms import axes_of, cluster_of, count_of, model_of

from spbench.errors import Failure
from spbench.projection.costmodel.step_time import Mode
from spbench.strategies import registry
from spbench.strategies.registry import (
    ALONE,
    EXCHANGES,
    GATHERING,
    IN_GROUPS,
    MERGING,
    TENSOR,
    UnknownStrategyError,
    load,
)
from spbench.workload.catalogue import find
from spbench.workload.workload import Workload

NO_STRATEGY = "none"
"""How a published case is written whose ranks share no sequence."""
DTYPES = {"nvfp4": "bfloat16", "fp8": "bfloat16"}
FASTER_PRODUCTS = {"nvfp4": 2.5, "fp8": 1.6, "linear": 1.4}
"""Products in fewer bits over those in bfloat16, with the casts that they need; inferred: half of
the specified 4 and 2 times is lost to casts and memory."""
MERGES = 2.0
"""Passes over an output that published rings merge block by block, over those of one fused
kernel: they convert each block to float32 first (ring-flash-attention, utils.py)."""
APART = 2.0
"""Collectives of an exchange whose queries, keys and values go apart, 4 in place of 2, and of a
shift of keys and values."""
NEUTRAL = {"packed_qkv", "pattern", "anything", "offload", "fsdp", "framework"}
"""Options that change no term, or one that is hidden: weights that are gathered or loaded ahead."""
KNOWN = NEUTRAL | {"compiled", "async", "fp8", "blockwise", "checkpointing", "unbalanced"}
KNOWN |= {"padded", "kv_repeated"}
OF_ATTENTION = ("heads", "kv_heads", "head_dim", "batch", "seq")
"""Facts that make an attention."""
OUTER = ("cfg", "dp")
"""Axes of a mesh whose groups exchange nothing but, of data parallelism, gradients."""
TP = "tp"


@final
@dataclass(frozen=True, kw_only=True)
class Counterpart:
    """A published case in our terms."""

    cluster: str
    workload: Workload
    strategy: str
    kernels_of: str
    """The strategy whose kernels run; blocks of keys after a gather have those of a ring."""
    ranks: int
    """Ranks of the strategy, those of one group of the outer mesh."""
    only_backward: bool
    mode: Mode
    """How its engine runs it, but for what its metric covers beside the steps."""


def counterpart(point: Point, cell: PublishedCell, case: PublishedCase) -> Counterpart:
    """A case in our terms. Raises Failure with the reason where there are none."""
    if unknown := sorted(set(case.options) - KNOWN):
        raise Failure(f"option {', '.join(unknown)} is not modelled")
    groups = {name: size for name, size in case.mesh.items() if size > 1}
    if apart := sorted({*groups} - {*OUTER, TP}):
        raise Failure(f"mesh {', '.join(apart)} is not modelled: only cfg, dp and tp are")
    ranks, rest = divmod(cell.ranks, math.prod(groups.values()))
    if rest:
        raise Failure(f"mesh {groups} does not divide {cell.ranks} GPUs")
    tp, facts = groups.pop(TP, 1), point.workload | cell.set
    if tp > 1 and point.op == "attention":
        raise Failure("mesh tp of attention alone is not modelled: give the heads of one rank")
    needed = OF_ATTENTION if point.op == "attention" else ("batch",)
    if unknown := [name for name in needed if facts.get(name) is None]:
        raise Failure(f"{', '.join(unknown)}: not known")
    for name in needed:
        count_of(facts, name)  # which says what it is, where it is no count
    dtype = str(facts.get("dtype") or "bfloat16")
    fp8 = case.options.get("fp8")
    strategy, unmasked = _strategy(case, tp)
    is_uneven = bool(case.options.get("unbalanced"))
    is_blockwise = bool(case.options.get("blockwise"))
    merges = point.op == "attention" and (MERGING in strategy or is_blockwise)
    return Counterpart(
        cluster=cluster_of(point.hardware),
        workload=_workload(point, facts, case, unmasked=unmasked or is_uneven),
        strategy=strategy,
        kernels_of=strategy.replace(GATHERING, MERGING) if is_blockwise else strategy,
        ranks=tp * (1 if case.strategy == NO_STRATEGY else ranks),
        only_backward=point.mode == "backward",
        mode=Mode(
            outer=tuple(sorted(groups.items(), reverse=True)),
            compiled=bool(case.options.get("compiled")),
            attention_kernel=point.kernel or "",
            calls=1.0 if case.options.get("packed_qkv") else APART,
            merges=MERGES if merges else 1.0,
            hidden_exchange=0.5 if case.options.get("async") else 0.0,
            payload=0.625 if fp8 is True else 1.0,
            products=FASTER_PRODUCTS.get("linear" if fp8 == "linear" else dtype, 1.0),
        ),
    )


def _strategy(case: PublishedCase, tp: int) -> tuple[str, bool]:
    """Our name, and whether its ranks wait for attention without a mask: in a ring of contiguous
    shards the last rank has whole blocks in each step, and the others wait."""
    is_unbalanced = case.strategy == registry.UNBALANCED
    own = MERGING if is_unbalanced else case.strategy
    if own == NO_STRATEGY:
        return (TENSOR if tp > 1 else ALONE), False
    if case.options.get("padded"):
        own = _with_option(own, "padded")
    if case.options.get("kv_repeated") not in (None, False, True):
        raise Failure("option kv_repeated is modelled as true: to as many heads as share them out")
    if tp > 1:
        if own not in EXCHANGES:
            exchanges = ", ".join(EXCHANGES)
            raise Failure(f"mesh tp beside {own} is not modelled: it goes beside {exchanges}")
        own = f"{IN_GROUPS}:tp={tp}:across={own}"
    return own, is_unbalanced


def _with_option(strategy: str, option: str) -> str:
    """The name with an option. Raises Failure where the strategy has none of this name."""
    named = f"{strategy}:{option}"
    try:
        load(named)
    except UnknownStrategyError as error:
        raise Failure(f"option {option} is not modelled of {strategy}: {error}") from None
    return named


def _workload(
    point: Point, facts: dict[str, Any], case: PublishedCase, *, unmasked: bool
) -> Workload:
    dtype = str(facts.get("dtype") or "bfloat16")
    run = {
        "dtype": DTYPES.get(dtype, dtype),
        "mode": "forward" if point.mode == "forward" else "train",
        "checkpointing": case.options.get("checkpointing", "none"),
    }
    if point.op == "attention":
        return _attention(facts, run, unmasked=unmasked)
    whole = find(model_of(str(facts.get("model"))))
    if unmasked and any(each.causal for each in whole.attentions):
        raise Failure("contiguous shards of a causal model are not modelled")
    cfg = case.mesh.get("cfg", 1)
    data = whole.model_dump(mode="json", by_alias=True) | run
    guidance = 1 if facts.get("guidance") is None else count_of(facts, "guidance")
    data |= {"batch": facts["batch"], "guidance": max(1, guidance // cfg)}
    if whole.text and facts.get("text") is not None:
        data["text"] = facts["text"]
    data["axes"] = _axes(whole, axes_of(facts))
    return _flat(Workload.model_validate(data))


def _attention(facts: dict[str, Any], run: dict[str, Any], *, unmasked: bool) -> Workload:
    causal = bool(facts.get("causal")) and not unmasked
    return Workload.model_validate(
        run
        | {
            "name": "attention",
            "axes": {"sequence": facts["seq"]},
            "hidden": (facts["heads"] + 2 * facts["kv_heads"]) * facts["head_dim"],
            "heads": facts["heads"],
            "kv_heads": facts["kv_heads"],
            "head_dim": facts["head_dim"],
            "depth": 1,
            "block": [{"attention": "sequence", "causal": causal, "alone": True}],
            "batch": facts["batch"],
        }
    )


def _axes(whole: Workload, axes: dict[str, int]) -> dict[str, int]:
    """The published axes under the catalogue's names; height and width may be one axis there."""
    if "space" in whole.axes and {"height", "width"} <= set(axes):
        inner = axes["height"] * axes["width"]
        axes = {key: n for key, n in axes.items() if key not in ("height", "width")}
        axes = axes | {"space": inner}
    if set(axes) != set(whole.axes):
        raise Failure(f"axes {', '.join(axes)}; {whole.name} has {', '.join(whole.axes)}")
    return {axis: axes[axis] for axis in whole.axes}


def _flat(workload: Workload) -> Workload:
    """One axis in place of several where each attention joins them all."""
    attentions = workload.attentions
    if len(workload.axes) == 1 or any(set(a.axes) != set(workload.axes) for a in attentions):
        return workload
    data = workload.model_dump(mode="json", by_alias=True)
    data |= {"axes": {"sequence": workload.tokens}, "positions": "none"}
    data["modulation"] = "none" if workload.modulation == "none" else "per_sample"
    for part in data["stacks"] or [data]:
        part["block"] = [
            {**each, "attention": "sequence"} if "attention" in each else each
            for each in part["block"]
        ]
    return Workload.model_validate(data)
