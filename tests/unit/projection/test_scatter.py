"""Classes of machines, the figures that the package carries, and what is drawn of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spbench import read_runs
from spbench.projection.advise.project import Projection
from spbench.projection.advise.projected_rows import write_rows
from spbench.projection.advise.published import share_of_wins
from spbench.projection.costmodel.cluster_file import find
from spbench.projection.costmodel.scatter import MachineClass, figures, kind_of, own_scatter
from spbench.projection.costmodel.step_time import Mode, cost
from spbench.projection.dryrun.work import Kernel, Work
from spbench.results.record import SURE
from spbench.workload.catalogue import find as find_workload
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
    size: dict[str, Any] = {"shape": (1, 4096, 4096, 4096), "flops": 10**14, "moved_bytes": 10**8}
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


def test_rows_say_in_how_many_draws_the_fastest_is_beaten(tmp_path: Path) -> None:
    """By any other of its workload and ranks; the others, in how many they are slower than it."""
    size: dict[str, Any] = {"shape": (1, 4096, 4096, 4096), "moved_bytes": 10**8}
    cluster, workload = find("l20-pcie"), find_workload("flux.1-dev-small")
    cases = []
    for number, tflop in enumerate((100, 120, 121, 122, 123)):
        kernel = Kernel(kind="gemm", phase="forward", flops=tflop * 10**12, **size)
        work = Work(mesh=(("sequence", 8),), dtype="bfloat16", kernels={kernel: 1}, messages={})
        name = ("ulysses", "ring", "kv-gather", "attention-2d", "usp")[number]
        took = cost(work, cluster, launches_of=name)
        known: dict[str, Any] = {"workload": workload, "cluster": cluster, "ranks": 8}
        cases.append(Projection(strategy=name, work=work, cost=took, **known))
    write_rows(cases, tmp_path, Mode(), ["spbench", "project"])
    frame = read_runs(tmp_path)
    shares = dict(zip(frame["strategy"], frame["slower_share"], strict=True))
    best, *others = cases
    assert shares["ulysses"] == pytest.approx(1 - share_of_wins(best, others), abs=1e-3)
    assert shares["ring"] == pytest.approx(share_of_wins(best, others[:1]), abs=1e-3)
    assert 1 - shares["ulysses"] < SURE < min(shares[each.strategy] for each in others)
