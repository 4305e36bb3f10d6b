"""scripts/netlab: nodes that resolve and reach each other, at a rate, and nothing left behind."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from helpers.golden import Golden

from spbench.errors import or_none

SCRIPTS = Path(__file__).parents[2] / "scripts"
NETLAB = [sys.executable, str(SCRIPTS / "netlab")]
LAB = f"test-{os.getpid()}"
LABS = {r"there are .*": "there are LABS", LAB: "LAB"}
WHEN = {r"[\d.]+ s: ": "N s: "}
"""For golden texts: other labs may be up on this machine; seconds since the nodes began."""
MARK = f"{os.getpid()}.25"
"""Seconds that a test's processes sleep, by which they are known."""

SERVE = """
import contextlib, socket
with socket.create_server(("", 9000)) as door:
    while True:
        talk, _ = door.accept()
        with contextlib.suppress(OSError):
            while talk.recv(1 << 16):
                pass
            talk.sendall(b"all")
"""
SEND = """
import socket, sys, time
talk = socket.create_connection((sys.argv[1], 9000), timeout=20)
begun = time.perf_counter()
talk.sendall(bytes(int(sys.argv[2])))
talk.shutdown(socket.SHUT_WR)
assert talk.recv(3) == b"all"
print(8 * int(sys.argv[2]) / (time.perf_counter() - begun))
"""
NAMES = """
import json, socket as s
(found,) = s.getaddrinfo("node1", None, type=s.SOCK_STREAM)
asked = [("10.77.0.1", 1), ("::ffff:10.77.0.1", 1, 0, 0)]
back = [s.getnameinfo(one, s.NI_NAMEREQD)[0] for one in asked]
print(json.dumps([s.gethostname(), s.getfqdn(), found[4][0], back]))
"""
REACH = "import socket; socket.create_connection(('node1', 9000), timeout=0.4)"
MEET = """
import os, socket, sys, time
node, nodes, head = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
assert [os.environ["NETLAB_" + name] for name in ("NODE", "NODES", "HEAD")] == sys.argv[1:]
assert socket.gethostbyname("node0") == head
if node == 0:
    with socket.create_server((head, 9000)) as door:
        talks = [door.accept()[0] for _ in range(1, nodes)]
        print(sorted(talk.makefile().read() for talk in talks))
    sys.exit(5)
while True:
    try:
        talk = socket.create_connection(("node0", 9000), timeout=5)
        break
    except OSError:
        time.sleep(0.02)
talk.sendall(socket.gethostname().encode())
print("sent {this}")
"""
TURNS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from turns import slice_ns
print(slice_ns())
"""
BEAT = """
import pathlib, socket, sys, time
node, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
if node == 0:
    with socket.create_server(("", 9000)) as door:
        talk, _ = door.accept()
    talk.settimeout(0.5)
    heard = True
    while heard:
        try:
            heard = talk.recv(1)
            (folder / "heard").touch()
        except TimeoutError:
            print("silence")
            (folder / "silence").touch()
            talk.settimeout(10)
    sys.exit("end")
while True:
    try:
        talk = socket.create_connection(("node0", 9000), timeout=5)
        break
    except OSError:
        time.sleep(0.02)
for _ in range(80):
    talk.sendall(b".")
    time.sleep(0.01)
"""


def netlab(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*NETLAB, *words],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def python(lab: str, node: int, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    return netlab("exec", lab, str(node), "--", sys.executable, "-c", program, *words)


def until(happens: Callable[[], bool], within_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + within_s
    while not happens():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def traces(lab: str) -> list[str]:
    """What exists of a lab: namespaces, files, and processes that carry the mark."""
    places = (Path("/run/netns"), Path("/etc/netns"))
    names = [path.name for place in places for path in place.glob(f"netlab-{lab}-*")]
    return names + [str(one.pid) for one in sleepers()]


def sleepers() -> list[psutil.Process]:
    asleep = (p for p in psutil.process_iter(["name"]) if p.info["name"] == "sleep")
    return [p for p in asleep if MARK in (or_none(p.cmdline) or ())]


@pytest.fixture(scope="module")
def fit() -> None:
    """Skips where the machine cannot have a lab, tested without netlab."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    space = f"netlab-probe-{os.getpid()}"
    tries = [
        f"ip netns add {space}",
        f"ip -n {space} link add one type veth peer name two",
        f"ip -n {space} link add three type bridge",
        f"tc -n {space} qdisc add dev one root tbf rate 1mbit burst 20000 latency 1ms",
        f"ip netns exec {space} unshare --uts true",
        f"ip netns delete {space}",
    ]
    try:
        for line in tries:
            subprocess.run(line.split(), check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True)
        pytest.skip(f"no network lab here: {error}")


