"""Launches on several nodes: node 0 starts them and gathers results, the others take part.

Every node but node 0 runs its ranks of each launch that node 0 posts, and writes no results. Node 0
keeps the key-value store (``comm/kv_store.py``), which listens at the endpoint of all nodes:

    node/K     who node K is, with its versions        written by the first that claims number K
    roster     all nodes, or why they cannot start     node 0
    job/I      the I-th launch                         node 0
    here/I/K   node K has read job/I                   node K
    done/I/K   the result of node K's ranks, and their files
    stop/I     end the ranks, with this grace          node 0
    beat/K     a number that grows                     node K, from a thread of its own
    over       there are no more launches              node 0

The ranks of each launch meet at a store of their own. A node whose number does not grow is lost;
one that loses node 0 ends its ranks and itself.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, final

from spbench.comm.kv_store import KeyValueStore, KeyValueStoreError, until
from spbench.errors import UNFIT
from spbench.launch.cluster import Cluster, Member, Roster, roster_of
from spbench.launch.interfaces import interface_towards, is_loopback
from spbench.launch.launcher import LaunchResult
from spbench.launch.process import GRACE_S, family, send_signal, stop_grace_s
from spbench.launch.ranks import NodeRanks, run_ranks
from spbench.results.hand_over import write_atomically
from spbench.results.heartbeat import find_heartbeats, point_to_heartbeats
from spbench.workload.case import Job

POLL_S = 0.05
ROSTER_S = 3.0
"""For the other nodes to read why they cannot start: the store ends with this process."""
FILES = re.compile(r"rank\d+\.(json|pulse)|logs/others/attempt_0/\d+/stderr\.log", re.ASCII)
"""Names of the files that other nodes post."""
BEAT_S = 1.0
LOG_BYTES = 20_000
"""How much of the end of each rank's log goes to node 0."""
OTHERS_NOTICE_S = 3.0
"""For ranks to notice by themselves that those of another node have failed, and to say so."""


def coordinate(cluster: Cluster, folder: Path) -> None:
    """Runs a launch for each line of standard input, once all nodes have come."""
    store = KeyValueStore(cluster.head, cluster.port, keeps=True, wait_s=cluster.wait_s)
    roster = roster_of(cluster, _members(cluster, store))
    store.post("roster", roster.model_dump_json())
    write_atomically(folder / "roster.json", roster.model_dump_json())
    if roster.why_not:
        time.sleep(ROSTER_S)
        return
    for number, line in enumerate(sys.stdin):
        launch_folder = Path(line.rstrip("\n"))
        result = _Launch(cluster, store, roster.members, number, launch_folder).run()
        write_atomically(launch_folder / "exit.json", result.model_dump_json())
    store.post("over", "")
    time.sleep(10 * POLL_S)  # the other nodes read it: the store ends with this process


def _members(cluster: Cluster, store: KeyValueStore) -> list[Member]:
    """The nodes that come in time, this one among them."""
    members = {0: Member.of_this_machine(cluster)}

    def all_came() -> bool:
        for node in range(1, cluster.nodes):
            if (text := store.read(f"node/{node}")) is not None:
                members[node] = Member.model_validate_json(text)
        return len(members) == cluster.nodes

    until(all_came, cluster.wait_s)
    return list(members.values())


class _NodeLostError(Exception):
    """Says which node has not answered for too long."""


