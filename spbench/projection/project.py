"""Cases on clusters that are not at hand: times with intervals and terms, memory, throughput."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final, final

from spbench.errors import Failure
from spbench.projection.constants import Constant
from spbench.projection.cost import Mode, cost
from spbench.projection.hardware import Cluster
from spbench.projection.interval import Cost
from spbench.projection.message_cost import why_not_on
from spbench.projection.rank_work import WorkOf
from spbench.projection.shares import NONE, Shares
from spbench.projection.work import Work
from spbench.report.progress import in_a_line
from spbench.results.case_columns import axes_text
from spbench.text import quoted
from spbench.workload.workload import Workload

KIND: Final = "projected"
"""The column ``kind`` of every row: nothing was measured."""


@final
@dataclass(frozen=True, kw_only=True)
class Projection:
    """A case on a cluster, and its cost; or why it cannot run."""

    workload: Workload
    cluster: Cluster
    strategy: str
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
    """Each strategy on each number of ranks, with its measured share where there is one; a case
    that cannot run says why."""
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
