"""``spbench.plot``: one figure of a run, or of rows that a notebook has chosen."""

import os
from pathlib import Path

import matplotlib as mpl
import pandas
from matplotlib.figure import Figure

from spbench.analysis.compare_strategies import compare_strategies
from spbench.report.plots.figure import draw
from spbench.report.plots.frame import Asked, Run
from spbench.report.plots.pages import page_of
from spbench.report.plots.style import STYLE
from spbench.results.find_run import find_run, reference_of
from spbench.results.record import COLUMNS
from spbench.results.run_json import folder_of_run
from spbench.results.runs_csv import latest, read_runs

NOWHERE = Path(os.devnull, "no run")
"""In place of the folder of rows that come without one."""


def plot(
    run: str | Path | pandas.DataFrame,
    kind: str = "",
    *,
    metric: str = "",
    x: str = "",
    facet: str = "",
) -> Figure:
    """The figure that ``spbench plot --kind KIND`` writes, as matplotlib's own: to be shown in a
    notebook, or written with ``savefig``.

    ``run``: a results directory, a CSV file, ``baseline:NAME``, or rows of ``read_runs``, which
    have no iterations. ``kind``: by default the one that the run has most to say with; with
    ``metric``, ``x`` or ``facet`` curves of any figure. Raises ValueError for a kind, metric, x or
    facet that is not known, for rows without a column of runs.csv, and Failure for a run that is
    not there.
    """
    if isinstance(run, pandas.DataFrame):
        if missing := [name for name in COLUMNS if name not in run]:
            raise ValueError(
                f"these rows have no column {missing[0]!r}, of {len(missing)} that are missing; "
                "spbench.read_runs gives rows with all of them"
            )
        path, frame = NOWHERE, latest(run)
    else:
        path = find_run(Path(run))
        frame = latest(read_runs(path))
    chosen = {
        name: value for name, value in (("metric", metric), ("x", x), ("facet", facet)) if value
    }
    lines = compare_strategies(frame, reference_of(path, frame))
    drawn = Run(lines=lines, launches=frame, folder=folder_of_run(path), asked=Asked(**chosen))
    page = page_of(drawn, kinds=[kind] if kind else [])
    with mpl.rc_context(STYLE):
        return draw(next(iter(page.sheets.values())))
