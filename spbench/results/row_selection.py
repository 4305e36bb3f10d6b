"""Choosing rows of a run by workload, strategy and number of ranks."""

from __future__ import annotations

from collections.abc import Sequence

import pandas

from spbench.errors import Failure
from spbench.text import did_you_mean

MOST_OFFERED = 8


def select_rows(
    frame: pandas.DataFrame,
    workloads: Sequence[str],
    strategies: Sequence[str],
    ranks: Sequence[str],
) -> pandas.DataFrame:
    """The rows that match all flags; no flags mean all rows. Raises Failure without such rows.

    A workload's name also means its rows with settings, a strategy's those with options.
    """
    selected = frame
    for flag, texts, column, behind in (
        ("--workload", workloads, "workload", " "),
        ("--strategy", strategies, "strategy", ":"),
        ("--gpus", ranks, "world_size", ","),
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
        meant = [value for value in offered if value == name or value.startswith(name + behind)]
        if not meant:
            more = len(offered) - MOST_OFFERED
            known = ", ".join(offered[:MOST_OFFERED]) + (f" and {more} more" if more > 0 else "")
            hint = did_you_mean(name, offered)
            problem = f"{flag} {text}: the run has no {name!r}. {hint}".rstrip()
            raise Failure(f"{problem}\n  There are {known}.")
        values += meant
    return values
