"""Bytes that a rank sends in one layer, counted from the strategies' transfers: exact.

What a layer adds to a stack is counted, since the end of a stack may do without a last switch.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from markdown import table
from paper_facts import facts

from spbench.strategies.registry import load
from spbench.workload.catalogue import find, with_settings
from spbench.workload.fields import DTYPE_BYTES
from spbench.workload.traffic import Transfer, count
from spbench.workload.workload import Workload

RANKS = (2, 4, 8, 16)
LAYER = "block=[{attention: space}, {mlp: 4}, {attention: time}, {mlp: 4}]"
SHALLOW, DEEP = 3, 5
"""Layers of two stacks: a layer is half of what the deeper one sends more."""


def layer_bytes(
    workload: Workload, strategy: str, ranks: int, phases: Sequence[str] = ("forward",)
) -> Fraction:
    """Bytes that rank 0 sends in one layer in these phases."""
    deep, shallow = (
        sum(
            sent
            for (phase, _, _), sent in count(
                _transfers(workload, strategy, ranks, depth), 0
            ).items()
            if phase in phases
        )
        for depth in (DEEP, SHALLOW)
    )
    return Fraction(deep - shallow) / (DEEP - SHALLOW)


def _transfers(workload: Workload, strategy: str, ranks: int, depth: int) -> list[Transfer]:
    loaded, work = load(strategy), with_settings(workload, [f"depth={depth}"])
    return loaded.on(loaded.flattened(work), ranks).traffic


def dsp_table() -> str:
    """Each published volume of DSP's paper, and what is counted of it."""
    whole = with_settings(find("dsp-720m"), [LAYER, "checkpointing=none"])
    rows = []
    for strategy, formula in facts("dsp")["volumes"].items():
        over = " / N" if formula["over_ranks"] else ""
        sent = [layer_bytes(whole, strategy, ranks) for ranks in RANKS]
        right = [
            Fraction(formula["times"] * whole.activation_bytes, n if over else 1) for n in RANKS
        ]
        ratios = [str(one / other) for one, other in zip(sent, right, strict=True)]
        rows.append([f"`{strategy}`", f"{formula['times']} M{over}", *ratios])
    head = ("strategy", "published", *(f"counted over it, N = {ranks}" for ranks in RANKS))
    return table(head, rows)


def rsa_table() -> str:
    """Each published volume of RSA's paper, and what is counted of it."""
    whole = find("bert-large")
    rows = []
    for formula in facts("rsa")["volumes"]:
        ratios = []
        for ranks in RANKS:
            sent = layer_bytes(whole, formula["strategy"], ranks, formula["phases"])
            elements = sent / DTYPE_BYTES[whole.dtype]
            unit = Fraction((ranks - 1) * whole.batch * whole.tokens * whole.hidden, ranks)
            ratios.append(str(elements / (formula["times"] * unit)))
        rows.append([formula["what"], f"{formula['times']} (N - 1) B Z (L / N) A", *ratios])
    head = ("what", "published, elements", *(f"counted over it, N = {ranks}" for ranks in RANKS))
    return table(head, rows)
