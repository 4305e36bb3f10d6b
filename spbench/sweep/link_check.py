"""Runs ``spbench doctor --links`` wherever ``run`` runs: here, on several nodes, under torchrun."""

from __future__ import annotations

from pathlib import Path

import click

from spbench.doctor.link_rates import LinkCheck, report_of
from spbench.errors import UNFIT, Failure
from spbench.launch.cluster import Cluster
from spbench.launch.launcher import Deadlines, LaunchResult, status_and_cause
from spbench.launch.local import LocalLauncher, read_json, read_samples
from spbench.launch.torchrun import JoinedLauncher, joined_ranks
from spbench.results.link_report import LinkReport
from spbench.results.sample import LinkTimes, Sample, sample_path
from spbench.results.temporary import keep, temporary_folder
from spbench.sweep.run import described, follow
from spbench.text import counted
from spbench.workload.case import Job


def check_links(check: LinkCheck, cluster: Cluster | None) -> LinkReport | None:
    """The report; None on a rank or node that is not the first. Raises Failure where ranks fail."""
    job = check.job()
    if cluster is not None:
        cluster = described(cluster, job.model_dump_json(), job.hang_s)
        if not cluster.is_head:
            follow(cluster)
            return None
    with temporary_folder("spbench-links-") as folder:
        if joined_ranks() is None:
            local = LocalLauncher(folder / "launcher.log", cluster=cluster)
            return _measure(check, job, folder, local)
        joined = JoinedLauncher(job)
        if joined.is_first:
            return _measure(check, job, folder, joined)
        joined.follow()
    return None


def _measure(
    check: LinkCheck, job: Job, folder: Path, launcher: JoinedLauncher | LocalLauncher
) -> LinkReport:
    """Keeps the logs only where ranks fail."""
    try:
        if isinstance(launcher, LocalLauncher):
            launcher.meet(job.ranks, on_gpus=job.device == "cuda")
        what = counted(len(job.transfers), "transfer")
        click.echo(f"{counted(job.ranks, 'rank')} time {what}", err=True)
        launched = launcher.run(job, folder)
    finally:
        launcher.close()
    return report_of(check, launched, _times(job, launched, folder))


def _times(job: Job, launched: LaunchResult, folder: Path) -> list[LinkTimes]:
    """What each rank measured. Raises Failure with the cause, and where the logs are."""
    paths = [sample_path(folder, rank) for rank in range(job.ranks)]
    times = [found for path in paths if (found := read_json(path, LinkTimes)) is not None]
    deadlines = Deadlines(launch_s=job.timeout_s, hang_s=job.hang_s)
    samples = [Sample(rank=rank.rank, status="ok") for rank in times] + read_samples(job, folder)
    status, cause = status_and_cause(launched, samples, job.ranks, deadlines)
    if status != "ok":
        keep(folder)
        raise Failure(f"{status}: {cause}; logs in {folder}", UNFIT)
    return times
