"""Counted bytes against the kernel's, a fake one and the real one: what is miscounted is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.gate_on_threads import prove, why_wrong
from test_measure import ThreadGroup

from spbench.cli.wire import exit_code, refuse_wire, verify_wire
from spbench.comm.threaded import ThreadRendezvous, ThreadTransport, run_rank_threads
from spbench.comm.transport import Transport
from spbench.errors import SOME_FAILED, UNFIT, USAGE, Failure
from spbench.launch import namespace
from spbench.launch.launcher import Launcher, LaunchResult
from spbench.launch.local import LocalLauncher
from spbench.launch.wire_checks import WireVerdict, judged, run_wire_checks
from spbench.report.wire_table import show_wire
from spbench.results.sample import Sample, sample_path
from spbench.results.wire_result import WIRED, Wired
from spbench.strategies.registry import BUILT_IN, load
from spbench.sweep.verification import RanksFailedError, on_each
from spbench.worker import wire_counts
from spbench.worker.wire_counts import Reading, loopback, wire_all
from spbench.workload.case import GateCheck, Job
from spbench.workload.catalogue import find

ROOT = Path(__file__).parents[2]
MIB = 2**20
NAMESPACE = "net:[1]"
TABLE = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop
  eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16
    lo:4603883283 157 0    0    0     0          0         0 777888 999    0    0    0 0 0 0
"""
PROTOCOLS = """\
Icmp: InMsgs InErrors
Icmp: 1 2
Tcp: RtoMin OutSegs RetransSegs InErrs
Tcp: 200 2061 17 3
"""
WORKLOAD = """\
version: 1
name: long-messages
source: "a test"
axes: {time: 8, space: 64}
hidden: 384
heads: 4
depth: 1
block: [{attention: space}, {attention: time}, {mlp: 4}]
batch: 1
dtype: float32
mode: train
"""

MISSING = namespace.why_not()
needs_namespace = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")


class FakeKernel:
    """Sees what ranks that are threads hand over, below our own counting, and adds headers."""

    def __init__(self, header_share: float = 0.001) -> None:
        self.header_share, self.sent = header_share, 0.0
        self.lock = threading.Lock()

    def watch(self, transport: Transport) -> None:
        n, rank = transport.size, transport.rank
        sizes: dict[str, Callable[..., float]] = {
            "_all_to_all": lambda _, sent, __: sum(
                part.nbytes for to, parts in enumerate(sent) if to != rank for part in parts
            ),
            "_all_gather": lambda _, sent, __: (n - 1) * sent.nbytes,
            "_reduce_scatter": lambda _, sent: sum(
                part.nbytes for to, part in enumerate(sent) if to != rank
            ),
            "_all_reduce": lambda x: 2 * (n - 1) / n * x.nbytes,
            "_shift": lambda _, sent: sent.nbytes,
        }
        for name, size in sizes.items():
            setattr(transport, name, self._seen(getattr(transport, name), size))

    def _seen(self, move: Callable[..., Any], size: Callable[..., float]) -> Callable[..., Any]:
        def moved(*what: Any) -> Any:
            with self.lock:
                self.sent += size(*what)
            return move(*what)

        return moved

    def read(self) -> Reading:
        sent = round(self.sent * (1 + self.header_share))
        return Reading(
            sent_bytes=sent, packets=sent // 2**16, resent_segments=0, namespace=NAMESPACE
        )


class ThreadLauncher:
    """Ranks that are threads of this process, under a fake kernel."""

    def __init__(self, kernel: FakeKernel) -> None:
        self.kernel, self.jobs = kernel, list[Job]()

    def run(self, job: Job, folder: Path) -> LaunchResult:
        self.jobs.append(job)
        meetings = [ThreadRendezvous(job.ranks, 10.0) for _ in range(3)]
        folder.mkdir(parents=True)

        def rank_main(transport: ThreadTransport) -> None:
            group = ThreadGroup(transport.rank, meetings)
            self.kernel.watch(group.transports.strategy)
            self.kernel.watch(group.transports.gradients)
            found = wire_all(job.checks, group, counters=self.kernel.read)
            sample_path(folder, transport.rank).write_bytes(WIRED.dump_json(found))

        run_rank_threads(job.ranks, rank_main)
        return LaunchResult(ok=True)

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_counts, "MAX_STEPS", 3)


