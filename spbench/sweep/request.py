"""What is asked for, by flags or by a sweep file, checked before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import click
from click.core import ParameterSource

from spbench.errors import Failure
from spbench.strategies.registry import UnknownStrategyError, expand_names
from spbench.sweep import devices
from spbench.sweep.plan import Request, check_options, every, plan
from spbench.text import counted
from spbench.workload.case import Cell, Combination
from spbench.workload.sweep_file import load_sweep
from spbench.workload.sweep_schema import LAUNCHES
from spbench.workload.workload import Workload
from spbench.workload.yaml_lines import WorkloadError

SAID_BY_THE_FILE = ("strategies", "gpus", "workload", "settings", "dtype")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What flags and file come to."""

    title: str
    """Names the results folder."""
    combinations: Sequence[Combination]
    launches: int
    skip_invalid: bool
    reference: str | None = None
    from_file: bool = False


def by_flags(
    strategies: Sequence[str],
    workload: Workload,
    ranks: Sequence[int],
    *,
    launches: int | None,
    skip_invalid: bool,
) -> Asked:
    """One workload, every strategy on each number of ranks."""
    return Asked(
        title=workload.name,
        combinations=every(workload, strategies, ranks),
        launches=LAUNCHES if launches is None else launches,
        skip_invalid=skip_invalid,
    )


def by_file(ctx: click.Context, sweep: str, *, launches: int | None, skip_invalid: bool) -> Asked:
    """The cells of a sweep file; a flag that is given beats what the file says.

    Raises Failure for a mistake in the file, and for a flag that would choose other cells.
    """
    for name in SAID_BY_THE_FILE:
        flag = given(ctx, name)
        if flag:
            raise Failure(
                f"{flag} cannot be given with --sweep, whose file says which cells there are; "
                f"leave it out, or give a changed copy of the file"
            )
    try:
        found = load_sweep(sweep, with_options)
    except WorkloadError as error:
        raise Failure(str(error)) from None
    return Asked(
        title=found.file.name,
        combinations=found.combinations,
        launches=found.file.launches if launches is None else launches,
        skip_invalid=skip_invalid or found.file.skip_invalid,
        reference=found.file.reference,
        from_file=True,
    )


def with_options(texts: Sequence[str]) -> list[str]:
    """As ``named``, and that they have their options: which alone takes loading them, and torch."""
    found = expand_names(texts)
    check_options([name for name in found if ":" in name])
    return found


def given(ctx: click.Context, name: str) -> str:
    """The flag, or the variable, that a parameter was given by; empty if it was not."""
    match ctx.get_parameter_source(name):
        case ParameterSource.COMMANDLINE:
            (param,) = (one for one in ctx.command.params if one.name == name)
            return max(param.opts, key=len)
        case ParameterSource.ENVIRONMENT:
            return f"{ctx.auto_envvar_prefix}_{name.upper()}"
    return ""


def checked_cells(
    request: Request, *, skip_invalid: bool, from_file: bool = False, nodes: int = 1
) -> list[Cell]:
    """The cells of the sweep; a Failure if one cannot run and none are to be skipped."""
    try:
        cells = plan(request)
    except UnknownStrategyError as error:
        raise Failure(str(error)) from None
    share = request.kind == "one_gpu_share"
    here = {
        ranks: devices.why_not_here(ranks, request.device, share=share, nodes=nodes)
        for ranks in {cell.case.ranks for cell in cells}
    }
    cells = [replace(cell, why_not=cell.why_not or here[cell.case.ranks]) for cell in cells]
    first = next((cell for cell in cells if cell.why_not is not None), None)
    if first is not None and not skip_invalid:
        raise declined(request, first, cells, from_file=from_file)
    return cells


def declined(
    request: Request, cell: Cell, cells: Sequence[Cell], *, from_file: bool = False
) -> Failure:
    """That it cannot run, and which of ``cells`` can."""
    return Failure(
        f"{_place(request, cell)}strategy {cell.case.strategy!r} cannot run "
        f"{cell.case.workload.name} on {counted(cell.case.ranks, 'rank')}: {cell.why_not}.\n"
        f"  Or {_others(cells, cell, from_file)}--skip-invalid to leave such cells out."
    )


def _place(request: Request, cell: Cell) -> str:
    """Where a file asks for the cell, with a colon behind it; nothing on the command line."""
    case = cell.case
    wanted = Combination(workload=case.workload, strategy=case.strategy, ranks=case.ranks)
    place = next(one.place for one in request.combinations if one == wanted)
    return f"{place}: " if place else ""


def _others(cells: Sequence[Cell], failed: Cell, from_file: bool) -> str:
    """The strategies asked for that can run the workload on all numbers of ranks asked for."""
    alike = [cell for cell in cells if cell.case.workload == failed.case.workload]
    cannot = {cell.case.strategy for cell in alike if cell.why_not is not None}
    can = [cell.case.strategy for cell in alike if cell.case.strategy not in cannot]
    names = ",".join(dict.fromkeys(can))
    how = f"'strategies: [{names}]'" if from_file else f"-s {names}"
    return f"{how} (those that can run it), or " if names else ""
