"""``spbench history``: a case over commits, and the first one where it got worse."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from spbench.analysis.compare import MARGIN
from spbench.analysis.findings import Margins
from spbench.analysis.history import Series, histories
from spbench.cli import options
from spbench.cli.help_page import HelpPage
from spbench.errors import Failure, writing
from spbench.report.run_table import show_histories
from spbench.report.tables import print_json
from spbench.results.find_run import RESULTS, kept_rows, select_rows


@click.command("history", cls=HelpPage)
@options.filter_options
@options.percent_option("--margin", f"{MARGIN:.0%}", "Times that differ by less count as the same.")
@click.option(
    "--out", type=options.PATH, default=RESULTS / "history", help="Folder of the picture."
)
@options.baselines_option
@options.json_option
def command(
    workloads: Sequence[str],
    strategies: Sequence[str],
    gpus: str | None,
    margin: float,
    out: Path,
    baselines: Path,
    as_json: bool,
) -> None:
    """Show cases over commits, of all runs that are kept, and the first bad commit of each.

    Runs are those under results/ and results/archive/, and the baselines. Commits are ordered by
    their dates in git, others by their first launch. Each is compared with the one before it, on
    the same hardware and libraries alone; it is the first bad one if it is worse and all later
    ones are worse, too. Writes a picture as PNG and SVG.
    """
    rows = kept_rows(baselines)
    if rows.empty:
        raise Failure(f"no runs under {RESULTS}/ or {baselines}/ yet; start one with 'spbench run'")
    chosen = select_rows(rows, workloads, strategies, [gpus] if gpus else [])
    series = histories(chosen, Margins(time=margin))
    if as_json:
        print_json([asdict(each) for each in series])
        return
    show_histories(series)
    for file in _drawn(series, out):
        click.echo(file)


def _drawn(series: Sequence[Series], folder: Path) -> list[Path]:
    """The picture's files; none where no case was timed."""
    from spbench.report.plots.figure import save
    from spbench.report.plots.kinds import history_sheet

    sheet = history_sheet(series)
    if not sheet.panels:
        return []
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        return save(sheet, folder / "history")
