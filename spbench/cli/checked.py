"""How ``check`` comes to its two sides: from files, or by measuring one or both."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from spbench.bench.fault import VARIABLE
from spbench.cli.choices import choose_device, why_not_here
from spbench.cli.exits import CANNOT_JUDGE, UNFIT, Failure
from spbench.cli.folders import Destination, new_session, resolved
from spbench.cli.joined import joined
from spbench.cli.measured import Limits, Sides
from spbench.cli.planted import check_hits, planted_fault
from spbench.cli.requests import Asked, checked_cells
from spbench.cli.runs import find_baseline, find_run, records_of
from spbench.judge.between import between
from spbench.judge.regression import Judgement, judged
from spbench.launch.checkout import CheckoutError, checked_out, work_tree
from spbench.launch.local import LocalLauncher
from spbench.launch.plan import Request, cells_of, check_options
from spbench.launch.referee import Referee, Seat
from spbench.launch.sides import Side
from spbench.launch.sweep import Sweep
from spbench.results.environment import environment
from spbench.results.reading import ResultsError
from spbench.results.record import Record
from spbench.results.run_json import read_run
from spbench.results.store import Store
from spbench.strategies.registry import UnknownStrategyError
from spbench.workload.case import COUNTED, QUICK, Case, Device, Effort

EFFORT = Effort(silent=False, seconds=20.0, max_warmup=6)
"""Of two sides that are both measured here: no verdict needs steps without communication, and
what launches differ by is mostly the noise of their iterations (docs/decisions/0017)."""


def against_run(name: str, baselines: Path, run: Path, limits: Limits) -> Judgement:
    """Rows that are there already: nothing is measured."""
    before = records_of(find_baseline(name, baselines))
    after = records_of(find_run(run, baselines))
    findings = between(before, after, limits.margins, metrics=limits.metrics)
    return judged(findings, limits.margins)


def against_baseline(name: str, baselines: Path, limits: Limits, out: Path | None) -> Judgement:
    """The baseline's cases, measured anew as it was measured."""
    kept = find_baseline(name, baselines)
    records = records_of(kept)
    cases = _cases_of(kept, records)
    check_hits(planted_fault(), cases)
    folder = _new_folder(out, f"check-{name}")
    with _sides(folder, {"now": ({}, "")}, cases, limits) as sides:
        bench = Sides(folder=folder, sides=sides, cases=cases, limits=limits, known=records)
        return bench.judge()


def _cases_of(kept: Path, records: Sequence[Record]) -> list[Case]:
    """What the baseline's rows were measured of, as its run.json tells; and how."""
    wanted = {
        record.case: QUICK if record.is_quick else Effort()
        for record in records
        if record.status != "skipped"
    }
    told = {one.get("key"): one for one in read_run(kept).get("cases", [])}
    if wanted.keys() - told.keys():
        raise Failure(
            f"{kept} does not tell what its cases were made of (run.json); give the RUN to judge"
        )
    try:
        cases = [
            Case.model_validate(
                {k: v for k, v in told[key].items() if k not in ("key", "why_not")}
                | {"effort": effort}
            )
            for key, effort in wanted.items()
        ]
        check_options([case.strategy for case in cases])
    except (ValueError, UnknownStrategyError) as error:
        raise Failure(
            f"{kept} cannot be measured again by this version: {error}", CANNOT_JUDGE
        ) from None
    for case in cases:
        if case.device == "cuda" and choose_device("auto") == "cpu":
            raise Failure("the baseline was measured on GPUs; there is none here", CANNOT_JUDGE)
        why_not = why_not_here(case.ranks, case.device, share=case.kind == "one_gpu_share")
        if why_not is not None:
            raise Failure(f"{case.label} cannot be measured here: {why_not}", CANNOT_JUDGE)
    return cases


def against_commit(
    revision: str, asked: Asked, device: Device, limits: Limits, out: Path | None
) -> Judgement:
    """A commit and the work tree, in turn."""
    effort = EFFORT if "time" in limits.metrics else COUNTED
    request = Request(combinations=asked.combinations, device=device, launches=1, effort=effort)
    cells = checked_cells(request, skip_invalid=asked.skip_invalid)
    for cell in cells:
        if cell.why_not is not None:
            click.echo(f"{cell.case.label} is left out: {cell.why_not}", err=True)
    cases = [cell.case for cell in cells if cell.why_not is None]
    if not cases:
        raise Failure("no case is left to check; give other strategies, ranks or workloads")
    check_hits(planted_fault(), cases)
    folder = _new_folder(out, f"check-{revision}")
    try:
        with checked_out(revision) as base:
            here = work_tree()
            click.echo(f"base: {revision}, {base.commit[:12]}; now: the work tree", err=True)
            # A planted fault is planted in what is checked, not in what it is checked against.
            trees = {
                "base": ({**base.environment(), VARIABLE: None}, base.commit),
                "now": (here.environment(), here.commit),
            }
            with _sides(folder, trees, cases, limits) as sides:
                return Sides(folder=folder, sides=sides, cases=cases, limits=limits).judge()
    except CheckoutError as error:
        raise Failure(f"--base-ref {revision}: {error}") from None


def _new_folder(out: Path | None, title: str) -> Path:
    if joined() is not None:
        raise Failure("check starts its ranks itself; call it without torchrun")
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Failure(f"--out {out} is there already; a check is one measurement, in a new folder")
    return Destination(out, title).folder


@contextmanager
def _sides(
    folder: Path,
    trees: Mapping[str, tuple[Mapping[str, str | None], str]],
    cases: Sequence[Case],
    limits: Limits,
) -> Iterator[list[Side]]:
    """A side for each tree, with rows and ranks of its own; all share their rounds."""
    session, facts = new_session(), environment()
    planned = [resolved(cell) for cell in cells_of(cases, range(limits.launches), seed=0)]
    with ExitStack() as stack:
        sides = []
        try:
            take_turns = len(trees) > 1 and all(case.device == "cpu" for case in cases)
            seats = _seats(stack) if take_turns else [None] * len(trees)
            for (name, (variables, commit)), seat in zip(trees.items(), seats, strict=True):
                store = stack.enter_context(Store(folder / name))
                store.write_run({"argv": sys.argv, "cases": planned, **facts})
                log = store.folder / "logs" / "launcher.log"
                launcher = LocalLauncher(log, variables, seat=seat)
                stack.callback(launcher.close)
                sweep = Sweep(
                    store=store,
                    launcher=launcher,
                    run_id=folder.resolve().name,
                    session=session,
                    deadlines=limits.deadlines,
                    git_commit=commit or facts["git"].get("commit", ""),
                )
                sides.append(Side(name=name, sweep=sweep, seat=seat))
            yield sides
            click.echo(f"the rows of this check are in {folder}", err=True)
        except ResultsError as error:
            raise Failure(str(error), UNFIT) from None


def _seats(stack: ExitStack) -> Sequence[Seat | None]:
    """Where both sides' launches take turns; none where the system has no such sockets."""
    try:
        return stack.enter_context(Referee()).seats
    except OSError:
        return [None, None]
