"""Starts ranks that exchange known numbers through every collective, and judges what they got."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import click

from spbench.doctor.machine_checks import Diagnosis, fail, ok, skipped
from spbench.launch.launcher import Launcher
from spbench.launch.local import LocalLauncher, read_results
from spbench.results.link_report import Exchanged
from spbench.results.temporary import keep, temporary_folder
from spbench.text import counted
from spbench.workload.case import Device, Job

FAILED = {
    "cuda": "run NCCL_DEBUG=INFO spbench doctor and read NCCL's output in these logs; "
    "NCCL_P2P_DISABLE=1 and NCCL_SHM_DISABLE=1 show which path is broken",
    "cpu": "set GLOO_SOCKET_IFNAME=lo to keep gloo on this machine, in case its address or a "
    "firewall is the cause",
}
WRONG = {
    "cuda": "do not trust results of this machine; if NCCL_P2P_DISABLE=1 helps, the direct path "
    "between GPUs is broken (often by PCIe's ACS, or an IOMMU)",
    "cpu": "do not trust results of this machine; test its memory",
}
CRASHED = "read the end of the rank's stderr.log; SIGKILL mostly means too little memory (dmesg)"
SLOW = "raise --timeout if ranks only start slowly; "


def try_sizes(sizes: Sequence[int], device: Device, timeout_s: float) -> list[Diagnosis]:
    """Tries each number of ranks in turn; once one fails, skips the rest and keeps the logs."""
    diagnoses: list[Diagnosis] = []
    with temporary_folder("spbench-doctor-") as folder:
        launcher = LocalLauncher(folder / "launcher.log")
        with closing(launcher):
            for size in sizes:
                backend = "nccl" if device == "cuda" else "gloo"
                click.echo(f"{size} ranks exchange numbers over {backend}", err=True)
                logs = folder / f"{size}-ranks"
                diagnoses.append(check_exchanges(size, device, launcher, logs, timeout_s))
                if diagnoses[-1].status != "ok":
                    keep(folder)
                    break
    why = f"{diagnoses[-1].check} failed"
    return diagnoses + [skipped(f"{size} ranks", why) for size in sizes[len(diagnoses) :]]


def check_exchanges(
    ranks: int, device: Device, launcher: Launcher, folder: Path, timeout_s: float
) -> Diagnosis:
    """Starts two or more ranks once. Returns within little more than ``timeout_s``."""
    check = f"{ranks} ranks"
    job = Job(ranks=ranks, device=device, collectives=True, timeout_s=timeout_s)
    results, status, cause = read_results(job, folder, launcher.run(job, folder), Exchanged)
    if status != "ok":
        slow = SLOW if status in ("timeout", "hang") else ""
        remedy = CRASHED if status == "crash" else f"{slow}{FAILED[device]}"
        return fail(check, f"{status}: {cause}; logs in {folder / 'logs'}", remedy)
    if any(exchange.wrong for result in results for exchange in result.exchanges):
        return fail(check, _wrong(results), WRONG[device])
    return ok(check, _right(results))


def _wrong(results: list[Exchanged]) -> str:
    """Which exchanges were wrong, on which ranks, and how; the first three of many."""
    by_name: dict[str, dict[int, str]] = {}
    for result in results:
        for exchange in result.exchanges:
            if exchange.wrong:
                by_name.setdefault(exchange.name, {})[result.rank] = exchange.wrong
    errors = []
    for name, wrong in by_name.items():
        ranks = f"{'ranks' if len(wrong) > 1 else 'rank'} {', '.join(map(str, wrong))}"
        errors.append(f"{name} is wrong on {ranks}: {next(iter(wrong.values()))}")
    more = f"; and {len(errors) - 3} more" if len(errors) > 3 else ""
    return "; ".join(errors[:3]) + more


def _right(results: list[Exchanged]) -> str:
    """How many exchanges were right, and at what rate the slowest rank sent large tensors."""
    count = counted(len(results[0].exchanges), "exchange")
    rates = [
        f"{min(result.sent_bytes_per_s[op] for result in results) / 1e9:.3g} GB/s in {op}"
        for op in results[0].sent_bytes_per_s
    ]
    return f"all {count} right; each rank sends {', '.join(rates)}"