def verdicts(folder: Path, strategies: Sequence[str], ranks: int, name: str) -> list[WireVerdict]:
    checks = [GateCheck(workload=find(name, "verify"), strategy=one) for one in strategies]
    launcher = ThreadLauncher(FakeKernel())
    found = run_wire_checks(checks, ranks, launcher, folder / "ranks", 60.0)
    assert [(job.wire, job.ranks) for job in launcher.jobs] == [(True, ranks)]
    return found


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_is_counted_right_passes(tmp_path: Path, ranks: int) -> None:
    """Each strategy, uneven shards included: all ranks' bytes, over all steps."""
    found = verdicts(tmp_path, list(BUILT_IN), ranks, "axes-2d-uneven")
    for one in found:
        assert (one.outcome, one.reason, one.steps) == ("passed", "", 3), one
        assert one.wire_over_counted == pytest.approx(1.001, abs=1e-5)
        assert one.counted_bytes
    assert len({one.counted_bytes for one in found}) == len(BUILT_IN)


@pytest.mark.parametrize("strategy", list(BUILT_IN))
@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_what_is_miscounted_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, factor: float
) -> None:
    """A transport that counts a tenth less than it sends, and one that counts a tenth more."""
    right = Transport._count

    def wrong(self: Transport, op: Any, sent: Any) -> None:
        right(self, op, round(sent * factor))

    monkeypatch.setattr(Transport, "_count", wrong)
    (one,) = verdicts(tmp_path, [strategy], 2, "axes-2d")
    assert one.outcome == "WRONG"
    assert one.wire_over_counted == pytest.approx(1.001 / factor, rel=1e-3)


def test_an_operation_that_is_not_counted_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of several is enough."""
    right = Transport._count

    def wrong(self: Transport, op: Any, sent: Any) -> None:
        if op != "p2p":
            right(self, op, sent)

    monkeypatch.setattr(Transport, "_count", wrong)
    ulysses, rsa = verdicts(tmp_path, ["ulysses", "rsa"], 2, "axes-2d")
    assert (ulysses.outcome, rsa.outcome) == ("passed", "WRONG")


def test_what_declines_says_so(tmp_path: Path) -> None:
    """As verify does, beside others that run."""
    declined, passed = verdicts(tmp_path, ["ulysses", "rsa"], 6, "axes-2d-uneven")
    assert (declined.outcome, passed.outcome) == ("declined", "passed")
    assert "heads" in declined.reason
    assert (declined.counted_bytes, declined.wire_over_counted) == (None, None)


@pytest.mark.parametrize(
    ("counted", "seen", "packets", "resent", "outcome", "said"),
    [
        (1000 * MIB, 1000 * MIB, 20_000, 0, "passed", ""),
        (1000 * MIB, 1020 * MIB, 20_000, 0, "passed", ""),
        (1000 * MIB, 1000 * MIB - 1, 20_000, 9, "WRONG", "some were not sent"),
        (1000 * MIB, 1021 * MIB, 20_000, 0, "WRONG", "20,000 packets are at most 2,000,000"),
        (1000 * MIB, 1021 * MIB, 20_000, 304, "WRONG", "of which 304 were sent twice, are at most"),
        (1000 * MIB, 1021 * MIB, 20_000, 320, "unclear", "of which 320 were sent twice, may be"),
        (1_000_000, 1_030_000, 300, 0, "unclear", "notices of 300 packets may be the rest"),
        (1_000_000, 1_030_001, 300, 0, "WRONG", "300 packets are at most 30,000"),
        (0, 900, 9, 0, "unclear", "where 0 were counted"),
        (0, 901, 9, 0, "WRONG", "where 0 were counted"),
        (0, 0, 0, 0, "unclear", "where 0 were counted"),
    ],
)
def test_margins(
    counted: int, seen: int, packets: int, resent: int, outcome: str, said: str
) -> None:
    """From 1.000 to 1.02; what short messages or TCP may explain is no fault, nor proof."""
    found, reason = judged(counted, seen, packets=packets, resent=resent)
    assert found == outcome
    assert said in reason
    assert bool(reason) == (outcome != "passed")


def test_as_many_steps_as_it_takes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Until the busiest rank has sent enough, within bounds; one step if that is enough."""
    sent = verdicts(tmp_path, ["dsp"], 2, "axes-2d")[0].counted_bytes
    assert sent is not None
    each = sent / 2 / 3
    for enough, steps in ((1, 1), (1.5 * each, 2), (1e12, 3)):
        monkeypatch.setattr(wire_counts, "ENOUGH_BYTES", enough)
        (found,) = verdicts(tmp_path / str(steps), ["dsp"], 2, "axes-2d")
        assert found.steps == steps


