"""The rows of a run, and the capacities beside them, that flags choose.

Functions import what needs pandas: commands import this file before they need it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spbench.errors import Failure, ResultsError
from spbench.results.capacities import COLUMNS, read_capacities
from spbench.results.run_json import folder_of_run
from spbench.text import did_you_mean

if TYPE_CHECKING:
    import pandas

Chosen = tuple[Sequence[str], Sequence[str], Sequence[str]]
"""Workloads, strategies and ranks as flags name them; all where none is named."""
MOST_OFFERED = 8
"""Values of a column that a message names."""


def chosen_capacities(run: Path, chosen: Chosen) -> "pandas.DataFrame":
    """The lines of capacity.csv in the folder of a run that match all flags. Raises Failure without
    such lines, and ResultsError where the file is damaged."""
    return select_rows(read_capacities(folder_of_run(run)), *chosen)


def capacities_beside(run: Path, chosen: Chosen) -> "tuple[pandas.DataFrame, list[str]]":
    """As ``chosen_capacities``, but without a line where there is none; and what was not read."""
    import pandas

    try:
        return chosen_capacities(run, chosen), []
    except Failure as error:
        unread = [str(error)] if isinstance(error, ResultsError) else []
        return pandas.DataFrame(columns=[*COLUMNS]), unread


def select_rows(
    frame: "pandas.DataFrame",
    workloads: Sequence[str],
    strategies: Sequence[str],
    ranks: Sequence[str],
) -> "pandas.DataFrame":
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
