"""How ``check`` comes to its two sides: from files, or by measuring one or both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from spbench.analysis.compare_runs import compare_runs
from spbench.analysis.intervals import LEAST_LAUNCHES
from spbench.analysis.power import quiet_launches
from spbench.analysis.verdict import MOST_TIMES, Judgement, judged
from spbench.errors import CANNOT_JUDGE, Failure
from spbench.launch.torchrun import joined_ranks
from spbench.regression.base_accepts import accepted_cases
from spbench.regression.base_and_head import Code, open_runners
from spbench.regression.checkout import Checkout, CheckoutError, checked_out, work_tree
from spbench.regression.measurement import CheckOptions, LiveMeasurement
from spbench.results.find_run import find_baseline, find_run, records_of
from spbench.results.record import Record
from spbench.results.run_json import read_run
from spbench.strategies.registry import load, module_of
from spbench.sweep.devices import choose_device, why_not_here
from spbench.sweep.fault_check import announce_fault, planted_fault
from spbench.sweep.output_folder import output_folder
from spbench.sweep.plan import cells as cells_of
from spbench.sweep.plan import in_rounds
from spbench.sweep.request import Request, refusal
from spbench.text import counted
from spbench.worker.fault_injection import VARIABLE
from spbench.workload.case import COUNTED, QUICK, Case, Cell, MeasurementBudget

EFFORT = MeasurementBudget(silent=False, seconds=30.0, precision=0.005, max_warmup=6)
"""Of two sides that are both measured here: no verdict needs steps without communication, and
what launches differ by is mostly the noise of their iterations. Six that agree to 1 % by chance
would end one side's turns (docs/decisions/0017)."""


def against_run(name: str, baselines: Path, run: Path, options: CheckOptions) -> Judgement:
    """Rows that are there already: nothing is measured."""
    before = records_of(find_baseline(name, baselines))
    after = records_of(find_run(run, baselines))
    findings = compare_runs(before, after, options.margins, metrics=options.metrics)
    return judged(findings, options.margins)


def against_baseline(
    name: str, baselines: Path, options: CheckOptions, out: Path | None
) -> Judgement:
    """The baseline's cases, measured anew as it was measured."""
    kept = find_baseline(name, baselines)
    records = records_of(kept)
    cases = _cases_of(kept, records)
    cells = _planned(cases, options)
    announce_fault(planted_fault(), cells)
    folder = _new_folder(out, f"check-{name}")
    if "time" in options.metrics:
        _say_what_is_short(records)
    with open_runners(folder, [Code(name="now")], cells, options.deadlines) as runners:
        bench = LiveMeasurement(
            folder=folder, runners=runners, cases=cases, options=options, known=records
        )
        return bench.judge()


def _planned(cases: Sequence[Case], options: CheckOptions) -> list[Cell]:
    """What is asked for; it takes one launch where no time is judged."""
    return in_rounds(cases, range(options.launches if "time" in options.metrics else 1), seed=0)


def _say_what_is_short(records: Sequence[Record]) -> None:
    """Before anything is measured: to find that out needs no hour."""
    short = sum(quiet < LEAST_LAUNCHES for quiet in quiet_launches(records).values())
    if short:
        click.echo(
            f"the baseline has fewer than {LEAST_LAUNCHES} quiet launches of "
            f"{counted(short, 'case')}: no time of theirs can be judged; set it anew from a run "
            f"with more (--launches)",
            err=True,
        )


def _cases_of(kept: Path, records: Sequence[Record]) -> list[Case]:
    """What the baseline's rows were measured of, as its run.json tells; and how."""
    wanted = {record.case: record.effort for record in records if record.status != "skipped"}
    told = {one.get("key"): one for one in read_run(kept).get("cases", [])}
    if wanted.keys() - told.keys():
        raise Failure(
            f"{kept} does not tell what its cases were made of (run.json); give the RUN to judge"
        )
    try:
        cases = [case_of(told[key], effort) for key, effort in wanted.items()]
        for case in cases:
            load(case.strategy)  # which raises for options that it does not have
    except ValueError as error:
        raise Failure(
            f"{kept} cannot be measured again by this version: {error}", CANNOT_JUDGE
        ) from None
    for case in cases:
        if case.device == "cuda" and choose_device("auto") == "cpu":
            raise Failure(
                f"{kept} was measured on GPUs, and none is visible here; check on a machine like "
                f"that, or give the RUN to judge",
                CANNOT_JUDGE,
            )
        why_not = why_not_here(case.ranks, case.device, share=case.kind == "one_gpu_share")
        if why_not is not None:
            why, _, _ = why_not.partition(";")  # what it advises cannot be followed here
            raise Failure(
                f"{case.label} ranks cannot be started here: {why}; check on a machine like that "
                f"of {kept}, or give the RUN to judge",
                CANNOT_JUDGE,
            )
    return cases


