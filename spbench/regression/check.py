"""The three ways to check: a run or a new measurement against a baseline, or head against base."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pandas

from spbench.analysis.compare_runs import compare_runs
from spbench.analysis.intervals import LEAST_LAUNCHES
from spbench.analysis.power import quiet_launches
from spbench.analysis.verdict import MOST_TIMES, judged
from spbench.errors import CANNOT_JUDGE, Failure
from spbench.launch.torchrun import joined_ranks
from spbench.regression.base_and_head import (
    Checked,
    CheckOptions,
    Code,
    LiveMeasurement,
    in_stages,
    open_runners,
)
from spbench.regression.checkout import CheckoutError, checked_out, work_tree
from spbench.report.progress import loading_torch
from spbench.results.find_run import find_baseline, find_run, read_latest
from spbench.results.run_json import case_of, read_run
from spbench.strategies.registry import load, module_of
from spbench.sweep.devices import (
    choose_device,
    refuse_capturing,
    refuse_compiling,
    refused_here,
    why_not_here,
)
from spbench.sweep.plan import cells as cells_of
from spbench.sweep.plan import in_rounds
from spbench.sweep.request import Request, refusal
from spbench.sweep.run_folder import output_folder
from spbench.text import GIVE_OTHERS, counted
from spbench.worker.fault_injection import VARIABLE, announce_fault, planted_fault
from spbench.workload.case import COUNTED, QUICK, Case, Cell, MeasurementBudget

BASE_AND_HEAD_BUDGET = MeasurementBudget(silent=False, seconds=30.0, precision=0.005, max_warmup=6)
"""The budget of a launch where both base and head are measured. No verdict needs steps without
communication, and launches differ mostly by the noise of their iterations. The precision is finer
than the 1 % of ``run``, to which six iterations may agree by chance (docs/decisions/0017)."""


def against_run(name: str, baselines: Path, run: Path, options: CheckOptions) -> Checked:
    """Judges a run as it is and measures nothing.

    Parameters
    ----------
    name, baselines:
        The baseline, and the folder of all of them.
    run:
        A results directory or CSV file.
    options:
        What is judged, and how strictly.

    Raises
    ------
    Failure
        Where there is no such baseline or run.
    """
    base, head = find_baseline(name, baselines), find_run(run, baselines)
    before, after = read_latest(base), read_latest(head)
    findings = compare_runs(before, after, options.margins, metrics=options.metrics)
    return Checked(judgement=judged(findings, options.margins), base=base, head=head)


def against_baseline(
    name: str, baselines: Path, options: CheckOptions, out: Path | None
) -> Checked:
    """Measures the baseline's cases again, with the budget that the baseline had.

    Parameters
    ----------
    name, baselines:
        The baseline, and the folder of all of them.
    options:
        What is judged, how strictly, and how often it is measured.
    out:
        A new folder for the rows; None: one under results/.

    Raises
    ------
    Failure
        Where this machine or this version cannot measure these cases.
    """
    folder = find_baseline(name, baselines)
    kept = read_latest(folder)
    cases = _cases_of(folder, kept)
    cells = _planned(cases, options)
    announce_fault(planted_fault(), cells)
    out = _new_folder(out, f"check-{name}")
    if "time" in options.metrics:
        _warn_of_few_launches(kept)
    with open_runners(out, [Code(name="now")], cells, options.deadlines) as runners:
        measurement = LiveMeasurement(
            folder=out, runners=runners, cases=cases, options=options, kept=kept
        )
        judgement = in_stages(measurement, options.launches, options.margins)
    return Checked(judgement=judgement, base=folder, head=out / "now")


def _planned(cases: Sequence[Case], options: CheckOptions) -> list[Cell]:
    """One launch of each case where no time is judged; otherwise as many as the options say."""
    return in_rounds(cases, range(options.launches if "time" in options.metrics else 1), seed=0)


def _warn_of_few_launches(kept: pandas.DataFrame) -> None:
    short = sum(quiet < LEAST_LAUNCHES for quiet in quiet_launches(kept).values())
    if short:
        click.echo(
            f"the baseline has fewer than {LEAST_LAUNCHES} quiet launches of "
            f"{counted(short, 'case')}, whose time cannot be judged; set the baseline again from a "
            f"run with more (--launches)",
            err=True,
        )


def _cases_of(baseline: Path, kept: pandas.DataFrame) -> list[Case]:
    """The cases of the baseline's rows, as its run.json describes them."""
    ran = kept[kept["status"] != "skipped"]
    budgets = dict(zip(ran["case"], ran["effort"], strict=True))
    described = {case.get("key"): case for case in read_run(baseline).get("cases", [])}
    if budgets.keys() - described.keys():
        raise Failure(f"{baseline}/run.json does not describe all its cases; give a RUN to judge")
    try:
        cases = [budgeted(described[key], label) for key, label in budgets.items()]
        for case in cases:
            load(case.strategy)  # which raises for options that it does not have
    except ValueError as error:
        why = f"{baseline} cannot be measured again by this version: {error}"
        raise Failure(why, CANNOT_JUDGE) from None
    for case in cases:
        _check_machine(case, baseline)
    refuse_compiling(cases)
    refuse_capturing(cases)
    return cases


