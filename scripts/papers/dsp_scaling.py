"""DSP's experiments projected on clusters like the paper's, beside baselines of both kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from markdown import brief, table
from paper_facts import facts

from spbench.projection.advise.project import project
from spbench.projection.costmodel.cluster_file import find as find_cluster
from spbench.projection.costmodel.step_time import Mode
from spbench.projection.dryrun.rank_work import works
from spbench.strategies.registry import expand_names
from spbench.workload.sweeps import load_sweep
from spbench.workload.workload import Workload

OWN = "dsp"


@final
@dataclass(frozen=True, kw_only=True)
class ScalingCell:
    """One size on one number of GPUs, as in one of the paper's experiments."""

    study: str
    """Name of the sweep without the paper's."""
    workload: Workload
    ranks: int

    @property
    def size(self) -> tuple[str, int, int, int]:
        """What is computed: cells of several studies are projected once."""
        return self.model, self.workload.axes["time"], self.workload.batch, self.ranks

    @property
    def model(self) -> str:
        return self.workload.name.split()[0]


StepsOf = Mapping[str, Mapping[str, float]]
"""Seconds of a step by cluster and strategy; those that cannot run are left out."""


def cells() -> list[ScalingCell]:
    """The sizes of the paper's experiments, in the order of the sweeps."""
    found = [
        ScalingCell(study=name.removeprefix("dsp-"), workload=each.workload, ranks=each.ranks)
        for name in facts("dsp")["sweeps"]
        for each in load_sweep(name, expand_names).combinations
    ]
    return list({(each.study, *each.size): each for each in found}.values())


def steps_of(cell: ScalingCell) -> dict[str, dict[str, float]]:
    """A cell on each cluster."""
    work_of, names = works(), (OWN, *facts("dsp")["baselines"])
    found: dict[str, dict[str, float]] = {}
    for cluster in facts("dsp")["clusters"]:
        rows = project(cell.workload, find_cluster(cluster), names, [cell.ranks], Mode(), work_of)
        found[cluster] = {row.strategy: row.cost.step_s for row in rows if row.cost is not None}
    return found


Scaling = Sequence[tuple[ScalingCell, StepsOf]]


def scaling_table(scaling: Scaling, studies: Sequence[str]) -> str:
    """DSP's step, and how many times as long each baseline takes, on both clusters."""
    clusters, baselines = facts("dsp")["clusters"], facts("dsp")["baselines"]
    head = ("experiment", "model", "GPUs", "frames", "batch")
    head += ("DSP, ms", *(f"`{name}`" for name in baselines))
    rows = []
    for cell, steps in scaling:
        if cell.study not in studies:
            continue
        model, frames, batch, ranks = cell.size
        own = " / ".join(brief(1e3 * steps[cluster][OWN]) for cluster in clusters)
        over = [
            " / ".join(_times(steps[cluster], name) for cluster in clusters)
            if name in steps[clusters[0]]
            else "too few heads"
            for name in baselines
        ]
        rows.append([cell.study, model, str(ranks), str(frames), str(batch), own, *over])
    return table(head, rows)


def _times(steps: Mapping[str, float], name: str) -> str:
    return f"{steps[name] / steps[OWN]:.2f}"


def gains_table(scaling: Scaling) -> str:
    """The smallest and the largest gain over each baseline, inside a node and between nodes."""
    head = ("DSP over", "inside a node", "between nodes")
    rows = []
    for name in facts("dsp")["baselines"]:
        gains: dict[bool, list[float]] = {False: [], True: []}
        for cell, steps in scaling:
            for times in steps.values():
                if cell.ranks > 1 and name in times:
                    gains[cell.ranks > 8].append(times[name] / times[OWN])
        rows.append([f"`{name}`", *(_range(gains[beyond]) for beyond in (False, True))])
    return table(head, rows)


def _range(gains: Sequence[float]) -> str:
    return f"{min(gains):.2f} to {max(gains):.2f}"


def kept_rates(scaling: Scaling, studies: Sequence[str]) -> str:
    """What is left of DSP's rate for each GPU, from the fewest to the most GPUs of a study."""
    left = []
    for study in studies:
        for model in dict.fromkeys(cell.model for cell, _ in scaling):
            of_study = [x for x in scaling if (x[0].study, x[0].model) == (study, model)]
            (few, first), (many, last) = of_study[0], of_study[-1]
            kept = " / ".join(f"{100 * first[name][OWN] / last[name][OWN]:.0f}" for name in first)
            left.append(f"{model} keeps {kept} % from {few.ranks} to {many.ranks} GPUs")
    return "; ".join(left)


def gpu_hours(scaling: Scaling, names: Sequence[str], steps: int) -> float:
    """GPU hours of so many steps of each case on the paper's cluster, of one group of ranks."""
    first = facts("dsp")["clusters"][0]
    spent = [
        cell.ranks * times[first][name]
        for cell, times in scaling
        for name in names
        if name in times[first]
    ]
    return steps * sum(spent) / 3600
