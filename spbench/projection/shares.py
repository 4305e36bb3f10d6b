"""Measured shares: what one rank of many computes, timed on one device by ``run --share``.

A share holds kernels, launches and the packing of messages, so that it takes the place of all terms
but the messages'. It is of one case: the same workload whatever its name, strategy and ranks.
"""

import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from pathlib import Path
from typing import final

from spbench.errors import Failure
from spbench.projection.constants import SPREADS, Constant
from spbench.projection.hardware import Cluster
from spbench.results.find_run import find_run, read_latest
from spbench.results.run_json import folder_of_run
from spbench.workload.case import Case
from spbench.workload.workload import Workload

LEAST_SPREAD = 1.03
"""The smallest factor that is claimed of launches: those of another hour differ."""
Key = tuple[Hashable, ...]
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
    rows = rows[rows["compute_ms"].gt(0) & (rows["mesh"] == "")]
    fit = rows[rows["device"] == device]
    if fit.empty:
        of = f"on {device}, as {cluster.name} has it" if len(rows) else "that was measured"
        raise Failure(
            f"--share {run} holds no share {of}; "
            f"'spbench run --share --gpus 8 --device {device}' makes one"
        )
    seconds: dict[Key, Constant] = {}
    for key, launches in fit.groupby(["workload_key", "strategy", "world_size"], sort=False):
        quiet = launches[launches["noisy"] == ""]
        counting = launches if quiet.empty else quiet
        seconds[key] = _constant((counting["compute_ms"] / 1e3).tolist(), run)
    hardware = ", ".join(dict.fromkeys(filter(None, fit["hardware"])))
    known = {"run": str(run), "folder": str(folder_of_run(place))}
    return Shares(**known, device=device, hardware=hardware, seconds=seconds)


def _constant(times_s: Sequence[float], run: Path) -> Constant:
    """The geometric mean of launches; another launch lies within its spread."""
    spread = SPREADS["measured"]
    if len(times_s) > 1:
        spread = max(LEAST_SPREAD, exp(2 * statistics.stdev(map(log, times_s))))
    value = statistics.geometric_mean(times_s)
    return Constant(value=value, source=f"share {run}", kind="measured", spread=spread)