@pytest.fixture(scope="module")
def lab(fit: None) -> Iterator[str]:
    """A lab of two nodes at 40 Mbit/s, with a server in node 1."""
    made = netlab("up", LAB, "--nodes", "2", "--rate", "40mbit")
    assert (made.returncode, made.stderr) == (0, "")
    server = subprocess.Popen([*NETLAB, "exec", LAB, "1", "--", sys.executable, "-c", SERVE])
    until(lambda: python(LAB, 0, REACH).returncode == 0)
    yield LAB
    assert netlab("down", LAB).returncode == 0
    assert server.wait(5) == -signal.SIGKILL
    assert not traces(LAB)


def default_signals() -> None:
    """Undoes ignored signals, as under nohup or in a shell's background."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def sleeping(script: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A run of two nodes, once every 'sleep' of the script has begun."""
    words = [*NETLAB, "run", *options, "--", "sh", "-c", script.replace("sleep", f"sleep {MARK}")]
    run = subprocess.Popen(
        words,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=default_signals,  # noqa: PLW1509 - this process has no other threads
    )
    try:
        until(lambda: len(sleepers()) == 2 * script.count("sleep"))
        yield run
    finally:
        if run.poll() is None:
            run.kill()
        netlab("down", f"run-{run.pid}")
        run.communicate(timeout=5)


WRONG = [
    ("run --nodes 0 -- true", "'0' is not a number of nodes; 1 to 250 work"),
    ("up demo --nodes two", "'two' is not a number of nodes; 1 to 250 work"),
    ("up demo --rate 200", "'200' is not a rate; 100kbit to 100gbit work, as 200mbit or 2.5gbit"),
    ("run --rate 0mbit -- true", "'0mbit' is not a rate"),
    ("rate demo 1 fast", "'fast' is not a rate"),
    ("up My_lab", "'My_lab' is not a name for a lab; up to 32 small letters, digits and '-' work"),
    ("cut demo first", "'first' is not a node; write 1 or node1"),
    ("run --cut 1 -- true", "'1' does not name a node and a time; NODE@SECONDS works, as 1@20"),
    ("run --cut 1@soon -- true", "'1@soon' does not name a node and a time"),
    ("run --cut 1@file: -- true", "'1@file:' does not name a node and a time"),
    ("run --mend 2@5 -- true", "there is no node 2; nodes are 0 to 1"),
    ("run --timeout 0 -- true", "'0' is not a duration; write seconds, as 90 or 0.5"),
    ("run --turn 8 -- true", "'8' is not a turn; 0.1 to 4 milliseconds work, as 0.25"),
    ("run --nodes 2", "'run' needs a command behind '--', as in: -- hostname"),
    ("exec demo 0 --", "'exec' needs a command behind '--'"),
    ("down demo -- true", "'down' does not take a command behind '--'"),
    ("mand demo 1", "'mand'"),
]


