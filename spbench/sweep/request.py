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
from spbench.workload.case import (
    Case,
    Cell,
    Combination,
    Device,
    Execution,
    Kind,
    MeasurementBudget,
)
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
    execution: Execution = "eager"
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
    """All strategies on each number of ranks, in each of the meshes.

    Parameters
    ----------
    workload
        What all of them compute.
    strategies
        Names with options, as after ``--strategies``.
    ranks
        Numbers of ranks.
    meshes
        Axes around those of the strategies.

    Returns
    -------
    The combinations, strategies running fastest.
    """
    return [
        Combination(workload=workload, strategy=strategy, ranks=count, mesh=mesh)
        for count, mesh, strategy in product(ranks, meshes, strategies)
    ]


def from_sweep_file(
    name: str, device: Device, *, small: bool = False, ranks: Sequence[int] = ()
) -> Request:
    """The request of a sweep in the catalogue or in a file.

    Parameters
    ----------
    name
        Of a sweep in the catalogue, or the path of a file.
    device
        What its cases run on.
    small
        Whether its workloads are taken in their small forms.
    ranks
        Only cells on so many ranks; none: all cells.

    Returns
    -------
    Request
        With all that the file says.

    Raises
    ------
    Failure
        For a mistake in the file, and for ranks that it has no cells on.
    """
    sweep = load_sweep(name, _named_with_options, small=small)
    offered = sorted({asked.ranks for asked in sweep.combinations})
    if strange := [str(count) for count in ranks if count not in offered]:
        there = ",".join(map(str, offered))
        raise Failure(f"--gpus {','.join(strange)}: {name} has cells on {there} ranks")
    return Request(
        title=sweep.file.name,
        combinations=[c for c in sweep.combinations if not ranks or c.ranks in ranks],
        device=device,
        launches=sweep.file.launches,
        skip_invalid=sweep.file.skip_invalid,
        every_strategy=sweep.file.asks_for_all,
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
    """The message that ``cell`` cannot run, and what could be asked for instead.

    ``cells`` are all that were asked for: strategies that can run this workload on every number of
    ranks are named, and numbers of ranks that every strategy can use.
    """
    case = cell.case
    asked_at = _asked_at(request, case)
    alike = [other for other in cells if other.case.workload == case.workload]
    strategies = list(dict.fromkeys(other.case.strategy for other in alike))
    # The first reason of each strategy counts: the last that is entered, from the end on.
    why_nots = {
        other.case.strategy: other.why_not for other in reversed(alike) if other.why_not is not None
    }
    cannot_either: dict[str, list[str]] = {}
    for name in strategies:
        if name in why_nots and name != case.strategy:
            cannot_either.setdefault(why_nots[name], []).append(repr(name))
    ways = []
    if able := ",".join(name for name in strategies if name not in why_nots):
        flag = f"'strategies: [{able}]'" if asked_at else f"-s {able}"
        ways.append(f"{flag} (those that can run it)")
    if ranks := _ranks_for_all(case, cells, is_of_a_file=bool(asked_at)):
        ways.append(f"-g {ranks} (ranks that all can use)")
    ways.append("--skip-invalid to leave such cells out")
    where = f"{asked_at}: " if asked_at else ""
    what = f"{case.name!r} cannot run {case.workload.name} on {counted(case.ranks, 'rank')}"
    lines = [f"{where}strategy {what}: {cell.why_not}."]
    lines += [f"  {', '.join(who)} cannot either: {why}." for why, who in cannot_either.items()]
    return Failure("\n".join([*lines, f"  Or {', or '.join(ways)}."]))


def _asked_at(request: Request, case: Case) -> str:
    """``file:line`` of the request for a case; blank for the command line."""
    wanted = Combination(
        workload=case.workload, strategy=case.strategy, ranks=case.ranks, mesh=case.mesh
    )
    return next(asked.place for asked in request.combinations if asked == wanted)


def _ranks_for_all(case: Case, cells: Sequence[Cell], *, is_of_a_file: bool) -> str:
    """Numbers of ranks that every strategy can use: of those asked for; where there are none, and
    no file says which, the first half, quarter, ... of the case's ranks. Blank for none."""
    refused = {cell.case.ranks for cell in cells if cell.why_not is not None}
    fit = sorted({cell.case.ranks for cell in cells} - refused)
    if fit or is_of_a_file:
        return ",".join(map(str, fit))
    strategies = [in_mesh(name, case.mesh) for name in {cell.case.strategy for cell in cells}]
    ranks = case.ranks // 2
    while ranks and any(strategy.declines(case.workload, ranks) for strategy in strategies):
        ranks //= 2
    return str(ranks) if ranks else ""
