"""The run that a command means, as it is named or the latest, and the rows of it that flags choose.

Also all runs that are kept, as one frame: under results/, in its archive, and as baselines.
Functions import what needs pandas: a run imports this file before its ranks start.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spbench.errors import Failure, ResultsError, or_none
from spbench.results.baselines import BASELINES, folder_of, names
from spbench.results.capacities import COLUMNS, has_capacities, read_capacities
from spbench.results.lock import is_held
from spbench.results.machine import git_output
from spbench.results.run_json import folder_of_run, had_changes, read_run
from spbench.text import did_you_mean, quoted

if TYPE_CHECKING:
    import pandas

RESULTS = Path("results")
RUNS = "runs.csv"
SHOWN = 3
"""Runs that a message names."""


def find_run(named: Path | None, baselines: Path = BASELINES) -> Path:
    """A results directory or CSV file; ``baseline:NAME`` is one of ``baselines``. Raises Failure
    with the runs that exist."""
    prefix, colon, name = str(named).partition(":")
    if colon and prefix == "baseline":
        return find_baseline(name, baselines)
    if named is None:
        runs = all_runs()
        if not runs:
            raise Failure(f"no runs under {RESULTS}/ yet; start one with 'spbench run'")
        return runs[-1]
    inside = RESULTS / named
    if not named.exists() and inside.exists():
        return inside
    if not named.exists():
        known = ", ".join(run.name for run in all_runs()[: -SHOWN - 1 : -1]) or "none yet"
        raise Failure(f"no run at {named}. The latest under {RESULTS}/: {known}")
    within = sorted(path.parent for path in named.glob("*/runs.csv")) if named.is_dir() else []
    if within and not (named / "runs.csv").exists():
        known = ", ".join(map(str, within[:SHOWN]))
        raise Failure(f"{named} is not a run, but holds some: {known}; name one of them")
    return named


def find_baseline(name: str, baselines: Path = BASELINES) -> Path:
    """The folder of a baseline. Raises Failure with the baselines that exist."""
    try:
        folder = folder_of(name, baselines)
    except ResultsError as error:
        raise Failure(str(error)) from None
    if not (folder / "runs.csv").exists():
        known = names(baselines)
        hint = did_you_mean(name, known) or (
            f"There are: {', '.join(known) or 'none yet'}\n"
            f"  'spbench baseline set {name}' makes one of the latest run."
        )
        raise Failure(f"no baseline {name!r} in {baselines}/. {hint}")
    return folder


def all_runs() -> list[Path]:
    """The runs under results/, the latest last; one that is removed meanwhile stands first."""
    files = RESULTS.glob("*/runs.csv")
    by_change = sorted(files, key=lambda file: or_none(lambda: file.stat().st_mtime) or 0.0)
    return [path.parent for path in by_change]


def not_there_yet(run: Path, frame: pandas.DataFrame) -> int:
    """Number of launches in run.json that have no row, or were interrupted."""
    ended = frame[frame["status"] != "interrupted"]
    have_rows = set(zip(ended["case"], ended["launch"], strict=True))
    cases = read_run(folder_of_run(run)).get("cases", [])
    return sum((case.get("key"), case.get("launch")) not in have_rows for case in cases)


def command_again(run: Path) -> str:
    """The command that does what is left of a run. Blank where run.json names no launches, or
    another command than run.

    Of several nodes it is the whole command, since other nodes need not see the folder.
    """
    folder = folder_of_run(run)
    facts = read_run(folder)
    commands = [*facts.get("history", []), facts.get("argv", [])]
    if not facts.get("cases") or commands[-1][1:2] not in (["run"], ["resume"]):
        return ""
    if not facts.get("several_nodes"):
        return quoted("spbench", "resume", folder)
    began: list[str] = next((each for each in reversed(commands) if each[1:2] == ["run"]), [])
    words = iter(began[1:])
    kept: list[str] = []
    for word in words:
        if word == "--out":
            next(words, None)
        elif word != "--fresh" and not word.startswith("--out="):
            kept.append(word)
    return quoted("spbench", *kept, "--out", folder) if kept else ""


def way_on(run: Path) -> str:
    """The end of a sentence on what a run lacks; blank where nothing is known to do the rest."""
    if is_held(folder_of_run(run)):
        return "; the run is still going"
    command = command_again(run)
    return f"; resume with: {command}" if command else ""


def drawn_beside(run: Path, name: str, baselines: Path) -> Path:
    """The path of ``name`` in the folder of a run. Of a CSV file alone it begins with that file's
    name; of a baseline, whose own folder is to be committed, it lies under results/."""
    home = folder_of_run(run)
    if home.resolve().parent == baselines.resolve():
        return RESULTS / f"baseline-{home.name}" / name
    return home / name if home.is_dir() else home.with_name(f"{home.stem}-{name}")


def reference_of(run: Path, frame: pandas.DataFrame) -> str | None:
    """The strategy to compare the others with that the run's sweep names, if it has a row."""
    name = read_run(folder_of_run(run)).get("reference")
    return name if (frame["strategy"] == name).any() else None


