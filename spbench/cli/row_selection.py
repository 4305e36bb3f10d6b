"""Which rows of a run are meant: by workload, strategy and number of ranks."""

from __future__ import annotations

from collections.abc import Sequence

from spbench.errors import Failure
from spbench.results.record import Record
from spbench.text import did_you_mean

MOST_OFFERED = 8


def chosen(
    records: Sequence[Record],
    workloads: Sequence[str],
    strategies: Sequence[str],
    ranks: Sequence[str],
) -> list[Record]:
    """The records of all that is named; nothing named is everything. Raises Failure.

    A workload's name also means its rows with settings, a strategy's those with options.
    """
    wanted = [
        ("--workload", workloads, lambda record: record.workload, " "),
        ("--strategy", strategies, lambda record: record.strategy, ":"),
        ("--gpus", ranks, lambda record: str(record.world_size), ","),
    ]
    left = list(records)
    for flag, texts, column, behind in wanted:
        if texts:
            offered = list(dict.fromkeys(map(column, records)))
            values = {one for text in texts for one in _named(flag, text, offered, behind)}
            left = [record for record in left if column(record) in values]
    if not left:
        raise Failure("the run has no row of all that is asked for together")
    return left


def _named(flag: str, text: str, offered: Sequence[str], behind: str) -> list[str]:
    """The values that ``text`` names; settings in a workload's name may hold commas."""
    names = [text] if text in offered else [part.strip() for part in text.split(",")]
    found: list[str] = []
    for name in names:
        meant = [one for one in offered if one == name or one.startswith(name + behind)]
        if not meant:
            more = len(offered) - MOST_OFFERED
            there = ", ".join(offered[:MOST_OFFERED]) + (f" and {more} more" if more > 0 else "")
            hint = did_you_mean(name, offered)
            said = f"{flag} {text}: the run has no {name!r}. {hint}".rstrip()
            raise Failure(f"{said}\n  There are {there}.")
        found += meant
    return found
