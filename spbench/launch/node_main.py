"""The launcher process of one node among several.

Node 0 keeps a board (``comm/kv_store.py``) at the endpoint that everybody was given:

    node/K     who came, with versions             written by node K, the first that says it is K
    roster     all of them, or why not             node 0
    job/I      the I-th launch                     node 0
    here/I/K   node K has read of it               node K
    done/I/K   how its ranks ended, and what they wrote
    stop/I     end them                            node 0
    beat/K     a number that grows                 node K, from a thread of its own
    over       there are no more launches          node 0

Each launch is one start of torch elastic on the nodes that take part, over a port of its own.
A node whose number does not grow is lost; one that loses node 0 ends its ranks and itself.
"""

from __future__ import annotations

from pathlib import Path

from spbench.comm.kv_store import KeyValueStoreError
from spbench.launch.agent import be_brief
from spbench.launch.cluster import Cluster
from spbench.launch.coordinator import Head
from spbench.launch.follower import follow, give_up


def main(cluster_json: str, folder: str) -> None:
    """``folder``: where node 0 puts the roster, and where a follower's ranks write."""
    be_brief()
    cluster = Cluster.model_validate_json(cluster_json)
    try:
        if cluster.is_head:
            Head(cluster, Path(folder)).run()
        else:
            follow(cluster, Path(folder))
    except KeyValueStoreError as error:
        where = f"{cluster.head}:{cluster.port}"
        if cluster.is_head and "EADDRINUSE" in str(error):
            give_up(f"port {cluster.port} is taken: another node 0? Give the endpoint another port")
        give_up(
            f"node 0 does not answer at {where}; is the same command running there, and does a "
            f"firewall let its port through? ({error})"
        )