def read_latest(run: Path) -> pandas.DataFrame:
    """The latest row of each launch; says on stderr what could not be read, and why. Raises Failure
    where the user has named a file that cannot be read."""
    from spbench.results.runs_csv import latest, read_runs

    try:
        frame = read_runs(run)
    except ResultsError as error:
        if has_capacities(run) and not (run / RUNS).exists():
            drawn = quoted("spbench", "plot", run)
            raise Failure(f"{run} holds capacities alone; draw them: {drawn}") from None
        raise Failure(str(error)) from None
    for remark in frame.attrs["remarks"]:
        click.echo(remark, err=True)
    if frame.empty:
        raise Failure(f"{run} holds no rows to show{way_on(run)}")
    return latest(frame)


Chosen = tuple[Sequence[str], Sequence[str], Sequence[str]]
"""Workloads, strategies and ranks as flags name them; all where none is named."""
MOST_OFFERED = 8
"""Values of a column that a message names."""


def chosen_capacities(run: Path, chosen: Chosen) -> pandas.DataFrame:
    """The lines of capacity.csv in the folder of a run that match all flags. Raises Failure without
    such lines, and ResultsError where the file is damaged."""
    return select_rows(read_capacities(folder_of_run(run)), *chosen)


def capacities_beside(run: Path, chosen: Chosen) -> tuple[pandas.DataFrame, list[str]]:
    """As ``chosen_capacities``, but without a line where there is none; and what was not read."""
    import pandas

    try:
        return chosen_capacities(run, chosen), []
    except Failure as error:
        unread = [str(error)] if isinstance(error, ResultsError) else []
        return pandas.DataFrame(columns=[*COLUMNS]), unread


def select_rows(
    frame: pandas.DataFrame,
    workloads: Sequence[str],
    strategies: Sequence[str],
    ranks: Sequence[str],
) -> pandas.DataFrame:
    """The rows that match all flags; no flags mean all rows. Raises Failure without such rows.

    A workload's name also means its rows with settings, a strategy's those with options or a mesh.
    """
    selected = frame
    for flag, texts, column, behind in (
        ("--workload", workloads, "workload", " "),
        ("--strategy", strategies, "strategy", ": "),
        ("--gpus", ranks, "ranks" if "ranks" in frame else "world_size", ","),
    ):
        if texts:
            offered = list(map(str, frame[column].unique()))
            values = {name for text in texts for name in _named(flag, text, offered, behind)}
            selected = selected[selected[column].astype(str).isin(values)]
    if selected.empty:
        raise Failure("no row of the run matches --workload, --strategy and --gpus together")
    return selected


def _named(flag: str, text: str, offered: Sequence[str], behind: str) -> list[str]:
    """The values that ``text`` names; settings in a workload's name may hold commas."""
    names = [text] if text in offered else [part.strip() for part in text.split(",")]
    values: list[str] = []
    for name in names:
        starts = tuple(name + sign for sign in behind)
        meant = [value for value in offered if value == name or value.startswith(starts)]
        if not meant:
            more = len(offered) - MOST_OFFERED
            known = ", ".join(offered[:MOST_OFFERED]) + (f" and {more} more" if more > 0 else "")
            hint = did_you_mean(name, offered)
            problem = f"{flag} {text}: the run has no {name!r}. {hint}".rstrip()
            raise Failure(f"{problem}\n  There are {known}.")
        values += meant
    return values


WITH_CHANGES = "+"
"""Behind a commit whose tree had changes that were not committed."""


def kept_rows(baselines: Path) -> pandas.DataFrame:
    """The latest rows of every kept run, each once, with the columns ``kept``, the run's folder,
    ``point``, its commit or else the run, and ``since``, when that point was made.

    A commit is as old as git says; what git does not know, or was changed, as its first launch.
    """
    import pandas

    from spbench.results.runs_csv import latest, read_runs

    frames = []
    for file in sorted([*RESULTS.glob("*/runs.csv"), *RESULTS.glob("archive/*/runs.csv")]) + sorted(
        baselines.glob("*/runs.csv")
    ):
        folder = file.parent
        try:
            frame = latest(read_runs(folder))
        except ResultsError as error:
            click.echo(str(error), err=True)
            continue
        frames.append(frame.assign(kept=str(folder), changed=had_changes(read_run(folder))))
    if not any(map(len, frames)):
        return pandas.DataFrame()
    rows = pandas.concat([frame for frame in frames if len(frame)], ignore_index=True)
    rows = rows.drop_duplicates(["run_id", "case", "launch", "started_utc"], ignore_index=True)
    committed = commit_dates({commit for commit in rows["git_commit"] if commit})
    commit = rows["git_commit"].where(rows["git_commit"] == "", rows["git_commit"].str[:12])
    changed = rows["changed"].map({True: WITH_CHANGES, False: ""})
    point = (commit + changed).where(commit != "", rows["run_id"])
    began = rows["started_utc"].groupby([point, rows["kept"]]).transform("min")
    known = rows["git_commit"].map(committed)
    since = known.where(known.notna() & ~rows["changed"], began)
    return rows.assign(point=point, since=since.groupby(point).transform("min"))


def commit_dates(commits: Collection[str]) -> dict[str, str]:
    """When git says that each commit was made, as runs.csv writes times; unknown ones are left
    out."""
    words = ["log", "--no-walk=unsorted", "--ignore-missing", "--format=%H %ct", *sorted(commits)]
    known = or_none(lambda: git_output(*words, "--")) if commits else ""
    return {
        commit: f"{datetime.fromtimestamp(int(seconds), UTC):%Y-%m-%dT%H:%M:%SZ}"
        for commit, seconds in (line.split() for line in (known or "").splitlines())
    }
