"""Measured steps of a run beside their projection to the cluster that the machine was measured as.

A case's time is the mean of its quiet launches, or of all where none was quiet. Ranking is judged
on pairs of strategies that do the same work on as many ranks, where one takes ``APART`` as long as
the other or more: closer ones are left to the interval. Regret: the measured time of the strategy
that is projected to be the fastest over the least of those projected, less 1; on several ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, groupby
from pathlib import Path
from statistics import geometric_mean, mean, median
from typing import Any, final

from spbench.errors import Failure
from spbench.projection.costmodel.hardware import Cluster
from spbench.projection.costmodel.sensitivity import slowed
from spbench.projection.costmodel.step_time import Cost, Mode, cost
from spbench.projection.dryrun.trace import work
from spbench.results.find_run import read_latest
from spbench.results.run_json import case_of, folder_of_run, read_run
from spbench.strategies.registry import in_mesh
from spbench.workload.case import Case

APART = 1.15
"""Ratio of measured times from which a pair of strategies must be projected in its order."""


@final
@dataclass(frozen=True, kw_only=True)
class Compared:
    """A case, its measured seconds, and its projection."""

    case: Case
    measured_s: float
    is_noisy: bool
    gflop_per_s: float | None = None
    """Rate of a fixed product during the launches: how fast the processor was; None: not known."""
    slower: float = 1.0
    """Time of that product over its time when the cluster was calibrated; 1 where not known."""
    projected: Cost | None = None
    why_not: str = ""

    @property
    def projected_s(self) -> float:
        return self.projected.step_s if self.projected else math.nan

    @property
    def error(self) -> float:
        """Projected over measured, less 1; nan where it is not projected."""
        return self.projected_s / self.measured_s - 1

    @property
    def is_within(self) -> bool:
        step = self.projected
        return step is not None and step.low_s <= self.measured_s <= step.high_s

    @property
    def data(self) -> dict[str, Any]:
        """One object of ``--json``."""
        row: dict[str, Any] = {
            "workload": self.case.workload.name,
            "strategy": self.case.name,
            "world_size": self.case.ranks,
            "measured_ms": 1e3 * self.measured_s,
            "noisy": self.is_noisy,
            "slower": self.slower,
            "why_not": self.why_not,
        }
        if self.projected is None:
            return row
        return row | {
            "projected_ms": 1e3 * self.projected.step_s,
            "low_ms": 1e3 * self.projected.low_s,
            "high_ms": 1e3 * self.projected.high_s,
            "error": self.error,
            "within": self.is_within,
            "terms_ms": {name: 1e3 * seconds for name, seconds in self.projected.terms.items()},
        }


def measured(run: Path) -> list[Compared]:
    """The cases of a run that were measured, by workload, ranks and strategy. Raises Failure where
    the run has none, or its run.json does not describe them."""
    frame = read_latest(run)
    is_measured = (frame["status"] == "ok") & (frame["kind"] == "measured")
    # A projection is of models as they are written.
    ok = frame[is_measured & frame["step_ms"].gt(0) & (frame["execution"] == "")]
    entries = {entry["key"]: entry for entry in read_run(folder_of_run(run)).get("cases", [])}
    found = []
    for key, launches in ok.groupby("case", sort=False):
        if key not in entries:
            raise Failure(f"{run} has no run.json that describes case {key}; name a run's folder")
        quiet = launches[launches["noisy"] == ""]
        counted = launches if quiet.empty else quiet
        speeds = counted["cpu_gflop_per_s"]
        each = Compared(
            case=case_of(entries[key]),
            measured_s=geometric_mean(counted["step_ms"]) / 1e3,
            is_noisy=quiet.empty,
            gflop_per_s=geometric_mean(speeds) if speeds.notna().all() else None,
        )
        found.append(each)
    if not found:
        raise Failure(f"{run} has no measured step; 'spbench run' without --share makes one")
    return sorted(found, key=lambda each: _place(each.case))


def beside(cases: Sequence[Compared], cluster: Cluster) -> list[Compared]:
    """The cases with their projection to ``cluster``, or why there is none. Raises Failure where
    all were measured on devices of another kind."""
    kind, others = cluster.device.runs_on, {each.case.device for each in cases}
    if kind not in others:
        raise Failure(
            f"the run was measured on {', '.join(others)}, and {cluster.name} describes "
            f"{kind}; name the cluster that its machine was calibrated as"
        )
    return [_projected(each, cluster) for each in cases]


def _projected(each: Compared, cluster: Cluster) -> Compared:
    case, kind = each.case, cluster.device.runs_on
    try:
        if case.device != kind:
            raise Failure(f"measured on {case.device}, and {cluster.name} describes {kind}")
        done = work(case.workload, in_mesh(case.strategy, case.mesh), case.ranks, device=kind)
        slower = _slower(each, cluster)
        return replace(each, slower=slower, projected=cost(done, slowed(cluster, slower), Mode()))
    except Failure as failure:
        return replace(each, why_not=str(failure))


def _slower(each: Compared, cluster: Cluster) -> float:
    """Time that a product of the case took over that at the speed at which the cluster was
    calibrated with as many ranks: with others, each has another number of threads."""
    known = {part.ranks: part.device for part in cluster.on_ranks}
    known[cluster.levels[-1].ranks or 0] = cluster.device
    then = known[each.case.ranks].cpu_gflop_per_s if each.case.ranks in known else None
    return then / each.gflop_per_s if then and each.gflop_per_s else 1.0


def judged(cases: Sequence[Compared]) -> dict[str, Any]:
    """Errors, coverage and ranking, of all cases and by number of ranks."""
    every = dict.fromkeys(each.case.ranks for each in cases)
    by_ranks = {n: _figures([each for each in cases if each.case.ranks == n]) for n in every}
    return _figures(cases) | {"by_ranks": by_ranks}


def _figures(cases: Sequence[Compared]) -> dict[str, Any]:
    known = [each for each in cases if each.projected is not None]
    errors = [abs(each.error) for each in known]
    in_order, of_ratios = [*_in_order(known)], _errors_of_ratios(known)
    regrets = [
        min(same, key=lambda x: x.projected_s).measured_s / min(x.measured_s for x in same) - 1
        for same in _alternatives(known)
        if same[0].case.ranks > 1
    ]
    return {
        "cases_judged": len(cases),
        "cases_modelled": len(known),
        "noisy": sum(each.is_noisy for each in cases),
        "median_error": median(errors) if errors else None,
        "worst_error": max(errors, default=None),
        "bias": median(each.error for each in known) if known else None,
        "median_error_of_ratios": median(of_ratios) if of_ratios else None,
        "worst_error_of_ratios": max(of_ratios, default=None),
        "coverage": mean(each.is_within for each in known) if known else None,
        "pairs_apart": len(in_order),
        "pairs_in_order": mean(in_order) if in_order else None,
        "mean_regret": mean(regrets) if regrets else None,
        "worst_regret": max(regrets, default=None),
    }


def _errors_of_ratios(cases: Sequence[Compared]) -> list[float]:
    """Errors of each step over the mean of strategies that do the same work on as many ranks: what
    all of them were off by, as where the machine is slower by now, drops out."""
    factors = ([1 + each.error for each in same] for same in _alternatives(cases))
    return [abs(one / geometric_mean(same) - 1) for same in factors for one in same]


def _in_order(cases: Sequence[Compared]) -> Iterable[bool]:
    """Whether each pair that is apart is projected in its order."""
    for one, other in chain(*(combinations(same, 2) for same in _alternatives(cases))):
        ratio = one.measured_s / other.measured_s
        if max(ratio, 1 / ratio) >= APART:
            yield (ratio > 1) == (one.projected_s > other.projected_s)


def _alternatives(cases: Sequence[Compared]) -> list[list[Compared]]:
    """Strategies that do the same work on as many ranks, where there are several."""
    every = groupby(cases, key=lambda each: _place(each.case)[:2])
    return [same for same in (list(each) for _, each in every) if len(same) > 1]


def _place(case: Case) -> tuple[str, int, str]:
    return f"{case.workload.name} {case.workload_key}", case.ranks, case.name
