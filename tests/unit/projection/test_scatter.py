"""Classes of machines, the figures that the package carries, and what is drawn of them."""

from __future__ import annotations

import numpy as np
import pytest

from spbench.projection.costmodel.cluster_file import find
from spbench.projection.costmodel.scatter import MachineClass, figures, kind_of, own_scatter
from spbench.projection.costmodel.step_time import cost
from spbench.projection.dryrun.work import Kernel, Work
from spbench.workload.config_names import names


@pytest.mark.parametrize(
    ("cluster", "ranks", "name"),
    [
        ("l20-pcie", 8, "pcie, one node"),
        ("hgx-h100", 8, "nvlink, one node"),
        ("hgx-h100", 9, "nvlink, several nodes"),
        ("nvl72-gb200", 72, "nvlink, one node"),
        ("nvl72-gb200", 144, "nvlink, several nodes"),
        ("mi300x", 8, "mesh, one node"),
        ("piz-daint", 2, "network, several nodes"),
    ],
)
def test_a_class_is_what_joins_devices_and_whether_ranks_stay_within_it(
    cluster: str, ranks: int, name: str
) -> None:
    assert MachineClass.of(find(cluster), ranks).name == name


@pytest.mark.parametrize("cluster", names("clusters"))
def test_what_is_not_covered_has_the_widest_scatter(cluster: str) -> None:
    """Links without a point, several nodes, and more GPUs than any comparison has."""
    widest = max(each.scatter for each in figures().classes.values())
    own, machine = own_scatter(find(cluster), 8).factor, MachineClass.of(find(cluster), 8)
    covered = figures().classes.get(machine.name)
    assert own == (covered.scatter if covered else widest)
    assert own_scatter(find(cluster), 9).factor == widest


def test_a_name_has_its_kind_before_options_and_mesh() -> None:
    written = (
        "usp",
        "usp:ulysses=4:across=kv-gather",
        "usp tp=2",
        "usp, cfg 2",
        "usp:ulysses=2 dp=2",
    )
    assert {kind_of(name) for name in written} == {"usp"}
    assert kind_of("kv-gather") == "kv-gather"


def test_variants_are_off_together_by_half_of_the_scatter() -> None:
    """The logarithm of a strategy's own factor has the variance of its class, of which variants of
    one strategy share half, and two strategies nothing."""
    size = {"shape": (1, 4096, 4096, 4096), "flops": 10**14, "moved_bytes": 10**8}
    kernel = Kernel(kind="gemm", phase="forward", **size)
    work = Work(mesh=(("sequence", 8),), dtype="bfloat16", kernels={kernel: 1}, messages={})
    cluster = find("l20-pcie")
    draws = {
        name: np.log(cost(work, cluster, launches_of=name).draws)
        for name in ("usp:ulysses=2", "usp:ulysses=4", "ring")
    }
    own = np.log(own_scatter(cluster, 8).factor) / 1.96
    variants, strategies = (
        np.std(draws[name] - draws["usp:ulysses=2"]) for name in ("usp:ulysses=4", "ring")
    )
    assert variants == pytest.approx(own, rel=0.06)  # the root of 2 x half of the variance
    assert strategies == pytest.approx(own * np.sqrt(2), rel=0.06)
