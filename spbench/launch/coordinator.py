"""Node 0 of several: keeps the key-value store, starts launches on all nodes, gathers results.

The store (``comm/kv_store.py``) listens at the endpoint that every node was given:

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

import json
import sys
import time
from pathlib import Path
from typing import final

from spbench.comm.kv_store import KeyValueStore
from spbench.launch.cluster import Cluster, Member, Roster, roster_of
from spbench.launch.interfaces import interface_towards, is_loopback
from spbench.launch.launcher import LaunchResult
from spbench.launch.process import GRACE_S, stop_grace_s
from spbench.launch.ranks import NodeRanks, run_ranks
from spbench.results.heartbeat import find_heartbeats
from spbench.results.sample import write_atomically
from spbench.workload.case import Job

POLL_S = 0.05
ROSTER_S = 3.0
"""For the other nodes to read why they cannot start: the store ends with this process."""
OTHERS_NOTICE_S = 3.0
"""For ranks to notice by themselves that those of another node have failed, and to say so."""


@final
class Coordinator:
    """The launcher process of node 0."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        self._store = KeyValueStore(cluster.head, cluster.port, keeps=True, wait_s=cluster.wait_s)
        self._roster = Roster()
        self._interface: str | None = None
        self._beats: dict[int, tuple[str | None, float]] = {}
        """The last number of each other node in this launch, and since when it has not changed."""
        self._failed_first: int | None = None
        self._failed_s = 0.0

    def run(self) -> None:
        self._roster = self._meet()
        self._store.post("roster", self._roster.model_dump_json())
        write_atomically(self._folder / "roster.json", self._roster.model_dump_json())
        if self._roster.why_not:
            time.sleep(ROSTER_S)
            return
        self._interface = self._interface_to_others()
        for number, line in enumerate(sys.stdin):
            folder = Path(line.rstrip("\n"))
            result = self._launch(number, folder)
            write_atomically(folder / "exit.json", result.model_dump_json())
        self._store.post("over", "")
        time.sleep(10 * POLL_S)

    def _meet(self) -> Roster:
        members = {0: Member.of_this_machine(self._cluster)}
        deadline = time.monotonic() + self._cluster.wait_s
        while len(members) < self._cluster.nodes and time.monotonic() < deadline:
            for node in range(1, self._cluster.nodes):
                text = self._store.read(f"node/{node}")
                if text is not None:
                    members[node] = Member.model_validate_json(text)
            time.sleep(POLL_S)
        return roster_of(self._cluster, list(members.values()))

    def _interface_to_others(self) -> str | None:
        """Node 0 reaches itself over loopback: what counts is how it reaches another node."""
        addresses = [member.address for member in self._roster.members[1:]]
        away = [address for address in addresses if address and not is_loopback(address)]
        return interface_towards(away[0], self._cluster.port) if away else None

    def _launch(self, number: int, folder: Path) -> LaunchResult:
        job = Job.read(folder)
        counts = job.nodes or [job.processes]
        others = list(range(1, len(counts)))
        store = KeyValueStore(self._cluster.head, 0, keeps=True)
        facts = {"job": job.model_dump_json(by_alias=True), "port": store.port}
        self._store.post(f"job/{number}", json.dumps(facts))
        self._beats = {node: (None, time.monotonic()) for node in others}
        self._failed_first = None
        lost = self._wait_for(f"here/{number}", others, number, folder)
        if lost is not None:
            return lost
        local = NodeRanks.of_node(0, counts, (self._cluster.head, store.port), self._interface)
        mine = run_ranks(folder, local, lambda: self._stop_grace_s(number, folder))
        if not mine.ok:
            self._store.post(f"stop/{number}", f"{GRACE_S}")
        return self._gather(number, mine, others, folder)

    def _wait_for(
        self, key: str, others: list[int], number: int, folder: Path
    ) -> LaunchResult | None:
        """None when each of these nodes has posted the key; the result if one is lost before."""
        for node in others:
            while self._store.read(f"{key}/{node}") is None:
                self._stop_grace_s(number, folder)
                if node in self._lost(number):
                    name, silence_s = self._roster.members[node].name, self._cluster.silence_s
                    why = f"{name} has not answered for {silence_s:g} s"
                    return LaunchResult(ok=False, lost=True, why=why)
                time.sleep(POLL_S)
        return None

    def _stop_grace_s(self, number: int, folder: Path) -> float | None:
        """A number if the parent wants the ranks to end, a node is lost, or the ranks of one
        failed a while ago; then the other nodes are told as well."""
        grace_s = stop_grace_s(folder)
        if grace_s is None and (self._lost(number) or self._others_have_failed(number)):
            grace_s = GRACE_S
        if grace_s is not None:
            self._store.post(f"stop/{number}", f"{grace_s}")
        return grace_s

    def _others_have_failed(self, number: int) -> bool:
        """Whether another node's ranks have, long enough ago for ours to notice by themselves."""
        for node in self._beats:
            text = self._store.read(f"done/{number}/{node}")
            if text is not None and not json.loads(text)["ended"]["ok"]:
                if self._failed_first is None:
                    self._failed_first, self._failed_s = node, time.monotonic()
                return time.monotonic() - self._failed_s > OTHERS_NOTICE_S
        return False

    def _lost(self, number: int) -> list[int]:
        """Nodes whose number has not grown for too long, and that have not posted a result."""
        now_s = time.monotonic()
        silent = []
        for node, (last_beat, since_s) in self._beats.items():
            beat = self._store.read(f"beat/{node}")
            if beat != last_beat:
                self._beats[node] = (beat, now_s)
            elif now_s - since_s > self._cluster.silence_s:
                silent.append(node)
        return [node for node in silent if self._store.read(f"done/{number}/{node}") is None]

    def _gather(
        self, number: int, mine: LaunchResult, others: list[int], folder: Path
    ) -> LaunchResult:
        """All nodes' files into this node's folder; the node's result that explains most."""
        lost = self._wait_for(f"done/{number}", others, number, folder)
        if lost is not None:
            return lost
        results = {0: mine}
        for node in others:
            done = json.loads(self._store.read(f"done/{number}/{node}") or "")
            for name, content in done["files"].items():
                place = (find_heartbeats(folder) or folder) if name.endswith(".pulse") else folder
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).write_bytes(content.encode("latin-1"))
            results[node] = LaunchResult.model_validate(done["ended"])
        failed = [node for node, result in results.items() if not result.ok]

        def explains_little(node: int) -> tuple[bool, bool, bool]:
            """Ranks that were ended by us explain nothing. A rank that left no file died, and the
            others heard its echo; on the node that failed first nobody heard one."""
            result = results[node]
            has_file = (folder / f"rank{result.rank}.json").exists()
            return result.stopped, has_file, node != self._failed_first

        return results[min(failed, key=explains_little)] if failed else mine
