"""Measured shares: what one rank of many computes, timed on one device by ``run --share``.

A share holds kernels, launches and the packing of messages, so that it takes the place of all terms
but the messages'. It is of one case: the same workload whatever its name, strategy and ranks.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from pathlib import Path
from typing import final

from spbench.errors import Failure
from spbench.projection.constants import SPREADS, Constant
from spbench.projection.hardware import Cluster
from spbench.results.find_run import find_run, read_latest
from spbench.results.reading import records_of
from spbench.results.record import Record
from spbench.results.run_json import folder_of_run
from spbench.workload.case import Case
from spbench.workload.workload import Workload

LEAST_SPREAD = 1.03
"""The smallest factor that is claimed of launches: those of another hour differ."""
Key = tuple[str, str, int]
"""Workload by what it computes, strategy, ranks."""


@final
@dataclass(frozen=True, kw_only=True)
class Shares:
    """Seconds of the shares of a run, by case."""

    run: str = ""
    folder: str = ""
    """Where more launches of the run would be kept."""
    device: str = ""
    hardware: str = ""
    seconds: Mapping[Key, Constant] = field(default_factory=dict)

    def of(self, workload: Workload, strategy: str, ranks: int) -> Constant | None:
        """What a rank of the case takes without messages; None: it was not measured."""
        case = Case(workload=workload, strategy=strategy, ranks=ranks, device="cpu")
        return self.seconds.get((case.workload_key, strategy, ranks))


NONE = Shares()


def read_shares(run: Path | None, cluster: Cluster) -> Shares:
    """The shares of a run that were measured on a device of the cluster's kind; none without a
    run. Quiet launches count where there are some. Raises Failure where the run has none."""
    if run is None:
        return NONE
    device, place = cluster.device.runs_on, find_run(run)
    rows = read_latest(place)
    rows = rows[(rows["kind"] == "one_gpu_share") & (rows["status"] == "ok")]
    rows = rows[rows["compute_ms"].notna() & (rows["mesh"] == "")]
    fit = rows[rows["device"] == device]
    if fit.empty:
        of = f"on {device}, as {cluster.name} has it" if len(rows) else "that was measured"
        raise Failure(
            f"--share {run} holds no share {of}; "
            f"'spbench run --share --gpus 8 --device {device}' makes one"
        )
    launches: dict[Key, list[Record]] = {}
    for row in records_of(fit):
        launches.setdefault((row.workload_key, row.strategy, row.world_size), []).append(row)
    seconds = {key: _constant(of_case, run) for key, of_case in launches.items()}
    hardware = ", ".join(dict.fromkeys(filter(None, fit["hardware"])))
    known = {"run": str(run), "folder": str(folder_of_run(place))}
    return Shares(**known, device=device, hardware=hardware, seconds=seconds)


def _constant(launches: Sequence[Record], run: Path) -> Constant:
    """The geometric mean of launches; another launch lies within its spread."""
    counting = [row for row in launches if not row.noisy] or launches
    times_s = [row.compute_ms / 1e3 for row in counting if row.compute_ms]
    spread = SPREADS["measured"]
    if len(times_s) > 1:
        spread = max(LEAST_SPREAD, exp(2 * statistics.stdev(map(log, times_s))))
    value = statistics.geometric_mean(times_s)
    return Constant(value=value, source=f"share {run}", kind="measured", spread=spread)