@pytest.mark.parametrize(("line", "said"), WRONG, ids=[line for line, _ in WRONG])
def test_a_mistake_is_named_with_what_works(line: str, said: str) -> None:
    done = netlab(*line.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_help_is_at_hand() -> None:
    """The script runs by itself, and each command has help."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [SCRIPTS / "netlab.sh", "--help"],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    for verb in ("run", "up", "exec", "cut", "mend", "rate", "down", "list"):
        assert f"\n    {verb} " in done.stdout
        assert netlab(verb, "--help").stdout.startswith(f"usage: netlab {verb} [")


def test_an_unfit_machine_is_told_what_is_missing(tmp_path: Path, golden: Golden) -> None:
    """netlab names missing iproute2, and missing root."""
    done = netlab("list", PATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (6, "")
    golden(done.stderr, "iproute2")
    for tool in ("ip", "tc", "unshare", "sh"):
        (tmp_path / tool).touch(mode=0o755)
    nobody = "import os, runpy; os.geteuid = lambda: 1; runpy.run_path({!r}, None, '__main__')"
    asked = subprocess.run(
        [sys.executable, "-c", nobody.format(NETLAB[1]), "list"],
        env=os.environ | {"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.returncode == 6
    golden(asked.stderr, "root")


def test_nodes_have_names_of_their_own(lab: str) -> None:
    """Nodes are called node0 and node1 and resolve each other; the host stays as it is."""
    host, hosts = os.uname().nodename, Path("/etc/hosts").read_text(encoding="utf-8")
    found = [json.loads(python(lab, node, NAMES).stdout) for node in (0, 1)]
    others = ["10.77.0.2", ["node0", "node0.mapped"]]
    assert found == [["node0", "node0", *others], ["node1", "node1", *others]]
    assert (os.uname().nodename, Path("/etc/hosts").read_text(encoding="utf-8")) == (host, hosts)


def test_exec_is_the_command(lab: str) -> None:
    """exec has the command's exit code, and sets the node's variables."""
    assert netlab("exec", lab, "node1", "--", "sh", "-c", "exit 7").returncode == 7
    assert netlab("exec", lab, "1", "--", "no-such-command").returncode == 127
    told = netlab(
        "exec", lab, "1", "--", "sh", "-c", "echo $NETLAB_NODE $NETLAB_NODES $NETLAB_HEAD"
    )
    assert told.stdout == "1 2 10.77.0.1\n"


def test_what_is_not_there_is_named(lab: str, golden: Golden) -> None:
    """Unknown labs and nodes are named with those that exist, and so is a name that is taken."""
    done = netlab("exec", "absent", "0", "--", "true")
    assert done.returncode == 2
    assert lab in done.stderr
    golden(done.stderr, "a lab", hide=LABS)
    done = netlab("cut", lab, "7")
    assert done.returncode == 2
    golden(done.stderr, "a node", hide=LABS)
    done = netlab("up", lab)
    assert done.returncode == 2
    golden(done.stderr, "what is there", hide=LABS)


@pytest.mark.serial
@pytest.mark.parametrize(
    ("rates", "gives_bits_per_s", "size"),
    [
        pytest.param(("40mbit", "40mbit"), 40e6, 1_000_000, marks=pytest.mark.long),
        (("200mbit", "40mbit"), 40e6, 1_000_000),
        (("40mbit", "200mbit"), 40e6, 1_000_000),
        pytest.param(("200mbit", "200mbit"), 200e6, 5_000_000, marks=pytest.mark.long),
        (("full", "full"), math.inf, 40_000_000),
    ],
)
def test_a_link_holds_its_rate(
    lab: str, rates: tuple[str, str], gives_bits_per_s: float, size: int
) -> None:
    """TCP gets nearly all of the slower link's rate, and never more."""
    for node, rate in enumerate(rates):
        assert netlab("rate", lab, str(node), rate).returncode == 0
    best = 0.0
    for _ in range(5):  # a busy machine may hold one up
        found = float(python(lab, 0, SEND, "node1", str(size)).stdout)
        assert found < 1.03 * gives_bits_per_s
        best = max(best, found)
        if best > 0.93 * min(gives_bits_per_s, 400e6):
            break
    assert best > 0.93 * min(gives_bits_per_s, 400e6)


def test_a_link_is_cut_and_mended(lab: str) -> None:
    assert python(lab, 0, REACH).returncode == 0
    assert netlab("cut", lab, "1").returncode == 0
    assert python(lab, 0, REACH).returncode == 1
    row = json.loads(netlab("list", "--json").stdout)
    assert [one["link"] for one in row if one["lab"] == lab] == ["up", "cut"]
    assert netlab("mend", lab, "1").returncode == 0
    until(lambda: python(lab, 0, REACH).returncode == 0)


def test_list_shows_nodes(lab: str) -> None:
    for node, rate in enumerate(("full", "1.5gbit")):
        assert netlab("rate", lab, str(node), rate).returncode == 0
    shown = netlab("list").stdout.splitlines()
    assert shown[0].split() == ["lab", "node", "address", "rate", "link", "processes"]
    mine = [line.split() for line in shown[1:] if line.startswith(lab)]
    assert mine == [
        [lab, "node0", "10.77.0.1", "full", "up", "0"],
        [lab, "node1", "10.77.0.2", "1500mbit", "up", "1"],
    ]


def test_a_run_is_one_command_in_every_node(fit: None, tmp_path: Path, golden: Golden) -> None:
    """Placeholders are filled in, output is marked and kept, and node 0 gives the exit code."""
    words = ["--nodes", "3", "--log", str(tmp_path / "logs"), "--", sys.executable, "-c", MEET]
    done = netlab("run", *words, "{node}", "{nodes}", "{head}")
    assert (done.returncode, done.stdout) == (5, "['node1', 'node2']\n")
    golden("\n".join(sorted(done.stderr.splitlines())))
    kept = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    assert kept == dict.fromkeys(["node1.log", "node2.log"], "sent {this}\n")


def is_beat(process: psutil.Process) -> bool:
    """Whether it goes before all that is not urgent, and is of netlab."""
    return os.sched_getscheduler(process.pid) == os.SCHED_FIFO and "turns.py" in str(
        process.cmdline()
    )


def test_nodes_take_short_turns_while_a_beat_goes(fit: None) -> None:
    """What a node starts has the short slice, and each core a process that goes before all."""
    words = [sys.executable, "-c", TURNS, str(SCRIPTS / "netlab")]
    with subprocess.Popen(
        [*NETLAB, "run", "--turn", "0.5", "--", "sh", "-c", '"$@"; read _', "sh", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        said = run.stdout.readline()
        beats = [each for each in psutil.Process(run.pid).children() if is_beat(each)]
        _, err = run.communicate("\n", timeout=20)
    if "Linux 6.12" in err:
        pytest.skip("this kernel has no slices of a process's own")
    assert int(said) == 100_000
    assert len(beats) == len(os.sched_getaffinity(0))
    assert {each.is_running() for each in beats} == {False}


def test_how_the_others_ended_is_said(fit: None, golden: Golden) -> None:
    done = netlab("run", "--", "sh", "-c", "test {node} = 0 || kill -9 $$")
    assert done.returncode == 0
    golden(done.stderr)


def test_links_go_down_and_up_when_files_appear(fit: None, tmp_path: Path, golden: Golden) -> None:
    """While the link is down the other node receives nothing; then it receives all."""
    when = ("--cut", f"1@file:{tmp_path}/**/he?rd", "--mend", f"1@file:{tmp_path}/silence")
    done = netlab("run", *when, "--", sys.executable, "-c", BEAT, "{node}", str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "silence\n")
    golden(done.stderr, hide=WHEN)


def test_links_go_down_and_up_at_a_time(fit: None, golden: Golden) -> None:
    done = netlab("run", "--mend", "0@0.4", "--cut", "0@0.2", "--", "sleep", "0.6")
    assert done.returncode == 0
    golden(done.stderr, hide=WHEN)
    cut_s, mended_s = (float(seconds) for seconds in re.findall(r"([\d.]+) s: ", done.stderr))
    assert cut_s >= 0.2
    assert mended_s >= 0.4


def test_a_file_that_is_there_already_does_not_appear(fit: None, tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    done = netlab("run", "--cut", f"0@file:{tmp_path}/*", "--", "sleep", "0.2")
    assert (done.returncode, done.stderr) == (0, "")


def test_time_that_is_up_ends_all(fit: None, golden: Golden) -> None:
    done = netlab("run", "--timeout", "0.3", "--", "sleep", MARK)
    assert done.returncode == 124
    golden(done.stderr)
    assert not sleepers()


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_leaves_nothing_behind(fit: None, number: str, code: int) -> None:
    """Even a process that has left its session is ended."""
    with sleeping("setsid sleep & sleep") as run:
        run.send_signal(signal.Signals[number])
        assert run.wait(5) == code
        assert not traces(f"run-{run.pid}")


def test_a_second_signal_does_not_wait(fit: None) -> None:
    """A command may ignore the first signal; the second ends it."""
    with sleeping("trap '' TERM; sleep") as run:
        run.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            run.wait(0.5)
        run.terminate()
        assert run.wait(5) == 143
        assert not traces(f"run-{run.pid}")


def test_a_killed_script_is_tidied_up_by_down(fit: None) -> None:
    with sleeping("sleep") as run:
        run.kill()
        run.wait()
        lab = f"run-{run.pid}"
        assert len(traces(lab)) > 4
        rows = json.loads(netlab("list", "--json").stdout)
        assert all(one["processes"] >= 1 for one in rows if one["lab"] == lab)
        assert netlab("down", lab).returncode == 0
        assert not traces(lab)


def test_a_signal_to_up_leaves_nothing_behind(fit: None) -> None:
    """The signal comes while nodes are being made."""
    name = f"halted-{os.getpid()}"
    words = [*NETLAB, "up", name, "--nodes", "25", "--rate", "1gbit"]
    making = subprocess.Popen(words, preexec_fn=default_signals)  # noqa: PLW1509 - as above
    until(lambda: len(traces(name)) > 2)
    making.terminate()
    assert making.wait(10) == 143
    assert not traces(name)


def test_half_a_lab_is_listed_and_taken_down(fit: None) -> None:
    name = f"half-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", f"netlab-{name}-node0"], check=True)
    lines = netlab("list").stdout.splitlines()
    assert [name, "node0", "10.77.0.1", "-", "-", "0"] in [line.split() for line in lines]
    assert netlab("down", name).returncode == 0
    assert not traces(name)


def test_a_machine_without_tbf_is_left_as_it_was(fit: None, tmp_path: Path, golden: Golden) -> None:
    """The kernel's message is shown, and the half-made lab is removed."""
    tc = tmp_path / "tc"
    tc.write_text("#!/bin/sh\necho 'qdisc kind is unknown' >&2\nexit 2\n")
    tc.chmod(0o755)
    name = f"poor-{os.getpid()}"
    made = netlab("up", name, "--rate", "1mbit", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert made.returncode == 6
    golden(made.stderr, hide={name: "LAB"})
    assert not traces(name)
