"""How far projected ratios between strategies are off, by class of machine.

What a model leaves out of one strategy alone does not drop out of its ratio to another. How much
that is, a comparison with published measurements tells: ``benchmarks/published/score.py --write``
keeps its figures in ``configs/published/score.yaml``, of which no constant of a cluster is made.

A class of machines is what joins their devices (NVLink, PCIe, ...), and whether ranks stay within
those links, as in one node, or go over a network. Finer classes have too few sources.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, final

from pydantic import Field, NonNegativeFloat, NonNegativeInt

from spbench.projection.costmodel.constants import Constant
from spbench.projection.costmodel.hardware import NETWORK, Cluster
from spbench.workload.block import Frozen, Size
from spbench.workload.config_names import configs
from spbench.workload.yaml_file import read_mapping, validated


@final
@dataclass(frozen=True)
class MachineClass:
    """Machines that are judged together."""

    link: str
    """What joins the devices of a node, as of ``Cluster.link``."""
    is_one_node: bool
    """Whether all ranks are joined by it; of racks with one NVLink domain also across hosts."""

    @property
    def name(self) -> str:
        """As in 'pcie, one node'."""
        return f"{self.link}, {'one node' if self.is_one_node else 'several nodes'}"

    @classmethod
    def of(cls, cluster: Cluster, ranks: int) -> MachineClass:
        """The class of so many ranks of a cluster."""
        inner = [level.ranks or ranks for level in cluster.levels if level.name != NETWORK]
        is_one_node = cluster.link != NETWORK and ranks <= max(inner, default=1)
        return cls(cluster.link, is_one_node)


@final
class ClassFigures(Frozen):
    """What projections were worth on published points of one class."""

    scatter: Annotated[float, Field(ge=1, lt=100)]
    """Factor up and down that holds what 95 of 100 strategies are off by beside the others of
    their comparison."""
    groups: Size
    """Points, each of which weighs the same in the scatter."""
    cells: Size
    """Comparisons of two strategies or more."""
    most_ranks: Size
    """GPUs of the largest comparison: of more nothing is known."""
    mean_regret: NonNegativeFloat
    worst_regret: NonNegativeFloat
    """Published time of what was chosen over the published best, less 1; 0 where the source does
    not tell the two apart."""
    not_told_apart: NonNegativeInt
    """Comparisons that cost nothing for that reason alone."""
    plain_worst_regret: NonNegativeFloat
    """The worst, if those count as they are printed."""


@final
class PublishedFigures(Frozen):
    """The figures of all classes that have comparisons."""

    version: Literal[1] = 1
    classes: Annotated[dict[str, ClassFigures], Field(min_length=1)]

    def of(self, name: str, ranks: int) -> ClassFigures | None:
        """The figures of a class; None: nothing was published of such machines, or of as many
        GPUs."""
        own = self.classes.get(name)
        return own if own is not None and ranks <= own.most_ranks else None

    def scatter(self, name: str, ranks: int) -> float:
        """The scatter of a class, or the widest where nothing was published of it."""
        own = self.of(name, ranks)
        return own.scatter if own else max(each.scatter for each in self.classes.values())


SHARED_PART = 0.5
"""Part of a strategy's own variance that its variants share: ``usp:ulysses=2`` and ``=4``, or one
strategy in two meshes, have their engine's kernels and exchanges in common. In published groups
that have both, ratios of variants have about half of the variance of ratios of strategies."""


def kind_of(name: str) -> str:
    """A strategy's name without its options and the mesh around it, also of a published label."""
    return re.split("[:, ]", name, maxsplit=1)[0]


def figures_file() -> Path:
    """Where the figures are kept."""
    return configs() / "published" / "score.yaml"


@lru_cache(maxsize=1)
def figures() -> PublishedFigures:
    """The figures that come along."""
    data = read_mapping(figures_file(), "figures of a comparison")
    return validated(PublishedFigures, data, {"classes": ClassFigures})


def own_scatter(cluster: Cluster, ranks: int) -> Constant:
    """What one strategy alone is off by on so many GPUs of a cluster."""
    return as_constant(figures().scatter(MachineClass.of(cluster, ranks).name, ranks))


@lru_cache
def as_constant(scatter: float) -> Constant:
    """A scatter as the constant that is drawn."""
    return Constant(
        value=1.0, source="published measurements, score.yaml", kind="measured", spread=scatter
    )
