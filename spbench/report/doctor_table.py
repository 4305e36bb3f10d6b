"""The doctor's diagnoses: a line for each check, its remedy below, and a summary."""

from collections.abc import Callable, Iterator, Sequence

from rich.text import Text

from spbench.doctor.machine_checks import Diagnosis
from spbench.report import tables, units
from spbench.report.fit_width import Grid, fewer, folded
from spbench.results.link_report import LinkReport, LinkRow
from spbench.text import counted

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "skipped": "dim"}
LEAST_FINDING = 30
"""Columns of a finding; in a terminal with fewer it begins below its check."""
INDENT = 3


def show_diagnoses(diagnoses: Sequence[Diagnosis]) -> None:
    """Prints the diagnoses, in a terminal folded to its width."""
    out = tables.console()
    width = tables.room(out)
    longest = max(map(len, ("check", *(diagnosis.check for diagnosis in diagnoses))))
    head = f" status    {'check':<{longest}}   "
    is_wide = width - len(head) >= LEAST_FINDING
    if is_wide:
        rule = "-" if out.options.ascii_only else "─"
        out.print(Text(f"{head}found", "bold"), soft_wrap=True)
        out.print(f" {rule * (len(head) + LEAST_FINDING - 1)}", soft_wrap=True)
    for diagnosis in diagnoses:
        label = f" {diagnosis.status:<7}   {diagnosis.check:<{longest}}   "
        lines = [] if is_wide else [Text(label.rstrip())]
        indent, label = (len(head), label) if is_wide else (INDENT, "")
        lines += folded(diagnosis.found, width, indent, label=label, style="")
        if diagnosis.remedy:
            lines += folded(f"remedy: {diagnosis.remedy}", width, indent, style="")
        lines[0].stylize(STYLES[diagnosis.status], 1, 1 + len(diagnosis.status))
        for line in lines:
            out.print(line, soft_wrap=True)
    out.print()
    tables.say(out, headline(diagnoses))


LINK_COLUMNS: dict[str, Callable[[LinkRow], str]] = {
    "operation": lambda row: f"{row.op} (gradients)" if row.gradients else row.op,
    "sent MiB": lambda row: units.mebibytes(row.sent_bytes),
    "ms": lambda row: units.milliseconds(row.ms),
    "range": lambda row: f"{units.milliseconds(row.ms_low)}..{units.milliseconds(row.ms_high)}",
    "times": lambda row: str(row.repeats),
    "GB/s": lambda row: units.gigabytes_per_s(row.bytes_per_s),
    "slowest rank": lambda row: (
        f"{units.gigabytes_per_s(row.slowest_bytes_per_s)} (rank {row.slowest_rank})"
    ),
    "of nominal": lambda row: (
        "unknown" if row.share_of_nominal is None else units.percent(row.share_of_nominal)
    ),
    "strategies": lambda row: ", ".join(row.strategies),
}
"""The columns of ``doctor --links``."""


def show_links(report: LinkReport) -> None:
    """Prints a row for each operation and size, and what is known of the links."""
    out = tables.console()
    cells = [[cell(row) for cell in LINK_COLUMNS.values()] for row in report.rows]
    grid = Grid(columns=list(LINK_COLUMNS), rows=cells, words=(0, 8), wraps=(8,))
    tables.show_fitting(out, fewer(grid, ("times", "strategies", "range", "slowest rank")))
    tables.say(out, *link_sentences(report))


def link_sentences(report: LinkReport) -> Iterator[str]:
    """Where the rates were measured, and the nominal one."""
    where = report.placement or ", ".join(report.hosts)
    yield (
        f"{counted(report.ranks, 'rank')} over {report.backend} on {where}; sizes of "
        f"{report.workload}. Bytes are what one rank sends, the time is the slowest rank's."
    )
    link = f" of {report.link}" if report.link else ""
    nominal = report.nominal_bytes_per_s
    rate = "unknown" if nominal is None else f"{units.gigabytes_per_s(nominal)} GB/s, one way"
    yield f"Nominal rate{link}: {rate}."


def headline(diagnoses: Sequence[Diagnosis]) -> str:
    """Sums up all diagnoses in one line."""
    failed = [diagnosis.check for diagnosis in diagnoses if diagnosis.status == "fail"]
    warned = [diagnosis.check for diagnosis in diagnoses if diagnosis.status == "warn"]
    warnings = f"; {counted(len(warned), 'warning')}: {', '.join(warned)}" if warned else ""
    return f"unfit: {', '.join(failed)}{warnings}" if failed else f"fit{warnings}"
