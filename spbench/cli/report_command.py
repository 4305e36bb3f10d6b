"""``spbench report``: a run as one page of HTML."""

from collections.abc import Sequence
from pathlib import Path

import click

from spbench.cli import options
from spbench.cli.help_page import HelpPage
from spbench.errors import Failure, writing
from spbench.report.tables import print_paths
from spbench.results.find_run import (
    RESULTS,
    capacities_beside,
    drawn_beside,
    find_run,
    read_latest,
    select_rows,
)

ENDINGS = (".html", ".htm")


@click.command("report", cls=HelpPage)
@options.run_argument
@click.option(
    "--out",
    type=options.PATH,
    metavar="FILE",
    help="The page.  [default: RUN/report.html; of a baseline "
    f"{RESULTS}/baseline-NAME/report.html]",
)
@options.drawing_options
def command(
    run: Path | None,
    out: Path | None,
    workloads: Sequence[str],
    strategies: Sequence[str],
    gpus: str | None,
    page: int,
    baselines: Path,
    as_json: bool,
) -> None:
    """Write RUN as one page of HTML that needs nothing else, to be opened, sent or printed.

    RUN is a results directory, a CSV file, baseline:NAME, or by default the latest run. The page
    has the answer in words, tables that sort and filter, every figure, how and where it was
    measured, each case that failed and why, and the command that repeats it. Prints its path.
    """
    path = find_run(run, baselines)
    if out is not None and out.suffix.lower() not in ENDINGS:
        raise Failure(f"--out {out}: the report is HTML; name a file that ends in {ENDINGS[0]}")
    whole = read_latest(path)
    chosen = workloads, strategies, [gpus] if gpus else []
    frame, (capacities, unread) = select_rows(whole, *chosen), capacities_beside(path, chosen)
    from spbench.report.page.run_page import html_of_run

    for remark in unread:
        click.echo(remark, err=True)
    file = out or drawn_beside(path, "report.html", baselines)
    try:
        text = html_of_run(path, whole, frame, capacities, page)
    except ValueError as error:
        raise Failure(str(error)) from None
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    print_paths([file], as_json=as_json)