def case_of(told: Mapping[str, Any], effort: str) -> Case:
    """As it was measured; its run.json may tell of an attempt after that, with another effort."""
    case = Case.model_validate({k: v for k, v in told.items() if k not in ("key", "why_not")})
    if case.budget.label == (effort or "full"):
        return case
    return case.model_copy(update={"budget": QUICK if effort == "quick" else MeasurementBudget()})


def against_commit(revision: str, request: Request, options: CheckOptions) -> Judgement:
    """A commit and the work tree, in turn."""
    budget = EFFORT if "time" in options.metrics else COUNTED
    cells = cells_of(replace(request, launches=1, budget=budget, skip_invalid=True))
    announce_fault(request.fault, cells)
    try:
        with checked_out(revision) as base:
            here = work_tree()
            base.check_own(["spbench", *(module_of(cell.case.strategy) for cell in cells)])
            lost = _lost_since(base, cells)
            kept = [cell for cell in cells if cell.why_not is None or cell.case in lost]
            _leave_out([cell for cell in cells if cell not in kept], request, cells)
            cases = [cell.case for cell in kept]
            folder = _new_folder(request.out, f"check-{revision}")
            click.echo(f"base: {revision}, {base.commit[:12]}; now: the work tree", err=True)
            # A planted fault is planted in what is checked, not in what it is checked against.
            codes = [
                Code(
                    name="base",
                    variables={**base.environment(), VARIABLE: None},
                    commit=base.commit,
                    is_base=True,
                ),
                Code(name="now", variables=here.environment(), commit=here.commit),
            ]
            planned = _planned(cases, options)
            if "time" in options.metrics:
                _say_how_long(len(cases), options.launches)
            with open_runners(folder, codes, planned, options.deadlines) as runners:
                return LiveMeasurement(
                    folder=folder, runners=runners, cases=cases, options=options
                ).judge()
    except CheckoutError as error:
        raise Failure(f"--base-ref {revision}: {error}") from None


def _say_how_long(cases: int, launches: int) -> None:
    """Of the timed steps alone: what comes before them depends on the machine."""
    pairs_min = cases * launches * 2 * EFFORT.seconds / 60
    click.echo(
        f"{counted(cases, 'case')}, {counted(launches, 'launch')} of each on both sides and up to "
        f"{MOST_TIMES * launches} in doubt, at most {EFFORT.seconds:g} s of steps in each: "
        f"{pairs_min:.0f} to {MOST_TIMES * pairs_min:.0f} min and what starting takes",
        err=True,
    )


def _lost_since(base: Checkout, cells: Sequence[Cell]) -> list[Case]:
    """What strategies decline now and did not at ``base``: it is broken. What does not fit this
    machine fits it for neither."""
    unfit = [cell.case for cell in cells if cell.why_not is not None]
    return accepted_cases(base, [one for one in unfit if not why_not_here(one.ranks, one.device)])


def _leave_out(gone: Sequence[Cell], request: Request, cells: Sequence[Cell]) -> None:
    """Raises Failure where nothing is left, or something is not to be left out."""
    if gone and not request.skip_invalid:
        raise refusal(request, gone[0], cells)
    for cell in gone:
        click.echo(f"{cell.case.label} is left out: {cell.why_not}", err=True)
    if len(gone) == len(cells):
        raise Failure("no case is left to check; give other strategies, ranks or workloads")


def _new_folder(out: Path | None, title: str) -> Path:
    if joined_ranks() is not None:
        raise Failure("check starts its ranks itself; call it without torchrun")
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Failure(f"--out {out} is there already; a check is one measurement, in a new folder")
    return output_folder(out, title)
