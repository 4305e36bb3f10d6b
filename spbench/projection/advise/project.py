"""Measured shares: what one rank of many computes, timed on one device by ``run --share``.

A share holds kernels, launches and the packing of messages, so that it takes the place of all terms
but the messages'. It is of one case: the same workload whatever its name, strategy and ranks.
"""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import exp, log
from pathlib import Path
from typing import Any, Final, final

from spbench.errors import Failure
from spbench.projection.costmodel.constants import SPREADS, Constant
from spbench.projection.costmodel.hardware import Cluster
from spbench.projection.costmodel.message_cost import why_not_on
from spbench.projection.costmodel.step_time import Cost, Mode, cost
from spbench.projection.dryrun.rank_work import WorkOf
from spbench.projection.dryrun.work import Work
from spbench.report.progress import in_a_line
from spbench.results.find_run import find_run, read_latest
from spbench.results.record import axes_text
from spbench.results.run_json import folder_of_run
from spbench.text import quoted
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
    is_alike = (rows["mesh"] == "") & (rows["execution"] == "")
    rows = rows[rows["compute_ms"].gt(0) & is_alike]
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


# Cases on clusters that are not at hand: times with intervals and terms, memory, throughput.

KIND: Final = "projected"
"""The column ``kind`` of every row: nothing was measured."""


@final
@dataclass(frozen=True, kw_only=True)
class Projection:
    """A case on a cluster, and its cost; or why it cannot run."""

    workload: Workload
    cluster: Cluster
    strategy: str
    """With its options and the mesh around it, as in the column ``strategy``."""
    ranks: int
    work: Work | None = None
    cost: Cost | None = None
    share: Constant | None = None
    """Measured seconds of a rank without its messages, which the cost is of; None: modelled."""
    why_not: str = ""

    @property
    def took(self) -> Cost:
        """The cost of a case that can run."""
        assert self.cost is not None
        return self.cost

    @property
    def title(self) -> str:
        """The line above a table: which cluster, where its constants are from, which workload."""
        on = f"{self.cluster.name} ({self.cluster.source})"
        return f"projected, not measured, on {on}: {in_a_line(self.workload)}"

    @property
    def limit_bytes(self) -> float:
        """Memory of one device."""
        return self.cluster.used_by(self.ranks).device.memory_gb.value * 1e9

    @property
    def peak_bytes(self) -> int | None:
        """Peak memory of a rank by dry run; None: it is not counted."""
        return self.work.memory.peak if self.work and self.work.memory else None

    @property
    def data(self) -> dict[str, Any]:
        """One object of ``--json``, and one row of ``--csv``: with a column for each term."""
        work = self.work
        row: dict[str, Any] = {
            "kind": KIND,
            "cluster": self.cluster.name,
            "workload": self.workload.name,
            "axes": axes_text(self.workload.axes),
            "batch": self.workload.batch,
            "strategy": self.strategy,
            "world_size": self.ranks,
            "status": "skipped" if self.cost is None else "ok",
            "reason": self.why_not,
        }
        if self.cost is None or work is None:
            return row
        step = self.cost
        return row | {
            "compute": "modelled" if self.share is None else "measured share",
            "step_ms": step.step_s * 1e3,
            "step_ms_low": step.low_s * 1e3,
            "step_ms_high": step.high_s * 1e3,
            "step_ms_without_overlap": step.no_overlap_s * 1e3,
            "step_ms_full_overlap": step.full_overlap_s * 1e3,
            "samples_per_s": self.workload.batch / step.step_s,
            "tokens_per_s": self.workload.batch * self.workload.tokens / step.step_s,
            "sent_bytes": work.sent_bytes,
            "kernels": work.launches,
            "peak_bytes": self.peak_bytes,
            "memory_limit_bytes": round(self.limit_bytes),
            "mesh": " ".join(f"{name}={size}" for name, size in work.mesh),
            "terms_ms": {name: seconds * 1e3 for name, seconds in step.terms.items()},
        }


def project(
    workload: Workload,
    cluster: Cluster,
    strategies: Sequence[str],
    ranks: Sequence[int],
    mode: Mode,
    work_of: WorkOf,
    shares: Shares = NONE,
) -> Iterator[Projection]:
    """Each strategy, by its name with its mesh, on each number of ranks, with its measured share
    where there is one; a case that cannot run says why."""
    for count, strategy in product(ranks, strategies):
        case = Projection(workload=workload, cluster=cluster, strategy=strategy, ranks=count)
        share = shares.of(workload, strategy, count)
        try:
            if unfit := why_not_on(cluster, count):
                raise Failure(unfit)
            done = work_of(workload, strategy, count)
            took = cost(done, cluster, mode, share, launches_of=strategy)
            case = replace(case, work=done, cost=took, share=share)
        except Failure as failure:
            case = replace(case, why_not=str(failure))
        yield case


def which_are_measured(
    projected: Sequence[Projection], shares: Shares, asked: Sequence[str], axis: str = ""
) -> str:
    """A sentence on whose computation is a measured share, and on what would measure the others';
    ``asked``: words that name the workload; ``axis``: one whose lengths differ. Raises Failure if
    there is none."""
    runs = [each for each in projected if each.cost is not None]
    without = [each for each in runs if each.share is None]
    if not without:
        return f"computation as measured on {shares.hardware} ({shares.run})"
    names, ranks = _names_and_ranks(without)
    what, commands = f"{names} on {ranks} ranks", []
    for size in dict.fromkeys(each.workload for each in without):
        own = [each for each in without if each.workload == size]
        words = [*asked, *(["--set", f"axes.{axis}={size.axes[axis]}"] if axis else [])]
        for flag, value in zip(("-s", "-g"), _names_and_ranks(own), strict=True):
            words += [flag, value]
        words += ["--out", shares.folder, "--add"] if axis else []
        commands.append(quoted("spbench", "run", "--share", *words, "--device", shares.device))
    command = " && ".join(commands)
    if len(without) == len(runs):
        raise Failure(f"--share {shares.run} has no share of {what}; this makes one: {command}")
    return f"computation as measured ({shares.run}); no share of {what}, measure with: {command}"


def _names_and_ranks(cases: Sequence[Projection]) -> tuple[str, str]:
    """As flags of ``run`` have them."""
    names, ranks = ([each.strategy for each in cases], [str(each.ranks) for each in cases])
    return ",".join(dict.fromkeys(names)), ",".join(dict.fromkeys(ranks))
