"""The largest batch and the longest axis that fit, over ranks: a panel for each that grows."""

from typing import Any

import pandas

from spbench.report import units
from spbench.report.plots import looks
from spbench.report.plots.curve import Curve, CurvePanel
from spbench.report.plots.kinds import SHORT_COMMIT
from spbench.report.plots.points import axes_of, title_of
from spbench.results.capacities import BATCH, QUESTION, SizedWork
from spbench.results.provenance import distinct

HEADING = "The largest batch and the longest axis that fit into a rank's memory"


def panels(table: pandas.DataFrame) -> dict[str, CurvePanel]:
    """The panels of capacity.csv by their titles."""
    made = {}
    for values, rows in table.groupby([*QUESTION], sort=False, dropna=False):
        asked: dict[str, Any] = dict(zip(QUESTION, values, strict=True))
        work = SizedWork(**asked)
        made[title(work)] = CurvePanel(
            curves=[_curve(str(name), each) for name, each in rows.groupby("strategy", sort=False)],
            x="ranks",
            y=_grows(work),
            has_ticks_at_points=True,
            ideal=1.0,
            ideal_name="as many times as ranks",
        )
    return made


def title(work: SizedWork) -> str:
    """What grows of which workload, and what memory it has."""
    unit = units.size_unit(work.budget_bytes)
    what = {name: getattr(work, name) for name in QUESTION[: QUESTION.index("grows")]}
    what["axes"] = " x ".join(f"{axis} {length}" for axis, length in axes_of(work.axes).items())
    what["batch"] = "" if work.grows == BATCH else work.batch
    within = f"{units.size_in(unit, work.budget_bytes)} {unit} of a rank"
    within += f", tried on {work.gpu}" * (work.kind == "measured")
    return f"{_grows(work)}: {title_of(what)}, within {within}"


def _grows(work: SizedWork) -> str:
    return "largest batch" if work.grows == BATCH else f"longest {work.grows}"


def _curve(strategy: str, rows: pandas.DataFrame) -> Curve:
    ordered = rows.sort_values("ranks")
    fits = ordered["largest"].notna()
    sizes = ordered["largest"][fits].astype(float).tolist()
    return Curve(
        label=strategy,
        look=looks.line_look(strategy),
        is_projected=ordered["kind"].iloc[0] == "dry_run",
        x=ordered["ranks"][fits].astype(float).tolist(),
        y=sizes,
        noisy=[False] * len(sizes),
        failed=[
            (float(row["ranks"]), "cannot run" if row["why_not"] else "too large")
            for _, row in ordered[~fits].iterrows()
        ],
    )


def caption(table: pandas.DataFrame) -> str:
    """How the sizes were found, by which versions."""
    kinds = distinct(table, "kind")
    tried = [f"ranks that tried on {', '.join(distinct(table, 'gpu'))}"] * ("measured" in kinds)
    how = ["dry runs"] * ("dry_run" in kinds) + tried
    made = {
        "torch": ", ".join(distinct(table, "torch")),
        "commit": ", ".join(name[:SHORT_COMMIT] for name in distinct(table, "git_commit")),
    }
    parts = [
        f"capacity, by {' and '.join(how)}",
        *(f"{name} {versions}" for name, versions in made.items() if versions),
        "the next size does not fit, unless sizes end",
    ]
    return " · ".join(parts)
