"""Counted bytes against the kernel's own count: it sends 1.000 to 1.02 times as many.

    python benchmarks/wire.py [-s dsp,ulysses,megatron-sp,rsa] [-g 2,4] [-w dsp-720m-small]

The ranks, processes on the CPU, live in a network namespace of their own, so that whatever its
loopback interface gains during a few steps was sent by them: tensors, headers, gloo's notices,
acknowledgements, the barriers before and after. Nothing is subtracted. Needs Linux, `unshare`
(util-linux) and `ip` (iproute2).

Exit code: 0; 3 where a count is WRONG or nothing was proved; 6 where namespaces are not permitted.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from spbench.errors import DONE, SOME_FAILED, UNFIT
from spbench.strategies.registry import BUILT_IN, load
from spbench.workload.catalogue import find
from spbench.workload.workload import Workload

if TYPE_CHECKING:
    from spbench.comm.group import Group

MOST = 1.02
OVERHEAD_BYTES = 100
"""The most that a packet exceeds what was counted of it: IP and TCP headers with their options, 52
bytes (72 in IPv6), and one of gloo's notices, 48, of which several share a packet if they can."""
SEGMENT_BYTES = 2**16
"""The most that a packet of loopback holds: what one that is sent again adds."""
WARM_UP = 2
ENOUGH_BYTES = 32 * 2**20
"""Bytes of the busiest rank beside which barriers, some KiB, are nothing."""
MAX_STEPS = 100
SEND_ONCE = {"tcp_sack": "0", "tcp_early_retrans": "0", "tcp_reordering": "127"}
"""Settings of this namespace alone. Loopback loses nothing, but packets that leave from several
cores overtake each other, and TCP takes the late ones for lost: docs/decisions/0018."""
SELF = Path("/proc/self")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What loopback has transmitted since it exists, and what TCP sent a second time."""

    sent_bytes: int
    packets: int
    resent_segments: int


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one rank counted in ``steps`` steps, and what the interface sent for all ranks."""

    declined: str = ""
    steps: int = 0
    counted_bytes: int = 0
    again_bytes: int = 0
    """What gloo sends once more of a package's reduce-scatters, which are all-reduces inside."""
    sent_bytes: int = 0
    packets: int = 0
    resent_segments: int = 0


def loopback(process: Path = SELF) -> Reading:
    """Counters of the namespace that ``process`` is in; /sys may show another one's."""
    devices = (process / "net" / "dev").read_text(encoding="ascii").splitlines()
    (line,) = (one for one in devices if one.strip().startswith("lo:"))
    sent = line.replace(":", " ").split()[9:]  # behind the name and eight figures of receiving
    protocols = (process / "net" / "snmp").read_text(encoding="ascii").splitlines()
    names, figures = (one.split() for one in protocols if one.startswith("Tcp:"))
    resent = dict(zip(names, figures, strict=True))["RetransSegs"]
    return Reading(sent_bytes=int(sent[0]), packets=int(sent[1]), resent_segments=int(resent))


def measure(
    strategy_name: str, work: Workload, group: Group, read: Callable[[], Reading] = loopback
) -> Measured:
    """Steps of one strategy on all ranks together; what this rank counted and read."""
    from spbench.worker.step import Step
    from spbench.workload.traffic import by_op

    strategy = load(strategy_name)
    declined = strategy.declines(work, group.size)
    if declined:
        return Measured(declined=declined)
    work = strategy.flattened(work)
    transports = group.transports
    step = Step(strategy.on(work, group.size), transports, group.device)
    inputs, cotangent = step.seeded_inputs()
    for _ in range(WARM_UP):
        transports.reset()
        with step.witness() as witness:  # which counts what a package sends by itself
            step(inputs, cotangent)
    past = sum(witness.sent.values())
    (busiest,) = group.largest([float(past + sum(transports.sent().values()))])
    steps = min(MAX_STEPS, math.ceil(ENOUGH_BYTES / max(1.0, busiest)))
    transports.reset()
    before = _read_in_silence(group, read)
    for _ in range(steps):
        step(inputs, cotangent)
    after = _read_in_silence(group, read)
    return Measured(
        steps=steps,
        again_bytes=round(steps * by_op(witness.sent)["reduce_scatter"]),
        counted_bytes=round(steps * past + sum(transports.sent().values())),
        sent_bytes=after.sent_bytes - before.sent_bytes,
        packets=after.packets - before.packets,
        resent_segments=after.resent_segments - before.resent_segments,
    )


def _read_in_silence(group: Group, read: Callable[[], Reading]) -> Reading:
    """While no rank sends anything: none goes on before all have read."""
    group.barrier()
    reading = read()
    group.barrier()
    return reading