def test_the_counters_of_loopback(tmp_path: Path) -> None:
    """What it sent, not what it received, nor what another interface did."""
    for name in ("net", "ns"):
        (tmp_path / name).mkdir()
    (tmp_path / "ns" / "net").symlink_to(NAMESPACE)
    (tmp_path / "net" / "snmp").write_text(PROTOCOLS)
    (tmp_path / "net" / "dev").write_text(TABLE)
    assert loopback(tmp_path) == Reading(
        sent_bytes=777888, packets=999, resent_segments=17, namespace=NAMESPACE
    )
    (tmp_path / "net" / "dev").write_text("\n".join(TABLE.splitlines()[:3]))
    with pytest.raises(ValueError, match="net/dev has no line 'lo:'"):
        loopback(tmp_path)


class WritesAs(ThreadLauncher):
    """Ranks that were in the namespace of this process, or that wrote last words."""

    def __init__(self, text: str) -> None:
        super().__init__(FakeKernel())
        self.text = text

    def run(self, job: Job, folder: Path) -> LaunchResult:
        folder.mkdir(parents=True)
        for rank in range(job.ranks):
            sample_path(folder, rank).write_text(self.text)
        return LaunchResult(ok=False, rank=0, exitcode=1)


def test_ranks_that_share_their_network_prove_nothing(tmp_path: Path) -> None:
    """Their interface counts what others send, too."""
    facts = {"wire_bytes": 1, "wire_packets": 1, "resent_segments": 0, "counted_bytes": 1}
    found = Wired(**facts, namespace=namespace.current())
    check = GateCheck(workload=find("axes-2d", "verify"), strategy="dsp")
    launcher = WritesAs(WIRED.dump_json([found]).decode())
    with pytest.raises(RanksFailedError, match="is that of all others here"):
        run_wire_checks([check], 2, launcher, tmp_path / "a", 1.0)
    launcher = WritesAs(Sample(rank=0, status="crash", reason="it broke").model_dump_json())
    with pytest.raises(RanksFailedError, match="rank 0: it broke; logs are in"):
        run_wire_checks([check], 2, launcher, tmp_path / "b", 1.0)


def test_a_wire_job_comes_back(tmp_path: Path) -> None:
    """Through job.json; other jobs do not state that they are none."""
    check = GateCheck(workload=find("axes-2d", "verify"), strategy="dsp")
    for is_wire in (True, False):
        sent = Job(ranks=2, device="cpu", checks=[check], wire=is_wire)
        sent.write(tmp_path)
        assert Job.read(tmp_path) == sent
        assert ("wire" in json.loads((tmp_path / "job.json").read_text())) == is_wire


