"""Every node but node 0: runs its ranks of each launch that node 0 posts, and writes no results."""

import contextlib
import itertools
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn, final

from spbench.comm.kv_store import KeyValueStore, KeyValueStoreError
from spbench.errors import UNFIT
from spbench.launch.cluster import Cluster, Member, Roster
from spbench.launch.interfaces import interface_towards
from spbench.launch.process import GRACE_S, family, send_signal
from spbench.launch.ranks import NodeRanks, run_ranks
from spbench.results.heartbeat import point_to_heartbeats
from spbench.workload.case import Job

BEAT_S = 1.0
POLL_S = 0.05
LOG_BYTES = 20_000
"""How much of the end of each rank's log goes to node 0."""


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
    result = run_ranks(folder, local, lambda: _stop_grace_s(store, number))
    paths = [*folder.glob("rank*.json"), *folder.glob("rank*.pulse")]
    files = {path.name: _text(path) for path in paths}
    if not result.ok:
        files |= _ends_of_logs(folder, local.first)
    done = {"ended": result.model_dump(mode="json"), "files": files}
    store.post(f"done/{number}/{cluster.node}", json.dumps(done))


def _stop_grace_s(store: KeyValueStore, number: int) -> float | None:
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
