"""The papers' figures as hollow markers beside ours, and the sentence that says whose they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pandas

from spbench.report.plots import looks
from spbench.report.plots.curve import PublishedPoint


def published_points(rows: pandas.DataFrame, x: str, metric: str) -> Iterator[PublishedPoint]:
    """What a paper measured of these cases, where the metric follows from tokens a second."""
    for _, row in rows[rows["published"].notna()].iterrows():
        rate = row["published"]
        values = {
            "tokens_per_s": rate,
            "tokens_per_s_per_rank": rate / row["ranks"],
            "samples_per_s": rate * row["batch"] / row["tokens"],
            "step_ms": 1e3 * row["tokens"] / rate,
        }
        if metric in values:
            place = {"x": float(row[x]), "y": float(values[metric])}
            look = looks.line_look(row["strategy"])
            yield PublishedPoint(**place, look=look, source=row["published_by"])


def hollow_notes(sources: Iterable[str]) -> list[str]:
    """The part of a caption that says whose figures are hollow; none without any."""
    names = "; ".join(dict.fromkeys(sources))
    return [f"hollow: published ({names})"] if names else []
