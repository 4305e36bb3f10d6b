"""Scores projections on published measurements: errors, intervals, what choosing by them costs.

python benchmarks/published/score.py [FILE|FOLDER] [--json]      by default points.yaml beside it
python benchmarks/published/score.py --write        also keeps what spbench says of each class
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from published_points import default_file, read_each

from spbench.errors import Failure
from spbench.projection.costmodel.scatter import figures_file
from spbench.report import tables, units
from spbench.report.fit_width import Grid, fewer
from spbench.results.record import SURE
from spbench.text import counted

Row = Mapping[str, Any]
SCORE_COLUMNS = ("group", "link", "cluster", "median error", "in order", "regret", "within")
CLASS_COLUMNS = (
    *("class of machines", "groups", "cells", "mean regret", "worst", "as printed", "not told"),
    *("within", "median error", "scatter", "holds", "named rightly"),
)
"""Not told: apart by the source, where a choice costs nothing for that reason alone. Holds: what
the scatter of the other groups holds of a group's cases, where 95 % is claimed."""
SCORES = ("median_error", "pairs_in_order", "mean_regret", "coverage")


def show_scores(groups: Sequence[Row], summary: Row) -> None:
    """Prints a line for each complete group, what fell outside, what is not modelled, the sums by
    class of machine, and what could not be judged."""
    out = tables.console()
    complete = [group for group in groups if group["complete"]]
    rows = [
        [group["group"], group["link"], group["cluster"], *(_share(group[name]) for name in SCORES)]
        for group in complete
    ]
    grid = Grid(columns=SCORE_COLUMNS, rows=rows, words=(0, 1, 2))
    tables.show_fitting(out, fewer(grid, ("cluster", "in order", "link")))
    for group in complete:
        tables.say(out, *_outside(group))
    shown = [group for group in groups if not group["complete"]]
    tables.say(out, f"shown, not projected (incomplete): {len(shown)} of {len(groups)} groups")
    by_class = _by_class(summary["classes"])
    tables.show_fitting(out, fewer(by_class, ("median error", "groups", "within")))
    shared = _share(summary["shared_part"])
    tables.say(
        out,
        f"mean regret: {_share(summary['mean_regret_nvlink'])} on NVLink, "
        f"{_share(summary['mean_regret_pcie'])} on PCIe, {_share(summary['worst_regret'])} at "
        f"worst; as printed, also where a source's own variants overlap: "
        f"{_share(summary['plain_mean_regret_nvlink'])}, "
        f"{_share(summary['plain_mean_regret_pcie'])}, {_share(summary['plain_worst_regret'])}",
        f"median error {_share(summary['median_error'])}; "
        f"{_share(summary['coverage'])} of published times lie within the interval; "
        f"{_share(summary['cells_compared'])} of cells with a choice are modelled",
        f"named as the fastest, in {units.percent(SURE)} of draws or more: "
        f"{counted(summary['named'], 'winner')}, of which the source has "
        f"{summary['named_best']} as the best, and {summary['named_rightly']} as the best or not "
        "told apart from it",
        *([f"variants of one strategy share {shared} of the scatter's variance"] * bool(shared)),
        *(f"not judged: {name}: {why}" for name, why in summary["unjudged"].items()),
    )


def _by_class(classes: Row) -> Grid:
    """What is known of each class of machines that has a choice."""
    rows = [
        [
            name,
            str(own["groups"]),
            str(own["cells"]),
            *(_share(own[key]) for key in ("mean_regret", "worst_regret", "plain_worst_regret")),
            str(own["not_told_apart"]),
            _share(own["coverage"]),
            _share(own["median_error"]),
            f"{own['scatter']:.2f}x",
            _share(own["held"]),
            f"{own['named_rightly']} of {own['named']}",
        ]
        for name, own in classes.items()
        if own["cells"]
    ]
    return Grid(columns=CLASS_COLUMNS, rows=rows, words=(0,))


def _outside(group: Row) -> list[str]:
    """Sentences on what is not modelled, and on times outside of their interval."""
    lines = []
    for cell in group["cells"]:
        what = ", ".join(filter(None, (group["group"], cell["set"], f"{cell['ranks']} GPUs")))
        for case in cell["cases"]:
            if case["why_not"]:
                lines.append(f"not modelled: {what}, {case['case']}: {case['why_not']}")
            elif not case["within"]:
                inside = f"{case['low_s']:.4g}..{case['high_s']:.4g}"
                lines.append(
                    f"outside: {what}, {case['case']}: "
                    f"published {case['published_s']:.4g}, projected {inside}"
                )
    return lines


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def main(words: Sequence[str] | None = None) -> int:
    """Prints each point beside its projection, and the sums; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python benchmarks/published/score.py", description=__doc__
    )
    parser.add_argument("place", nargs="?", type=Path, default=default_file())
    parser.add_argument("--json", action="store_true", dest="as_json")
    parser.add_argument(
        "--write",
        action="store_true",
        help=f"write the figures by class that spbench carries, {figures_file().name}",
    )
    asked = parser.parse_args(words)
    if asked.write and asked.place != default_file():
        parser.error(f"--write is of {default_file().name}: leave out {asked.place}")
    try:
        points, wrong = read_each(asked.place)
    except Failure as failure:
        print(f"Error: {failure}", file=sys.stderr)
        return 2
    # What is wrong with a file is said before these load torch.
    from published_score import figures_text, judge, summary

    from spbench.layers.kernels import norms_of_single_operations
    from spbench.projection.dryrun.rank_work import works

    with norms_of_single_operations():
        work_of = works()
        groups, unjudged = judge(points, work_of)
    unjudged = {**{each.id: each.why for each in wrong}, **unjudged}
    total = summary(groups) | {"unjudged": unjudged}
    if asked.write:
        figures_file().write_text(figures_text(total["classes"]), encoding="utf-8")
        print(f"wrote {figures_file()}", file=sys.stderr)
    if asked.as_json:
        tables.print_json({"groups": groups, **total})
    else:
        show_scores(groups, total)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
