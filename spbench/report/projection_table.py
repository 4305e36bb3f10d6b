"""Projected times, and published measurements beside them."""

import csv
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from spbench.report import tables, units
from spbench.report.fit_width import Grid, fewer
from spbench.results.record import USABLE
from spbench.text import counted

TERMS = ("gemm", "attention", "elementwise", "share")
COLUMNS = (
    *("strategy", "ranks", "step ms", "90 % interval", "no/full overlap", "compute ms"),
    *("host ms", "exposed ms", "hidden ms", "bubble ms", "samples/s", "sent MiB", "memory GB"),
)
IN_PIPELINES = "bubble ms"
"""A column that is left out where no case has stages."""
SPARE = ("no/full overlap", "hidden ms", "sent MiB", "samples/s", "host ms", "memory GB")
"""Columns left out where not all fit, in this order."""
Row = Mapping[str, Any]


def show_projections(rows: Sequence[Row], title: str) -> None:
    """Prints a table of cases with a time, then a sentence for each that cannot run."""
    out = tables.console()
    tables.say(out, title)
    timed = [row for row in rows if row["status"] == "ok"]
    if timed:
        grid = Grid(columns=COLUMNS, rows=[_cells(row) for row in timed])
        if not any("bubble" in row["terms_ms"] for row in timed):
            grid = replace(grid.without(IN_PIPELINES), lacks=())
        tables.show_fitting(out, fewer(grid, SPARE))
    for row in rows:
        if row["status"] != "ok":
            tables.say(out, f"{row['strategy']} on {row['world_size']}: {row['reason']}")


def _cells(row: Row) -> list[str]:
    terms: Mapping[str, float] = row["terms_ms"]
    return [
        row["strategy"],
        str(row["world_size"]),
        units.milliseconds(row["step_ms"]),
        span(row["step_ms_low"], row["step_ms_high"]),
        "/".join(units.milliseconds(row[f"step_ms_{x}_overlap"]) for x in ("without", "full")),
        units.milliseconds(sum(terms.get(name, 0.0) for name in TERMS)),
        units.milliseconds(terms["host"]),
        units.milliseconds(sum(ms for name, ms in terms.items() if name.endswith(" exposed"))),
        units.milliseconds(sum(ms for name, ms in terms.items() if name.endswith(" hidden"))),
        units.milliseconds(terms["bubble"]) if "bubble" in terms else units.BLANK,
        f"{row['samples_per_s']:.3g}",
        units.mebibytes(row["sent_bytes"]),
        memory(row),
    ]


def memory(row: Row) -> str:
    """GB of the busiest rank, of what its device has."""
    limit = f"{row['memory_limit_bytes'] / 1e9:.0f}"
    if row["peak_bytes"] is None:
        return f"?/{limit}"
    full = " too large" if row["peak_bytes"] > USABLE * row["memory_limit_bytes"] else ""
    return f"{row['peak_bytes'] / 1e9:.1f}/{limit}{full}"


def span(low: float, high: float) -> str:
    """An interval of milliseconds."""
    return f"{units.milliseconds(low)}..{units.milliseconds(high)}"


def print_csv(rows: Sequence[Row]) -> None:
    """Prints one row a case on stdout; what is not known is blank."""
    flat = [
        {name: value for name, value in row.items() if not isinstance(value, Mapping)}
        | {f"{name}_ms": ms for name, ms in row.get("terms_ms", {}).items()}
        for row in rows
    ]
    names = dict.fromkeys(name for row in flat for name in row)
    writer = csv.DictWriter(sys.stdout, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)


ERROR_COLUMNS = ("workload", "ranks", "strategy", "measured ms", "projected ms", "90 % interval")


def show_errors(rows: Sequence[Row], summary: Row) -> None:
    """Prints measured steps beside their projection, and the sums over each number of ranks."""
    out = tables.console()
    cells = [
        [
            row["workload"],
            str(row["world_size"]),
            f"{row['strategy']} ~" if row["noisy"] else row["strategy"],
            units.milliseconds(row["measured_ms"]),
            units.milliseconds(row["projected_ms"]),
            span(row["low_ms"], row["high_ms"]),
            f"{round(100 * row['error']):+d} %",
        ]
        for row in rows
        if not row["why_not"]
    ]
    grid = Grid(columns=(*ERROR_COLUMNS, "error"), rows=cells, words=(0, 2))
    tables.show_fitting(out, fewer(grid, ("90 % interval",)))
    for row in rows:
        if row["why_not"]:
            what = f"{row['workload']}, {row['strategy']} on {row['world_size']}"
            tables.say(out, f"not modelled: {what}: {row['why_not']}")
    if any(row["slower"] != 1 for row in rows):
        ends = span(min(row["slower"] for row in rows), max(row["slower"] for row in rows))
        tables.say(out, f"processors took {ends} times as long as when calibrated: projected so")
    for ranks, part in summary["by_ranks"].items():
        tables.say(out, f"{counted(ranks, 'rank')}: {_errors(part)}")
    tables.say(out, f"all: {_errors(summary)}")
    if summary["noisy"]:
        tables.say(out, "~ no undisturbed launch: the measured time is unreliable")


def _errors(part: Row) -> str:
    apart = part["pairs_apart"]
    order = f"pairs 15 % apart that are in order: {_share(part['pairs_in_order'])} of {apart}"
    pairs = order if apart else "no pair is 15 % apart"
    modelled, judged = part["cases_modelled"], counted(part["cases_judged"], "case")
    cases = judged if modelled == part["cases_judged"] else f"{modelled} modelled of {judged}"
    of_ratios = (
        f"over the mean of the strategies {_share(part['median_error_of_ratios'])}, worst "
        f"{_share(part['worst_error_of_ratios'])}; "
        if part["worst_error_of_ratios"] is not None
        else ""
    )
    behind = (
        f"; the fastest as projected is behind the fastest as measured by "
        f"{_share(part['mean_regret'])} on average, at worst {_share(part['worst_regret'])}"
        if part["mean_regret"] is not None
        else ""
    )
    return (
        f"median error {_share(part['median_error'])}, worst {_share(part['worst_error'])}; "
        f"{of_ratios}{_share(part['coverage'])} of {cases} within the interval; {pairs}{behind}"
    )


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"