def verdict(outcome: Any, reason: str = "", **more: Any) -> WireVerdict:
    known = {"strategy": "dsp", "workload": "w", "dtype": "float32", "ranks": 2}
    return WireVerdict(outcome=outcome, reason=reason, **known | more)


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    """MiB, the ratio with four digits, blanks where nothing was run, and the reasons below."""
    figures = {"counted_bytes": 64 * MIB, "wire_bytes": 65 * MIB, "wire_over_counted": 65 / 64}
    show_wire([verdict("passed", **figures), verdict("declined", "no second axis")])
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert ["dsp", "w", "2", "64", "65", "1.0156", "passed"] in lines
    assert ["dsp", "w", "2", "-", "-", "-", "declined"] in lines
    assert "dsp on 2 ranks, w: declined: no second axis\n" in out


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        (["passed"], 0),
        (["passed", "declined"], 0),
        (["declined"], SOME_FAILED),
        (["passed", "unclear"], SOME_FAILED),
        (["passed", "WRONG"], SOME_FAILED),
        (["WRONG"], SOME_FAILED),
        (["unclear", "declined"], SOME_FAILED),
    ],
)
def test_exit_codes(outcomes: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Only what was seen counts as proved."""
    assert exit_code([verdict(outcome) for outcome in outcomes]) == code
    nothing = not {"passed", "WRONG"} & set(outcomes)
    assert ("nothing was proved" in capsys.readouterr().err) == nothing


def test_where_there_is_no_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU, a launch by others, one rank: exit 2. No namespace: exit 6. All say what would do."""
    shapes = [find("axes-2d", "verify")]

    def failure(call: Callable[[], object]) -> tuple[int, str]:
        with pytest.raises(Failure) as caught:
            call()
        return caught.value.code, str(caught.value)

    code, said = failure(lambda: refuse_wire("cuda"))
    assert (code, "use cpu" in said) == (USAGE, True)
    refuse_wire("auto")
    code, said = failure(lambda: verify_wire(["dsp"], shapes, [2, 1], 1.0, as_json=False))
    assert (code, "needs two or more" in said) == (USAGE, True)
    monkeypatch.setattr(namespace, "why_not", lambda: "there is none; another machine would do")
    code, said = failure(lambda: verify_wire(["dsp"], shapes, [2], 1.0, as_json=False))
    assert (code, said) == (UNFIT, "--wire: there is none; another machine would do")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, said = failure(lambda: refuse_wire("auto"))
    assert (code, "start it by itself" in said) == (USAGE, True)


@pytest.mark.parametrize(
    ("number", "said"),
    [(1, "--cap-add SYS_ADMIN"), (28, "user.max_net_namespaces"), (38, "a Linux kernel with")],
)
def test_a_refusal_says_what_would_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int, said: str
) -> None:
    """Not permitted, too many, not there: the kernel's word and a way out, on stdout."""

    def refuse(flags: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(namespace, "_unshare", refuse)
    assert namespace.main() == 1
    out = capsys.readouterr().out
    assert f"({os.strerror(number)})" in out
    assert said in out


def test_whether_there_can_be_a_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the child that tried it says, and what its end says if it says nothing."""
    ended = {"returncode": 1, "stdout": "the kernel refuses\n"}

    def tried(*_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], **ended)

    monkeypatch.setattr(subprocess, "run", tried)
    assert namespace.why_not() == "the kernel refuses"
    ended |= {"returncode": -31, "stdout": ""}
    assert "ended with exit code -31" in str(namespace.why_not())
    ended |= {"returncode": 0}
    assert namespace.why_not() is None
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "this is darwin" in str(namespace.why_not())


REFUSED = """
import os

def refuse(flags):
    raise PermissionError(1, "not here")

os.unshare = refuse
"""
INSIDE = """
import ctypes, encodings.idna, os, socket, sys
from pathlib import Path
from spbench.launch import namespace

def sent():
    (line,) = (one for one in table() if one.strip().startswith("lo:"))
    return int(line.split()[9])

def table():
    return Path("/proc/self/net/dev").read_text().splitlines()[2:]

def entered():
    try:
        namespace.enter()
    except OSError as error:
        return error

if sys.argv[1] == "nobody":
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # else /proc/self stays root's
    if error := entered():
        sys.exit(namespace.reason(error))
assert namespace.current() != sys.argv[2]
assert sent() < 1000
with socket.create_server(("127.0.0.1", 0)) as server:
    with socket.create_connection(server.getsockname()) as out, server.accept()[0] as into:
        out.sendall(bytes(10_000))
        assert into.recv(10_000)
assert sent() > 10_000
kept = {name: Path("/proc/sys/net/ipv4", name).read_text().strip() for name in namespace.SEND_ONCE}
assert kept == namespace.SEND_ONCE or not os.access("/proc/sys/net/ipv4/tcp_sack", os.W_OK), kept
print(os.getuid(), [line.split(":")[0].strip() for line in table()])
"""


def inside(into: Sequence[str], who: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *into, "-c", INSIDE, who, namespace.current()],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=60,
    )


@needs_namespace
def test_a_namespace_of_its_own() -> None:
    """Loopback is up and counts; the outer interfaces are not there; the user is who it was."""
    done = inside(namespace.INTO, "itself")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{os.getuid()} [")
    assert "'lo'" in done.stdout
    assert "eth" not in done.stdout


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_a_namespace_of_a_user() -> None:
    """Without any privilege, where the kernel lets users make namespaces."""
    done = inside((), "nobody")
    if done.returncode != 0 and "refuses a network namespace" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("65534 [")


@pytest.mark.parametrize("strategy", ["smuggles", "claims"])
def test_the_gate_is_deceived(monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    """What the next test finds, no counter of ours does: results and bytes are as they should."""
    monkeypatch.syspath_prepend(str(ROOT / "tests/plugins"))
    work = find("axes-2d", "verify")
    assert why_wrong(prove(work, load(strategy), 2)) == ""


@needs_namespace
def test_real_ranks_on_a_real_wire(tmp_path: Path) -> None:
    """Two honest strategies pass; one that sends uncounted bytes, and one that counts unsent ones,
    are WRONG."""
    (tmp_path / "long.yaml").write_text(WORKLOAD)
    words = ["--wire", "-w", "long.yaml", "-s", "dsp,ulysses,smuggles,claims", "-g", "2", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "spbench", "verify", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "tests/plugins"), str(ROOT)])},
    )
    assert done.returncode == SOME_FAILED, done.stderr
    assert done.stderr == "4 checks on 2 ranks\n"
    rows = json.loads(done.stdout)
    outcomes = [(row["strategy"], row["outcome"]) for row in rows]
    assert outcomes == [
        ("dsp", "passed"),
        ("ulysses", "passed"),
        ("smuggles", "WRONG"),
        ("claims", "WRONG"),
    ], rows
    dsp, ulysses, smuggles, claims = (row["wire_over_counted"] for row in rows)
    assert 1.0 <= min(dsp, ulysses) <= max(dsp, ulysses) <= 1.02
    assert claims < 0.98
    assert smuggles > 1.05
    assert rows[0]["counted_bytes"] >= 64 * MIB


@pytest.mark.parametrize("error", [RanksFailedError("no"), KeyboardInterrupt()])
def test_logs_are_kept_where_they_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Of ranks that failed; not of what was interrupted."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def run(size: int, launcher: Launcher, place: Path) -> list[int]:
        raise error

    with pytest.raises((Failure, KeyboardInterrupt)):
        on_each([2], [], lambda log: ThreadLauncher(FakeKernel()), run)
    assert len(list(tmp_path.iterdir())) == isinstance(error, RanksFailedError)


def test_a_launcher_that_gets_no_namespace_starts_no_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends, and what the kernel said is in its log."""
    (tmp_path / "sitecustomize.py").write_text(REFUSED)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    log = tmp_path / "launcher.log"
    launcher = LocalLauncher(log, namespace.ENVIRONMENT, into=namespace.INTO)
    check = GateCheck(workload=find("axes-2d", "verify"), strategy="dsp")
    with pytest.raises(RanksFailedError, match="left nothing"):
        run_wire_checks([check], 2, launcher, tmp_path / "ranks", 30.0)
    launcher.close()
    assert "refuses a network namespace (not here)" in log.read_text()
