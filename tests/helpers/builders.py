"""A case, a row of results and a cluster that are sound, each with what a test changes in it."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

from spbench.projection.costmodel.cluster_file import find as find_cluster
from spbench.projection.costmodel.hardware import Cluster
from spbench.results.record import Record
from spbench.workload.case import Case
from spbench.workload.catalogue import find
from spbench.workload.workload import Workload


def a_case(**changes: Any) -> Case:
    """A case of DSP on two ranks of a CPU; ``changes`` are fields of it, or else of its
    workload: ``a_case(ranks=4, batch=2)``."""
    of_case = {name: value for name, value in changes.items() if name in Case.model_fields}
    of_work = {name: value for name, value in changes.items() if name not in of_case}
    work: Workload = of_case.pop("workload", None) or find("axes-2d", "verify")
    assert of_work.keys() <= Workload.model_fields.keys(), f"no such fields: {sorted(of_work)}"
    fields = {"strategy": "dsp", "ranks": 2, "device": "cpu"} | of_case
    return Case.model_validate({"workload": work.model_copy(update=of_work), **fields})


@cache
def _of_case(case: Case) -> Record:
    """Columns of a case are hashed once."""
    return Record.of_case(case, run_id="a run", started_utc="2030-01-01T00:00:00Z", status="ok")


def a_row(of: Case | None = None, /, **changes: Any) -> Record:
    """A launch of a case that went well, without figures; ``changes`` are columns:
    ``a_row(strategy="ulysses", step_ms=10.0)``. Column ``case``, a hash, stays that of the case."""
    return replace(_of_case(of or a_case()), **changes)


def a_cluster(name: str = "l20-pcie", **changes: Any) -> Cluster:
    """A packaged cluster; ``changes`` are fields, of parts by their path:
    ``a_cluster(**{"levels.1.ranks": 6})``. It is validated as a file would be."""
    data = deepcopy(find_cluster(name).model_dump(by_alias=True))
    for path, value in changes.items():
        *outer, last = (int(key) if key.isdigit() else key for key in path.split("."))
        part: Any = data
        for key in outer:
            part = part[key]
        part[last] = value
    return Cluster.model_validate(data)
