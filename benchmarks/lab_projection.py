"""Is a network projected to another rate as it is measured? Runs on the lab against a calibration.

    python benchmarks/lab_projection.py CLUSTER.yaml RATE=RUN [RATE=RUN ...]

RUN is a run on links of RATE, CLUSTER what ``spbench calibrate --link-rate`` wrote of the same
nodes at one rate. docs/netlab.md has the commands. A line for each case, measured and projected;
then the error, and how many pairs with a measured gap of more than 15 % are in order.
"""

from __future__ import annotations

import argparse
import statistics
from itertools import combinations
from pathlib import Path

from spbench.analysis.intervals import geometric_mean
from spbench.projection.cost import Mode
from spbench.projection.hardware import find
from spbench.projection.project import project, works
from spbench.projection.scaled import link_rate, relinked
from spbench.results.reading import latest, read_runs, records_of
from spbench.results.run_json import read_run
from spbench.workload.workload import Workload

GAP = 1.15


def measured_ms(run: Path) -> dict[tuple[str, int], float]:
    """Mean step by strategy and ranks."""
    times: dict[tuple[str, int], list[float]] = {}
    for row in records_of(latest(read_runs(run))):
        if row.status == "ok" and row.step_ms:
            times.setdefault((row.strategy, row.world_size), []).append(row.step_ms)
    return {case: geometric_mean(each) for case, each in times.items()}


def main(cluster: Path, rated_runs: list[str]) -> None:
    errors, in_order, regrets = [], [], []
    for rate, run in (text.split("=") for text in rated_runs):
        at = relinked(find(str(cluster)), link_rate(rate))
        work_of = works(at)
        workload = Workload.model_validate(read_run(Path(run))["cases"][0]["workload"])
        every = measured_ms(Path(run))
        for ranks in sorted({count for _, count in every}):
            measured = {name: ms for (name, count), ms in every.items() if count == ranks}
            cells = project(workload, at, list(measured), [ranks], Mode(), work_of)
            projected = {x.strategy: 1e3 * x.cost.step_s for x in cells if x.cost is not None}
            for name, ms in measured.items():
                errors.append(abs(projected[name] / ms - 1))
                print(f"{rate:>8} {run} {ranks} {name:12} {ms:8.0f} {projected[name]:8.0f} ms")
            for one, other in combinations(projected, 2):
                ratio = measured[one] / measured[other]
                if max(ratio, 1 / ratio) > GAP:
                    in_order.append((ratio > 1) == (projected[one] > projected[other]))
            choice = min(projected, key=lambda name: projected[name])
            regrets.append(measured[choice] / min(measured.values()) - 1)
            print(f"         {choice}: {100 * regrets[-1]:.1f} % above the measured best")
    print(
        f"{len(errors)} steps: median error {100 * statistics.median(errors):.1f} %, worst "
        f"{100 * max(errors):.1f} %; {sum(in_order)} of {len(in_order)} pairs in order; "
        f"{sum(x <= 0.05 for x in regrets)} of {len(regrets)} choices within 5 %"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cluster", type=Path, metavar="CLUSTER.yaml")
    parser.add_argument("runs", nargs="+", metavar="RATE=RUN")
    flags = parser.parse_args()
    main(flags.cluster, flags.runs)