def _check_machine(case: Case, baseline: Path) -> None:
    """Raises Failure where this machine cannot measure the case."""
    if case.device == "cuda" and choose_device("auto") == "cpu":
        why = f"{baseline} was measured on GPUs, and this machine shows none"
        raise Failure(f"{why}; check on a machine with GPUs, or give a RUN to judge", CANNOT_JUDGE)
    refused = refused_here(case.ranks, case.device, share=case.kind == "one_gpu_share")
    if refused is not None:
        # Not its remedy, which would change the case.
        remedy = f"check on a machine like that of {baseline}, or give a RUN to judge"
        why = f"{case.label} ranks cannot be started here: {refused.reason}; {remedy}"
        raise Failure(why, CANNOT_JUDGE)


def budgeted(described: Mapping[str, Any], budget: str) -> Case:
    """The case that run.json describes, with the budget that the row's label names: run.json may
    describe a later attempt with another budget."""
    case = case_of(described)
    if case.budget.label == (budget or "full"):
        return case
    return case.model_copy(update={"budget": QUICK if budget == "quick" else MeasurementBudget()})


def against_commit(revision: str, request: Request, options: CheckOptions) -> Checked:
    """Measures a commit and the work tree alternately."""
    budget = BASE_AND_HEAD_BUDGET if "time" in options.metrics else COUNTED
    with loading_torch():
        cells = cells_of(replace(request, launches=1, budget=budget, skip_invalid=True))
    announce_fault(request.fault, cells)
    try:
        with checked_out(revision) as base:
            head = work_tree()
            base.check_own(["spbench", *(module_of(cell.case.strategy) for cell in cells)])
            refused = [cell.case for cell in cells if cell.why_not is not None]
            fitting = [case for case in refused if not why_not_here(case.ranks, case.device)]
            broken = base.accepted(fitting)  # which base would run and head declines
            kept = [cell for cell in cells if cell.why_not is None or cell.case in broken]
            _leave_out([cell for cell in cells if cell not in kept], request, cells)
            cases = [cell.case for cell in kept]
            folder = _new_folder(request.out, f"check-{revision}")
            click.echo(f"base: {revision}, {base.commit[:12]}; now: the work tree", err=True)
            # A planted fault is planted in head alone.
            variables = {**base.environment(), VARIABLE: None}
            codes = [
                Code(name="base", variables=variables, commit=base.commit, is_base=True),
                Code(name="now", variables=head.environment(), commit=head.commit),
            ]
            if "time" in options.metrics:
                _announce_duration(len(cases), options.launches)
            planned = _planned(cases, options)
            with open_runners(folder, codes, planned, options.deadlines) as runners:
                measurement = LiveMeasurement(
                    folder=folder, runners=runners, cases=cases, options=options
                )
                judgement = in_stages(measurement, options.launches, options.margins)
            return Checked(judgement=judgement, base=folder / "base", head=folder / "now")
    except CheckoutError as error:
        raise Failure(f"--base-ref {revision}: {error}") from None


def _announce_duration(cases: int, launches: int) -> None:
    """Counts timed steps only: how long starting takes depends on the machine."""
    seconds = BASE_AND_HEAD_BUDGET.seconds
    pairs_min = cases * launches * 2 * seconds / 60
    click.echo(
        f"{counted(cases, 'case')}, each with {counted(launches, 'launch')} of base and of now "
        f"(up to {MOST_TIMES * launches} if in doubt) of at most {seconds:g} s of steps: "
        f"{pairs_min:.0f} to {MOST_TIMES * pairs_min:.0f} min, plus the time to start ranks",
        err=True,
    )


def _leave_out(skipped: Sequence[Cell], request: Request, cells: Sequence[Cell]) -> None:
    """Raises Failure where nothing would be left, or no cell may be skipped."""
    if skipped and not request.skip_invalid:
        raise refusal(request, skipped[0], cells)
    for cell in skipped:
        click.echo(f"{cell.case.label} is left out: {cell.why_not}", err=True)
    if len(skipped) == len(cells):
        raise Failure(f"no case is left to check; {GIVE_OTHERS}")


def _new_folder(out: Path | None, title: str) -> Path:
    if joined_ranks() is not None:
        raise Failure("check starts its ranks itself; call it without torchrun")
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Failure(f"--out {out} exists already; a check needs a new folder")
    return output_folder(out, title)
