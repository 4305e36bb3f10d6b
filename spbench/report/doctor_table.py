"""The doctor's diagnoses: a line for each check, its remedy below, and a summary."""

from collections.abc import Sequence

from rich.text import Text

from spbench.doctor.machine_checks import Diagnosis
from spbench.report import tables
from spbench.report.fit_width import folded
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


def headline(diagnoses: Sequence[Diagnosis]) -> str:
    """Sums up all diagnoses in one line."""
    failed = [diagnosis.check for diagnosis in diagnoses if diagnosis.status == "fail"]
    warned = [diagnosis.check for diagnosis in diagnoses if diagnosis.status == "warn"]
    warnings = f"; {counted(len(warned), 'warning')}: {', '.join(warned)}" if warned else ""
    return f"unfit: {', '.join(failed)}{warnings}" if failed else f"fit{warnings}"
