"""Ranks that send each other known numbers: started, and what they found in one line."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from spbench.doctor.diagnosis import Diagnosis, fail, ok, skipped
from spbench.launch.failure_cause import status_and_cause
from spbench.launch.launcher import Deadlines, Launcher, LaunchResult
from spbench.launch.local import read_samples
from spbench.results.collective_result import Exchanged
from spbench.results.sample import Sample, sample_path
from spbench.text import counted
from spbench.workload.case import Device, Job

FAILED = {
    "cuda": "NCCL_DEBUG=INFO spbench doctor lets NCCL say what it tries, in these logs; "
    "NCCL_P2P_DISABLE=1 or NCCL_SHM_DISABLE=1 tell which way is broken",
    "cpu": "GLOO_SOCKET_IFNAME=lo keeps gloo on this machine, if its address or a firewall is "
    "to blame",
}
WRONG = {
    "cuda": "believe no result of this machine; if NCCL_P2P_DISABLE=1 cures it, the direct way "
    "between GPUs is broken (often PCIe's ACS, or an IOMMU)",
    "cpu": "believe no result of this machine; test its memory",
}
DIED = "read the end of its stderr.log there; SIGKILL is mostly a machine out of memory (dmesg)"
SLOW = "if ranks only start slowly here, give --timeout more seconds; "


def try_sizes(
    sizes: Sequence[int],
    device: Device,
    launcher: Launcher,
    folder: Path,
    timeout_s: float,
    say: Callable[[str], None],
) -> list[Diagnosis]:
    """Smaller numbers first: what fails with two ranks is not waited for with all."""
    found: list[Diagnosis] = []
    for size in sizes:
        if found and found[-1].status != "ok":
            found.append(skipped(f"{size} ranks", f"{found[-1].check} failed"))
            continue
        say(f"{size} ranks send each other numbers over {'nccl' if device == 'cuda' else 'gloo'}")
        place = folder / f"{size}-ranks"
        found.append(check_exchanges(size, device, launcher, place, timeout_s))
    return found


def check_exchanges(
    ranks: int, device: Device, launcher: Launcher, folder: Path, timeout_s: float
) -> Diagnosis:
    """One start of two or more ranks. Returns within little more than ``timeout_s``."""
    check = f"{ranks} ranks"
    job = Job(ranks=ranks, device=device, collectives=True, timeout_s=timeout_s)
    ended = launcher.run(job, folder)
    found = [one for rank in range(ranks) if (one := _read(sample_path(folder, rank)))]
    status, reason = _status(ended, found, job, folder)
    if status != "ok":
        hung = status in ("timeout", "hang")
        remedy = DIED if status == "crash" else f"{SLOW if hung else ''}{FAILED[device]}"
        return fail(check, f"{status}: {reason}; logs in {folder / 'logs'}", remedy)
    if any(exchange.wrong for one in found for exchange in one.exchanges):
        return fail(check, _wrong(found), WRONG[device])
    return ok(check, _right(found))


def _read(path: Path) -> Exchanged | None:
    """None where the rank left nothing, or last words."""
    with contextlib.suppress(OSError, ValueError):
        return Exchanged.model_validate_json(path.read_text(encoding="utf-8"))
    return None


def _status(ended: LaunchResult, found: list[Exchanged], job: Job, folder: Path) -> tuple[str, str]:
    deadlines = Deadlines(launch_s=job.timeout_s, hang_s=job.hang_s)
    done = [Sample(rank=one.rank, status="ok") for one in found]
    return status_and_cause(ended, [*done, *read_samples(job, folder)], job.ranks, deadlines)


def _named(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"


def _wrong(found: list[Exchanged]) -> str:
    """Which ranks got what wrong; of many the first three."""
    by_name: dict[str, list[tuple[int, str]]] = {}
    for one in found:
        for exchange in one.exchanges:
            if exchange.wrong:
                by_name.setdefault(exchange.name, []).append((one.rank, exchange.wrong))
    said = []
    for name, wrong in by_name.items():
        said.append(f"{name} is wrong on {_named([rank for rank, _ in wrong])}: {wrong[0][1]}")
    more = f"; and {len(said) - 3} more" if len(said) > 3 else ""
    return "; ".join(said[:3]) + more


def _right(found: list[Exchanged]) -> str:
    """How many exchanges were right, and the pace of the slowest rank in large ones."""
    count = counted(len(found[0].exchanges), "exchange")
    rates = [
        f"{op} {min(one.sent_bytes_per_s[op] for one in found) / 1e9:.3g} GB/s"
        for op in found[0].sent_bytes_per_s
    ]
    return f"all {count} right; a rank sends in {', in '.join(rates)}"
