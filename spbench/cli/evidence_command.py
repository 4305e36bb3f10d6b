"""``spbench evidence``: one block of Markdown for a pull request."""

from pathlib import Path

import click

from spbench.analysis.compare import MARGIN
from spbench.analysis.compare_runs import compare_runs
from spbench.analysis.compare_strategies import compare_strategies
from spbench.analysis.findings import Margins
from spbench.analysis.verdict import judged
from spbench.cli import help, options
from spbench.cli.help import HelpPage
from spbench.cli.selection import repeated_flags
from spbench.report.markdown import block_of_changes, block_of_run, changes_in_words
from spbench.results.find_run import find_run, read_latest, reference_of
from spbench.results.provenance import provenance
from spbench.text import quoted


@click.command("evidence", cls=HelpPage)
@click.argument("run", type=options.PATH, shell_complete=help.runs)
@click.argument("base", required=False, type=options.PATH, shell_complete=help.runs)
@options.percent_option("--margin", f"{MARGIN:.0%}", "Times that differ by less count as the same.")
@options.baselines_option
@click.pass_context
def evidence_command(
    ctx: click.Context, /, run: Path, base: Path | None, margin: float, baselines: Path
) -> None:
    """Print RUN, or RUN against BASE, as Markdown for a pull request.

    Each is a results directory, a CSV file or baseline:NAME. The block says what changed, by how
    much, how sure that is and what explains it: times with intervals, bytes, peak memory, the
    gate's errors, both commits, the machines, and the commands that repeat it.
    """
    head = find_run(run, baselines)
    after = read_latest(head)
    if base is None:
        lines = compare_strategies(after, reference_of(head, after))
        title = f"spbench evidence: {', '.join(after['workload'].unique())}"
        click.echo(block_of_run(title, lines, provenance(head, after)), nl=False)
        return
    found = find_run(base, baselines)
    before = read_latest(found)
    margins = Margins(time=margin)
    judgement = judged(compare_runs(before, after, margins), margins)
    origins = provenance(found, before), provenance(head, after)
    measured = [f"{side.command}  # at {side.commit}" for side in origins if side.command]
    judged_as = repeated_flags(ctx, ("margin", "baselines"))
    again = [*measured, quoted("spbench", "evidence", run, base, *judged_as)]
    title = f"spbench evidence: {changes_in_words(judgement)}"
    click.echo(block_of_changes(title, judgement, origins, again, margins), nl=False)