@final
class _Launch:
    """One launch on several nodes."""

    def __init__(
        self,
        cluster: Cluster,
        store: KeyValueStore,
        members: Sequence[Member],
        number: int,
        folder: Path,
    ) -> None:
        self._cluster, self._store, self._members = cluster, store, members
        self._number, self._folder = number, folder
        self._job = Job.read(folder)
        # [4, 2] on two nodes; a job for node 0 alone lists none.
        self._counts = self._job.nodes or [self._job.processes]
        self._beats: dict[int, tuple[str | None, float]] = {
            node: (None, time.monotonic()) for node in range(1, len(self._counts))
        }
        """The last number of each other node, and since when it has not changed."""
        self._failed_first: int | None = None
        self._failed_s = 0.0

    def run(self) -> LaunchResult:
        head = self._cluster.head
        # A store for each launch: what ranks of a killed launch wrote would confuse the next.
        ranks_store = KeyValueStore(head, 0, keeps=True)
        facts = {"job": self._job.model_dump_json(by_alias=True), "port": ranks_store.port}
        self._store.post(f"job/{self._number}", json.dumps(facts))
        ranks = NodeRanks(0, self._counts, (head, ranks_store.port), self._interface())
        try:
            self._wait_for("here")
            result = run_ranks(self._folder, ranks, self._stop_grace_s)
            if not result.ok:
                self._store.post(f"stop/{self._number}", f"{GRACE_S}")
            self._wait_for("done")
        except _NodeLostError as loss:
            return LaunchResult(ok=False, lost=True, why=str(loss))
        return self._gather(result)

    def _interface(self) -> str | None:
        """Node 0 reaches itself over loopback: what counts is how it reaches another node, and
        only nodes that all are one machine meet on loopback."""
        addresses = [member.address for member in self._members[1:]]
        away = [address for address in addresses if address and not is_loopback(address)]
        chosen = next(iter([*away, *addresses]), "")
        return interface_towards(chosen, self._cluster.port) if chosen else None

    def _wait_for(self, key: str) -> None:
        """Returns when all other nodes have posted the key. Raises _NodeLostError."""
        for node in self._beats:
            while self._read(key, node) is None:
                self._stop_grace_s()
                if node in self._lost():
                    name, silence_s = self._members[node].name, self._cluster.silence_s
                    raise _NodeLostError(f"{name} has not answered for {silence_s:g} s")
                time.sleep(POLL_S)

    def _read(self, key: str, node: int) -> str | None:
        return self._store.read(f"{key}/{self._number}/{node}")

    def _stop_grace_s(self) -> float | None:
        """A number if the parent wants the ranks to end, a node is lost, or the ranks of one
        failed a while ago; then the other nodes are told as well."""
        grace_s = stop_grace_s(self._folder)
        if grace_s is None and (self._lost() or self._others_have_failed()):
            grace_s = GRACE_S
        if grace_s is not None:
            self._store.post(f"stop/{self._number}", f"{grace_s}")
        return grace_s

    def _others_have_failed(self) -> bool:
        """Whether another node's ranks have, long enough ago for ours to notice by themselves."""
        for node in self._beats:
            text = self._read("done", node)
            if text is not None and not json.loads(text)["ended"]["ok"]:
                if self._failed_first is None:
                    self._failed_first, self._failed_s = node, time.monotonic()
                return time.monotonic() - self._failed_s > OTHERS_NOTICE_S
        return False

    def _lost(self) -> list[int]:
        """Nodes whose number has not grown for too long, and that have not posted a result."""
        now_s = time.monotonic()
        silent = []
        for node, (last_beat, since_s) in self._beats.items():
            beat = self._store.read(f"beat/{node}")
            # Clocks of two machines differ: what counts is whether the number grows, by this one's
            # clock.
            if beat != last_beat:
                self._beats[node] = (beat, now_s)
            elif now_s - since_s > self._cluster.silence_s:
                silent.append(node)
        return [node for node in silent if self._read("done", node) is None]

    def _gather(self, mine: LaunchResult) -> LaunchResult:
        """All nodes' files into this node's folder; the node's result that explains most."""
        results = {0: mine}
        for node in self._beats:
            done = json.loads(self._read("done", node) or "")
            for name, content in done["files"].items():
                heartbeats = find_heartbeats(self._folder) if name.endswith(".pulse") else None
                path = (heartbeats or self._folder) / name
                if FILES.fullmatch(name) is None:  # whoever reaches the store may post anything
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.encode("latin-1"))
            results[node] = LaunchResult.model_validate(done["ended"])
        failed = [node for node, result in results.items() if not result.ok]

        def explains_little(node: int) -> tuple[bool, bool, bool]:
            """Ranks that were ended by us explain nothing. A rank that left no file died, and the
            others heard its echo; on the node that failed first nobody heard one."""
            result = results[node]
            has_file = (self._folder / f"rank{result.rank}.json").exists()
            # The least of these explains the most: (False, False, False) is a rank that died by
            # itself on the node that failed first.
            return result.stopped, has_file, node != self._failed_first

        return results[min(failed, key=explains_little)] if failed else mine