def judged(counted_bytes: int, seen: Measured) -> tuple[str, str]:
    """passed, WRONG or unclear, and why. It is unclear where headers, notices and packets that
    were sent twice may explain all that is beyond the margin."""
    saw = f"the interface sent {seen.sent_bytes:,} bytes where {counted_bytes:,} were counted"
    if seen.sent_bytes < counted_bytes:
        return "WRONG", f"{saw}: some were not sent"
    if counted_bytes and seen.sent_bytes <= MOST * counted_bytes:
        return "passed", ""
    most = OVERHEAD_BYTES * seen.packets + SEGMENT_BYTES * seen.resent_segments
    overhead = f"headers and notices of {seen.packets:,} packets"
    if seen.resent_segments:
        overhead += f", of which {seen.resent_segments:,} were sent twice,"
    if seen.sent_bytes - counted_bytes > most:
        return "WRONG", f"{saw}; {overhead} are at most {most:,} of them"
    return "unclear", f"{saw}; {overhead} may be the rest: use a workload of longer messages"


def verdict(by_rank: Sequence[Measured]) -> tuple[str, str]:
    """The outcome of one strategy, and a line that says what was seen."""
    first = by_rank[0]
    if first.declined:
        return "declined", first.declined
    counted = sum(one.counted_bytes for one in by_rank)
    again = sum(one.again_bytes for one in by_rank)
    outcome, why = judged(counted + again, first)
    if again:
        why = f"{again / 2**20:.0f} MiB of reduce-scatters go twice inside gloo. {why}"
    times = f"{first.sent_bytes / counted:.4f}" if counted else "-"
    return outcome, f"{times} of {counted / 2**20:.0f} MiB, {first.steps} steps. {why}".rstrip()


def rank_main(
    ranks: int, port: int, strategies: Sequence[str], work: Workload, rank: int
) -> list[Measured]:
    """The process of one rank: every strategy in turn."""
    import torch

    from spbench.comm.group import ProcessGroup

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    group = ProcessGroup(torch.device("cpu"), 120.0)
    found = [measure(strategy, work, group) for strategy in strategies]
    group.close()
    return found


def measure_all(ranks: int, strategies: Sequence[str], work: Workload) -> set[str]:
    """Prints a line for each strategy; their outcomes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["spbench.launch.preload"])  # torch, once for all ranks
    with ProcessPoolExecutor(ranks, context) as processes:
        run = partial(rank_main, ranks, port, strategies, work)
        by_rank = list(processes.map(run, range(ranks)))
    verdicts = [verdict(each) for each in zip(*by_rank, strict=True)]
    for strategy, (outcome, why) in zip(strategies, verdicts, strict=True):
        print(f"{strategy} on {ranks} ranks, {work.name}: {outcome}: {why}")
    return {outcome for outcome, _ in verdicts}


def namespace_command() -> list[str]:
    """The words that start a command in a network namespace. Raises PermissionError."""
    refusals = []
    for words in (["unshare", "--net"], ["unshare", "--net", "--map-root-user"]):
        try:
            subprocess.run([*words, "true"], check=True, capture_output=True, text=True)
        except FileNotFoundError:
            raise PermissionError("unshare (util-linux) is not installed") from None
        except subprocess.CalledProcessError as error:
            refusals.append(error.stderr.strip())
        else:
            return words
    raise PermissionError(
        f"network namespaces are not permitted here ({refusals[-1]}); run it as root, in a "
        "container with --cap-add SYS_ADMIN, or where users may make namespaces (on Ubuntu: "
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0)"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-s", "--strategies", default=",".join(BUILT_IN))
    parser.add_argument("-g", "--gpus", default="2,4", help="numbers of ranks, two or more")
    parser.add_argument("-w", "--workload", default="dsp-720m-small")
    parser.add_argument("--outside", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    here = str((SELF / "ns" / "net").readlink())
    if asked.outside is None:
        try:
            command = namespace_command()
        except PermissionError as error:
            print(error, file=sys.stderr)
            return UNFIT
        words = [sys.executable, __file__, *sys.argv[1:], "--outside", here]
        return subprocess.run([*command, *words], check=False).returncode
    assert here != asked.outside, "the interface would count what others send, too"
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for name, value in SEND_ONCE.items():
        with contextlib.suppress(OSError):
            Path("/proc/sys/net/ipv4", name).write_text(value)
    work, strategies = find(asked.workload), asked.strategies.split(",")
    sizes = map(int, asked.gpus.split(","))
    outcomes = set[str]().union(*(measure_all(ranks, strategies, work) for ranks in sizes))
    return DONE if "passed" in outcomes <= {"passed", "declined"} else SOME_FAILED


if __name__ == "__main__":
    sys.exit(main())
