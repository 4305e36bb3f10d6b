"""Every node but the first: takes part in what node 0 announces, and writes no results."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

import psutil

from spbench.comm.kv_store import KeyValueStore, KeyValueStoreError
from spbench.launch.agent import LOOK_S, launch
from spbench.launch.cluster import Cluster, Member, Roster, meeting
from spbench.launch.interfaces import bind_gloo_towards
from spbench.results.heartbeat import point_to_heartbeats
from spbench.workload.case import Job

BEAT_S = 1.0
LOG_BYTES = 20_000
UNFIT = 6


def follow(cluster: Cluster, folder: Path) -> None:
    """Every other node: takes part in what node 0 announces, until it says that it is over."""
    board = KeyValueStore(cluster.head, cluster.port, wait_s=cluster.wait_s)
    bind_gloo_towards(cluster.head, cluster.port)
    me = Member.here(cluster)
    there = Member.model_validate_json(board.claim(f"node/{me.node}", me.model_dump_json()))
    if there.nonce != me.nonce:
        give_up(f"node {me.node} is {there.host} already; each has a --node-rank of its own")
    _beat_for_ever(cluster, board.another())
    while (text := board.read("roster")) is None:
        time.sleep(LOOK_S)
    roster = Roster.model_validate_json(text)
    if roster.why_not:
        give_up(roster.why_not)
    number = 0
    while board.read("over") is None:
        text = board.read(f"job/{number}")
        if text is None:
            time.sleep(LOOK_S / 2)
        else:
            _take_part(cluster, board, number, json.loads(text), folder / f"launch{number}")
            number += 1


def _take_part(
    cluster: Cluster, board: KeyValueStore, number: int, facts: dict[str, Any], folder: Path
) -> None:
    job = Job.model_validate_json(facts["job"])
    if cluster.node >= len(job.nodes):
        return
    job.write(folder)
    point_to_heartbeats(folder, folder)
    ears = board.another()
    board.post(f"here/{number}/{cluster.node}", "")
    ended = launch(
        folder,
        lambda: _is_to_stop(ears, number),
        processes=job.nodes[cluster.node],
        nodes=len(job.nodes),
        meeting=meeting(cluster, facts["port"]),
    )
    kept = [*folder.glob("rank*.json"), *folder.glob("rank*.pulse")]
    files = {path.name: path.read_bytes().decode("latin-1") for path in kept}
    if not ended.ok:
        files |= _logs(folder, sum(job.nodes[: cluster.node]))
    told = {"ended": ended.model_dump(mode="json"), "files": files}
    board.post(f"done/{number}/{cluster.node}", json.dumps(told))


def _is_to_stop(board: KeyValueStore, number: int) -> bool:
    """When node 0 says so, or says nothing any more."""
    try:
        return board.read(f"stop/{number}") is not None
    except KeyValueStoreError:
        return True


def _logs(folder: Path, first: int) -> dict[str, str]:
    """The ends of what this node's ranks said, in folders by rank. Elastic numbers them by node."""
    found = {}
    for path in folder.glob("logs/*/*/*/stderr.log"):
        rank = first + int(path.parent.name)
        tail = path.read_bytes()[-LOG_BYTES:].decode("latin-1")
        found[f"logs/others/attempt_0/{rank}/{path.name}"] = tail
    return found


def _beat_for_ever(cluster: Cluster, board: KeyValueStore) -> None:
    """One thread tells node 0 that this node lives, another sees whether it still can."""
    answered = [time.monotonic()]

    def beat() -> None:
        number = 0
        while True:
            try:
                board.post(f"beat/{cluster.node}", str(number))
                board.read("over")  # waits for an answer, which post does not
            except KeyValueStoreError:
                return
            answered[0] = time.monotonic()
            number += 1
            time.sleep(BEAT_S)

    def listen() -> None:
        while time.monotonic() - answered[0] < cluster.silence_s:
            time.sleep(BEAT_S)
        give_up(f"node 0 has not answered for {cluster.silence_s:g} s")

    for work in (beat, listen):
        threading.Thread(target=work, daemon=True).start()


def give_up(why: str) -> NoReturn:
    """Ends this process, whatever it waits for, and its ranks. The last line of its log: why."""
    print(why, file=sys.stderr, flush=True)
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    os._exit(UNFIT)
