"""Runs ``spbench doctor --links`` wherever ``run`` runs: here, on several nodes, under torchrun."""

from pathlib import Path

import click

from spbench.doctor.link_rates import LinkCheck, report_of
from spbench.errors import UNFIT, Failure
from spbench.launch.cluster import Cluster
from spbench.launch.local import LocalLauncher, read_results
from spbench.launch.torchrun import JoinedLauncher, joined_ranks
from spbench.results.link_report import LinkReport, LinkTimes
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
    """Raises Failure where ranks fail, with the cause and the logs, which are kept only then."""
    try:
        if isinstance(launcher, LocalLauncher):
            launcher.meet(job.ranks, on_gpus=job.device == "cuda")
        what = counted(len(job.transfers), "transfer")
        click.echo(f"{counted(job.ranks, 'rank')} time {what}", err=True)
        launched = launcher.run(job, folder)
    finally:
        launcher.close()
    times, status, cause = read_results(job, folder, launched, LinkTimes)
    if status != "ok":
        keep(folder)
        raise Failure(f"{status}: {cause}; logs in {folder}", UNFIT)
    return report_of(check, launched, times)
