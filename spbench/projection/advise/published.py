"""What a comparison with published measurements lets an answer say.

A winner is named that wins in nine of ten draws (``SURE``) against all others, and the draws hold
what strategies alone are off by on such machines (``costmodel.scatter``). What choosing by a
projection has cost there stands beside the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spbench.projection.advise.project import Projection
from spbench.projection.costmodel.scatter import MachineClass, figures
from spbench.report import units
from spbench.results.record import SURE
from spbench.text import counted

LINKS = {"nvlink": "NVLink", "pcie": "PCIe"}
"""Links as people write them."""


def share_of_wins(best: Projection, others: Sequence[Projection]) -> float:
    """The share of draws in which all others take longer."""
    slower = [other.took.draws > best.took.draws for other in others]
    return float(np.mean(np.all(slower, axis=0))) if slower else 1.0


def not_told_apart(best: Projection, others: Sequence[Projection]) -> list[str]:
    """The others that may be the fastest: those that do not lose to the best in nine of ten draws,
    and the fewest more with which they and the best hold the fastest in nine of ten: each of many
    may lose to the best in nine of ten, and one of them still win in every fifth."""
    draws = np.array([case.took.draws for case in (best, *others)])
    wins = np.bincount(draws.argmin(axis=0), minlength=len(draws))
    alike = [n for n, case in enumerate(others, 1) if share_of_wins(best, [case]) < SURE]
    # Of the rest first who wins most often, among equals who takes less time.
    rest = [int(n) for n in np.argsort(-wins, kind="stable") if n not in (0, *alike)]
    while rest and np.mean(draws[[0, *alike]].min(axis=0) < draws[rest].min(axis=0)) < SURE:
        alike.append(rest.pop(0))
    return [others[n - 1].strategy for n in sorted(alike)]


def comparison(best: Projection) -> dict[str, Any] | None:
    """The figures of the class of machines that was asked about, for ``--json``; None: its
    computation was measured, or it has no GPU, so that none of them is in the draws."""
    if best.share is not None or best.cluster.device.kind != "gpu":
        return None
    machine = MachineClass.of(best.cluster, best.ranks)
    of_class = figures().of(machine.name, best.ranks)
    scatter = figures().scatter(machine.name, best.ranks)
    known = of_class.model_dump(mode="json") if of_class else {}
    return {"class": machine.name, "is_covered": of_class is not None, "scatter": scatter} | known


def comparison_text(best: Projection) -> str:
    """A sentence on what choosing by projections cost on such machines, and what the draws hold;
    blank where no such figure is in them."""
    if (known := comparison(best)) is None:
        return ""
    draws = f"the draws hold what one strategy alone is off by, a factor of {known['scatter']:.2f}"
    if not known["is_covered"]:
        where = f"{counted(best.ranks, 'rank')} of {best.cluster.name}"
        return f"no published comparison covers {where}; {draws}, the widest of all machines"
    machine, most = MachineClass.of(best.cluster, best.ranks), known["most_ranks"]
    boxes = f"{LINKS.get(machine.link, machine.link)} boxes"
    where = boxes if machine.is_one_node else f"several nodes of {boxes}"
    printed = ""
    if known["plain_worst_regret"] > known["worst_regret"]:
        printed = f" ({_share(known['plain_worst_regret'])} where a source's own variants overlap)"
    return (
        f"on {where} with up to {most} GPUs its choice cost {_share(known['mean_regret'])} on "
        f"average, {_share(known['worst_regret'])} at worst{printed}, on "
        f"{counted(known['cells'], 'cell')} of published measurements; {draws}"
    )


def _share(value: float) -> str:
    return f"{100 * value:.1f} %" if value < 0.01 else units.percent(value)
