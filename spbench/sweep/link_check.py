"""Runs ``spbench doctor --links`` wherever ``run`` runs: here, on several nodes, under torchrun."""

from contextlib import closing

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


def check_links(check: LinkCheck, cluster: Cluster | None) -> LinkReport | None:
    """The report; None on a rank or node that is not the first. Raises Failure where ranks fail,
    with the cause and the logs, which are kept only then."""
    job = check.job()
    if cluster is not None:
        cluster = described(cluster, job.model_dump_json(), job.hang_s)
        if not cluster.is_head:
            follow(cluster, job.device)
            return None
    joined = None if joined_ranks() is None else JoinedLauncher(job)
    if joined is not None and not joined.is_first:
        joined.follow()
        return None
    with temporary_folder("spbench-links-") as folder:
        launcher = joined or LocalLauncher(folder / "launcher.log", cluster=cluster)
        with closing(launcher):
            if isinstance(launcher, LocalLauncher):
                launcher.meet(job.ranks, on_gpus=job.device == "cuda")
            what = counted(len(job.transfers), "transfer")
            click.echo(f"{counted(job.ranks, 'rank')} time {what}", err=True)
            launched = launcher.run(job, folder)
        times, status, cause = read_results(job, folder, launched, LinkTimes)
        if status != "ok":
            keep(folder)
            raise Failure(f"{status}: {cause}; logs in {folder}", UNFIT)
    return report_of(check, launched, times)
