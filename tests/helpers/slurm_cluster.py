"""Slurm with two nodes on this machine: a controller and two slurmd, without munge."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from helpers.spbench_process import PATHS

PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "scancel", "sinfo", "squeue")
START_S = 30.0
CONFIGURATION = """\
ClusterName=two-nodes
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=10
KillWait=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
NodeName={nodes[0]} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cores}
NodeName={nodes[1]} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cores}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
"""Without ``task/cgroup`` and ``proctrack/cgroup``, which need control groups of their own."""


def why_no_slurm() -> str:
    """Why Slurm cannot be started here; blank where it can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if missing:
        return f"{', '.join(missing)} missing: apt-get install slurm-wlm"
    if os.geteuid() != 0:
        return "slurmd needs root"
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        return "node 0 has this machine's name, which does not resolve"
    return ""


def _path() -> str:
    """With the folder of this Python, where spbench is, and of daemons."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin"])


@dataclass(frozen=True)
class SlurmCluster:
    """What runs Slurm's commands; the first node has this machine's name, which resolves."""

    folder: Path
    nodes: tuple[str, str]

    @property
    def environment(self) -> dict[str, str]:
        ours = {name: text for name, text in os.environ.items() if not name.startswith("SLURM_")}
        conf = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        return ours | conf | {"PATH": _path(), "PYTHONPATH": PATHS}

    def run(
        self, *words: str, within_s: float = 120.0, at: Path | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            cwd=at or self.folder,
            env=self.environment | more,
            capture_output=True,
            text=True,
            timeout=within_s,
            check=False,
        )

    def answer(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def ends(self, job: str, within_s: float = 60.0) -> None:
        """Waits until the job has left the queue."""
        deadline = time.monotonic() + within_s
        while self.answer("squeue", "--noheader", "--format=%i").split():
            assert time.monotonic() < deadline, f"job {job} has not ended"
            time.sleep(0.3)

    def processes_of(self, node: str) -> list[psutil.Process]:
        """Slurm's and ours on one of the nodes, which share a machine."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                of_node = process.environ().get("SLURMD_NODENAME") == node
                if of_node or words[:1] == [f"slurmstepd: [{node}]"]:
                    found.append(process)
        return found


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[SlurmCluster]:
    """Two nodes for as long as the context lasts; no daemon is left behind."""
    host = socket.gethostname()
    cluster = SlurmCluster(folder, (host, f"{host}-second"))  # sorted by Slurm: the host is node 0
    for name in ("state", *(f"spool-{node}" for node in cluster.nodes)):
        (folder / name).mkdir()
    text = CONFIGURATION.format(
        host=host, ports=_free_ports(3), folder=folder, nodes=cluster.nodes, cores=os.cpu_count()
    )
    (folder / "slurm.conf").write_text(text)
    with ExitStack() as daemons:
        daemons.enter_context(daemon(cluster, "slurmctld", "-D", "-i"))
        for node in cluster.nodes:
            daemons.enter_context(daemon(cluster, "slurmd", "-D", "-N", node))
        _until_idle(cluster)
        try:
            yield cluster
        finally:
            cluster.run("scancel", "--user=root")
            for node in cluster.nodes:
                _, left = psutil.wait_procs(cluster.processes_of(node), timeout=15)
                for process in left:
                    with contextlib.suppress(psutil.Error):
                        process.kill()


@contextmanager
def daemon(cluster: SlurmCluster, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program of Slurm in the foreground, ended with the context."""
    with (cluster.folder / f"{'-'.join(words)}.out").open("wb") as log:
        process = subprocess.Popen(
            words, env=cluster.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        probes = [held.enter_context(closing(socket.socket())) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def _until_idle(cluster: SlurmCluster) -> None:
    deadline = time.monotonic() + START_S
    states: Sequence[str] = []
    while states != ["idle", "idle"]:
        assert time.monotonic() < deadline, f"nodes are {states} after {START_S:g} s"
        time.sleep(0.3)
        states = cluster.run("sinfo", "--noheader", "-N", "--format=%T").stdout.split()
