"""All that ``run`` or ``check`` is asked for, as one frozen object, and how it is refused."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from spbench.errors import Failure
from spbench.launch.cluster import Cluster
from spbench.launch.launcher import Deadlines
from spbench.strategies.registry import expand_names, in_mesh, load
from spbench.text import counted
from spbench.worker.fault_injection import Fault
from spbench.workload.case import Case, Cell, Combination, Device, Kind, MeasurementBudget
from spbench.workload.mesh import NO_MESH, CaseMesh
from spbench.workload.sweeps import load_sweep
from spbench.workload.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Request:
    """Which cases to measure, how, and where their rows go."""

    combinations: Sequence[Combination]
    """Each of them is a case, and is launched ``launches`` times."""
    device: Device
    kind: Kind = "measured"
    starts: bool = True
    """Whether ranks start; else it is of any number of them, on a device that need not be here."""
    launches: int = 1
    budget: MeasurementBudget = field(default_factory=MeasurementBudget)
    seed: int = 0
    """Decides the order of cases within a round, and what ranks compute with."""
    skip_invalid: bool = False
    """Cells that cannot run become rows that say why; otherwise nothing is started."""
    every_strategy: bool = False
    """Whether all strategies were asked for: then cells that cannot run are rows if others can."""
    reference: str | None = None
    """The strategy that others are compared with; None: the first."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    cluster: Cluster | None = None
    """This machine's place among several; None: it is the only one."""
    peak_tflops: float | None = None
    """Tflop/s of one device, for MFU; None: as the data sheet of the GPU says."""
    fault: Fault | None = None
    verbose: bool = False
    title: str = ""
    """Names the results folder where ``out`` does not."""
    out: Path | None = None
    fresh: bool = False
    """Whether rows go beside an ``out`` that exists."""
    adds: bool = False
    """Whether rows may join a run of another workload, device or seed in ``out``."""

    @property
    def nodes(self) -> int:
        return 1 if self.cluster is None else self.cluster.nodes


def every(
    workload: Workload,
    strategies: Sequence[str],
    ranks: Sequence[int],
    meshes: Sequence[CaseMesh] = (NO_MESH,),
) -> list[Combination]:
    """All strategies on each number of ranks, in each of the meshes."""
    return [
        Combination(workload=workload, strategy=strategy, ranks=count, mesh=mesh)
        for count, mesh, strategy in product(ranks, meshes, strategies)
    ]


def from_sweep_file(
    name: str, device: Device, *, small: bool = False, ranks: Sequence[int] = ()
) -> Request:
    """The request of a sweep in the catalogue or in a file. Raises Failure for a mistake in it.

    ``small``: with small forms of its workloads; ``ranks``: its cells on so many alone, if any.
    """
    sweep = load_sweep(name, _named_with_options, small=small)
    offered = sorted({each.ranks for each in sweep.combinations})
    if strange := [str(count) for count in ranks if count not in offered]:
        known = ",".join(map(str, offered))
        raise Failure(f"--gpus {','.join(strange)}: {name} has cells on {known} ranks")
    return Request(
        title=sweep.file.name,
        combinations=[c for c in sweep.combinations if not ranks or c.ranks in ranks],
        device=device,
        launches=sweep.file.launches,
        skip_invalid=sweep.file.skip_invalid,
        reference=sweep.file.reference,
    )


def _named_with_options(texts: Sequence[str]) -> list[str]:
    """As ``expand_names``, with options checked: that loads the strategy, and torch."""
    names = expand_names(texts)
    for name in names:
        if ":" in name:
            load(name)
    return names


def refusal(request: Request, cell: Cell, cells: Sequence[Cell]) -> Failure:
    """The message that ``cell`` cannot run, and which strategies can on all numbers of ranks."""
    case = cell.case
    wanted = Combination(
        workload=case.workload, strategy=case.strategy, ranks=case.ranks, mesh=case.mesh
    )
    place = next(known.place for known in request.combinations if known == wanted)
    alike = [each for each in cells if each.case.workload == case.workload]
    cannot = {each.case.strategy: each for each in reversed(alike) if each.why_not is not None}
    others: dict[str, list[str]] = {}
    for name in dict.fromkeys(each.case.strategy for each in alike):
        if name in cannot and name != case.strategy:
            others.setdefault(f"{cannot[name].why_not}.\n", []).append(repr(name))
    can = ",".join(dict.fromkeys(x.case.strategy for x in alike if x.case.strategy not in cannot))
    how = f"'strategies: [{can}]'" if place else f"-s {can}"
    start, advice = f"{place}: " if place else "", f"{how} (those that can run it), or "
    refused = {each.case.ranks for each in cells if each.why_not is not None}
    fit = sorted({each.case.ranks for each in cells} - refused)
    ranks = ",".join(map(str, fit)) or ("" if place else _fewer_ranks(case, cells))
    fewer = f"-g {ranks} (ranks that all can use), or " if ranks else ""
    return Failure(
        f"{start}strategy {case.name!r} cannot run {case.workload.name} on "
        f"{counted(case.ranks, 'rank')}: {cell.why_not}.\n"
        + "".join(f"  {', '.join(who)} cannot either: {why}" for why, who in others.items())
        + f"  Or {advice if can else ''}{fewer}--skip-invalid to leave such cells out."
    )


def _fewer_ranks(case: Case, cells: Sequence[Cell]) -> str:
    """The first half, quarter, ... of the ranks that every strategy can use; blank for none."""
    names, work = {x.case.strategy for x in cells}, case.workload
    used = [in_mesh(name, case.mesh) for name in names]
    halves = (case.ranks >> n for n in range(1, case.ranks.bit_length()))
    fit = (n for n in halves if not any(each.declines(work, n) for each in used))
    return str(next(fit, ""))
