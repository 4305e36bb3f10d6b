"""What stands under a figure: the run that it is of, and what its marks mean."""

from collections.abc import Iterable, Mapping, Sequence

import pandas

from spbench.analysis.comparable import PANEL
from spbench.analysis.launches import SPEEDS_ALIKE
from spbench.report.plots.figure import Mark, Sheet
from spbench.report.plots.frame import Run
from spbench.results.provenance import distinct
from spbench.text import counted

SHORT_COMMIT = 9
SHARE_BACKEND = "fake"


def sheet_about(
    run: Run,
    heading: str,
    panels: Mapping[str, Mark],
    notes: Iterable[str],
    remarks: Sequence[str] = (),
) -> Sheet:
    """A figure of a run.

    Parameters
    ----------
    run : where the figures come from, which the caption begins with.
    heading, panels, remarks : as of ``Sheet``.
    notes : what marks mean, behind the run in the caption; blank ones are left out.

    Returns
    -------
    Sheet
        Whose caption says of projected cases only where a panel has one.
    """
    about = about_run(run, has_projected=any(mark.is_projected for mark in panels.values()))
    caption = " · ".join(filter(None, [about, *notes]))
    return Sheet(heading=heading, panels=panels, caption=caption, remarks=remarks)


def about_run(run: Run, *, has_projected: bool = True) -> str:
    """Run, device, torch, dtype and commit of what is drawn, whether it was quick or noisy, or on
    processors of several speeds, and what of it was not measured.

    ``has_projected``: whether projected cases are drawn, where the run has others, too.
    """
    frame = run.launches
    is_projected = frame["kind"] == "projected"
    real, projected = frame[~is_projected], frame[is_projected]
    if not has_projected and len(real):
        frame, projected = real, projected[:0]

    def words(name: str, rows: pandas.DataFrame = frame) -> str:
        return ", ".join(distinct(rows, name))

    commits = dict.fromkeys(commit[:SHORT_COMMIT] for commit in distinct(frame, "git_commit"))
    parts = [
        f"run {frame.iloc[0]['run_id']}",
        words("gpu", real) or words("device", real),
        words("backend").replace(SHARE_BACKEND, "nothing sent"),
        f"torch {words('torch')}",
        words("dtype"),
        words("mode"),
        f"commit {', '.join(commits)}" if commits else "",
    ]
    if len(projected):
        parts.append(f"projected on {words('cluster', projected)}: not measured")
    if noisy := int((frame["noisy"] != "").sum()):
        parts.append(f"{noisy} of {counted(len(frame), 'launch')} noisy")
    # Cases that stand side by side: the fastest processor over the slowest.
    speeds = frame.groupby([*PANEL, "world_size", "strategy"], sort=False)["cpu_gflop_per_s"].mean()
    beside = speeds.groupby(level=[*PANEL, "world_size"])
    apart = (beside.max() / beside.min()).max()
    if apart > 1 + SPEEDS_ALIKE:
        parts.append(f"processors up to {apart:.2f}x apart in speed")
    if (frame["effort"] == "quick").any():
        parts.append("quick")
    return " · ".join(filter(None, parts))
