"""Node 0 of several: keeps the board, says what is started, and gathers what came of it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import final

from spbench.comm.kv_store import KeyValueStore
from spbench.launch.agent import LOOK_S, launch
from spbench.launch.cluster import Cluster, Member, Roster, meeting, roster_of
from spbench.launch.interfaces import bind_gloo_towards, is_loopback
from spbench.launch.launcher import LaunchResult
from spbench.results.heartbeat import find_heartbeats
from spbench.results.sample import write_atomically
from spbench.workload.case import Job

ECHO_S = 3.0
"""After one node has failed, for the others' ranks to notice by themselves and tell."""


@final
class Head:
    """Node 0."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.board = KeyValueStore(cluster.head, cluster.port, keeps=True, wait_s=cluster.wait_s)
        self.beats = self.board.another()
        self.heard: dict[int, tuple[str | None, float]] = {}
        self.roster = Roster()
        self.failed_first: int | None = None
        self.failed_s = 0.0

    def run(self) -> None:
        self.roster = self._meet()
        self.board.post("roster", self.roster.model_dump_json())
        write_atomically(self.folder / "roster.json", self.roster.model_dump_json())
        if self.roster.why_not:
            time.sleep(ECHO_S)  # the board goes with this process
            return
        self._choose_interface()
        for number, line in enumerate(sys.stdin):
            place = Path(line.rstrip("\n"))
            ended = self._launch(number, place)
            write_atomically(place / "exit.json", ended.model_dump_json())
        self.board.post("over", "")
        time.sleep(5 * LOOK_S)

    def _meet(self) -> Roster:
        came = {0: Member.here(self.cluster)}
        deadline = time.monotonic() + self.cluster.wait_s
        while len(came) < self.cluster.nodes and time.monotonic() < deadline:
            for node in range(1, self.cluster.nodes):
                text = self.board.read(f"node/{node}")
                if text is not None:
                    came[node] = Member.model_validate_json(text)
            time.sleep(LOOK_S)
        return roster_of(self.cluster, list(came.values()))

    def _choose_interface(self) -> None:
        """Node 0 reaches itself over loopback: what counts is how it reaches another node."""
        for member in self.roster.members[1:]:
            if member.address and not is_loopback(member.address):
                bind_gloo_towards(member.address, self.cluster.port)
                return

    def _launch(self, number: int, folder: Path) -> LaunchResult:
        job = Job.read(folder)
        counts = job.nodes or [job.processes]
        others = list(range(1, len(counts)))
        # Held until the launch is over; elastic's own store in this process is the same one.
        port = KeyValueStore(self.cluster.head, 0, keeps=True)
        facts = {"job": job.model_dump_json(by_alias=True), "port": port.port}
        self.board.post(f"job/{number}", json.dumps(facts))
        self.heard = {node: (None, time.monotonic()) for node in others}
        self.failed_first = None
        absent = self._wait_for(f"here/{number}", others, number)
        if absent is not None:
            return absent
        mine = launch(
            folder,
            lambda: self._is_to_stop(number, folder),
            processes=counts[0],
            nodes=len(counts),
            meeting=meeting(self.cluster, port.port) if others else None,
        )
        if not mine.ok:
            self.board.post(f"stop/{number}", "")
        return self._gather(number, mine, others, folder)

    def _wait_for(self, what: str, others: list[int], number: int) -> LaunchResult | None:
        """Until each of these nodes has posted it; how it ends if one is lost before."""
        for node in others:
            while self.board.read(f"{what}/{node}") is None:
                if node in self._lost(number):
                    host, silent_s = self.roster.hosts[node], self.cluster.silence_s
                    why = f"node {node} ({host}) has not answered for {silent_s:g} s"
                    return LaunchResult(ok=False, lost=True, why=why)
                time.sleep(LOOK_S / 2)
        return None

    def _is_to_stop(self, number: int, folder: Path) -> bool:
        """When the parent says so, when a node is lost, or a while after one has failed. The other
        nodes are told."""
        if (folder / "stop").exists() or self._lost(number) or self._has_failed(number):
            self.beats.post(f"stop/{number}", "")
            return True
        return False

    def _has_failed(self, number: int) -> bool:
        """Whether another node's ranks have, long enough ago for ours to notice by themselves."""
        for node in self.heard:
            text = self.beats.read(f"done/{number}/{node}")
            if text is not None and not json.loads(text)["ended"]["ok"]:
                if self.failed_first is None:
                    self.failed_first, self.failed_s = node, time.monotonic()
                return time.monotonic() - self.failed_s > ECHO_S
        return False

    def _lost(self, number: int) -> list[int]:
        """Nodes whose beat has not changed for too long, and that have not reported."""
        now = time.monotonic()
        lost = []
        for node, (last, since_s) in self.heard.items():
            beat = self.beats.read(f"beat/{node}")
            if beat != last:
                self.heard[node] = (beat, now)
            elif now - since_s > self.cluster.silence_s:
                lost.append(node)
        return [one for one in lost if self.beats.read(f"done/{number}/{one}") is None]

    def _gather(
        self, number: int, mine: LaunchResult, others: list[int], folder: Path
    ) -> LaunchResult:
        """What all nodes' ranks wrote, into this node's folder; the ending that explains most."""
        absent = self._wait_for(f"done/{number}", others, number)
        if absent is not None:
            return absent
        endings = {0: mine}
        for node in others:
            done = json.loads(self.board.read(f"done/{number}/{node}") or "")
            for name, content in done["files"].items():
                place = (find_heartbeats(folder) or folder) if name.endswith(".pulse") else folder
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).write_bytes(content.encode("latin-1"))
            endings[node] = LaunchResult.model_validate(done["ended"])
        failed = [node for node, ended in endings.items() if not ended.ok]

        def explains(node: int) -> tuple[bool, bool, bool]:
            """False: more. Ranks that were stopped explain nothing; one that left no last words
            died, and the others heard its echo; the node that failed first heard none."""
            ended = endings[node]
            spoke = (folder / f"rank{ended.rank}.json").exists()
            return ended.stopped, spoke, node != self.failed_first

        return endings[min(failed, key=explains)] if failed else mine