def follow(cluster: Cluster, folder: Path) -> None:
    """Takes part in launches until node 0 posts that there are no more."""
    store = KeyValueStore(cluster.head, cluster.port, wait_s=cluster.wait_s)
    me = Member.of_this_machine(cluster)
    holder = Member.model_validate_json(store.claim(f"node/{me.node}", me.model_dump_json()))
    if holder.nonce != me.nonce:
        give_up(f"node {me.node} is {holder.host} already; each has a --node-rank of its own")
    _Heartbeat(cluster, store.another())
    while (text := store.read("roster")) is None:
        time.sleep(POLL_S)
    if why_not := Roster.model_validate_json(text).why_not:
        give_up(why_not)
    number = 0
    while store.read("over") is None:
        text = store.read(f"job/{number}")
        if text is None:
            time.sleep(POLL_S)
        else:
            _take_part(cluster, store, number, json.loads(text), folder / f"launch{number}")
            number += 1


def _take_part(
    cluster: Cluster, store: KeyValueStore, number: int, facts: dict[str, Any], folder: Path
) -> None:
    job = Job.model_validate_json(facts["job"])
    if cluster.node >= len(job.nodes):
        return
    job.write(folder)
    point_to_heartbeats(folder, folder)
    interface = interface_towards(cluster.head, cluster.port)
    local = NodeRanks(cluster.node, job.nodes, (cluster.head, facts["port"]), interface)
    store.post(f"here/{number}/{cluster.node}", "")
    result = run_ranks(folder, local, lambda: _follower_stop_grace_s(store, number))
    paths = [*folder.glob("rank*.json"), *folder.glob("rank*.pulse")]
    # What ranks wrote goes whole; of logs only the ends go, and only after a failure.
    files = {path.name: _text(path) for path in paths}
    if not result.ok:
        files |= _ends_of_logs(folder, local.first)
    done = {"ended": result.model_dump(mode="json"), "files": files}
    store.post(f"done/{number}/{cluster.node}", json.dumps(done))


def _follower_stop_grace_s(store: KeyValueStore, number: int) -> float | None:
    """A number when node 0 wants the ranks to end, or does not answer any more."""
    try:
        text = store.read(f"stop/{number}")
    except KeyValueStoreError:
        return GRACE_S
    return None if text is None else float(text)


def _ends_of_logs(folder: Path, first_rank: int) -> dict[str, str]:
    """What this node's ranks wrote last. Torch elastic numbers their folders by node."""
    paths = {int(path.parent.name): path for path in folder.glob("logs/*/*/*/stderr.log")}
    return {
        f"logs/others/attempt_0/{first_rank + i}/stderr.log": _text(path)[-LOG_BYTES:]
        for i, path in paths.items()
    }


def _text(path: Path) -> str:
    """A character for each byte: any file may be posted as JSON."""
    return path.read_bytes().decode("latin-1")


@final
class _Heartbeat:
    """Two threads: one shows node 0 that this node lives, the other sees whether it answers."""

    def __init__(self, cluster: Cluster, store: KeyValueStore) -> None:
        self._cluster, self._store = cluster, store
        self._answered_s = time.monotonic()
        for target in (self._beat, self._watch):
            threading.Thread(target=target, daemon=True).start()

    def _beat(self) -> None:
        with contextlib.suppress(KeyValueStoreError):
            for number in itertools.count():
                self._store.post(f"beat/{self._cluster.node}", str(number))
                self._store.read("over")  # waits for an answer, which post does not
                self._answered_s = time.monotonic()
                time.sleep(BEAT_S)

    def _watch(self) -> None:
        while time.monotonic() - self._answered_s < self._cluster.silence_s:
            time.sleep(BEAT_S)
        give_up(f"node 0 has not answered for {self._cluster.silence_s:g} s")


def give_up(why: str) -> NoReturn:
    """Ends this process, whatever it waits for, and its ranks. The last line of its log: why."""
    print(why, file=sys.stderr, flush=True)
    send_signal(family(os.getpid())[1:], signal.SIGKILL)
    os._exit(UNFIT)
