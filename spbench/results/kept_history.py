"""All runs that are kept, as one frame: under results/, in its archive, and as baselines."""

from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

import click
import pandas

from spbench.errors import ResultsError, or_none
from spbench.results.environment import git_output
from spbench.results.find_run import RESULTS
from spbench.results.reading import latest, read_runs
from spbench.results.run_json import had_changes, read_run

WITH_CHANGES = "+"
"""Behind a commit whose tree had changes that were not committed."""


def kept_rows(baselines: Path) -> pandas.DataFrame:
    """The latest rows of every kept run, each once, with the columns ``kept``, the run's folder,
    ``point``, its commit or else the run, and ``since``, when that point was made.

    A commit is as old as git says; what git does not know, or was changed, as its first launch.
    """
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
