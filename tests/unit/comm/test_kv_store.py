"""The key-value store: texts by name, and ports that come again."""

from __future__ import annotations

import subprocess
import sys

import pytest
from helpers.network_namespace import ENTER, needs_namespace
from helpers.spbench_process import ROOT

from spbench.comm.kv_store import KeyValueStore, KeyValueStoreError

FEW_PORTS = f"""
import subprocess
import sys
sys.path[:0] = {[str(ROOT), str(ROOT / "tests")]}
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
with open("/proc/sys/net/ipv4/ip_local_port_range", "w") as ports:
    ports.write("40000 40031")
from spbench.comm.kv_store import KeyValueStore
seen = []
for _ in range(16):
    first = KeyValueStore("127.0.0.1", 0, keeps=True)
    second = KeyValueStore("127.0.0.1", first.port, keeps=True)
    first.claim("a", "text")
    assert second.read("a") == "text"
    seen.append(first.port)
    del first, second
print(len(set(seen)))
"""
"""Stores one after another, on a system with few ports, so that each port comes again."""


@needs_namespace
def test_a_port_that_a_closed_store_had() -> None:
    """A reused port leads to the new store, as the ranks of a launch need."""
    words = [*ENTER, sys.executable, "-c", FEW_PORTS]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 16


def test_texts_by_name() -> None:
    """All read a posted text; the first to claim a name has it; a missing text is None."""
    kept = KeyValueStore("127.0.0.1", 0, keeps=True)
    other = kept.another()
    assert other.read("a") is None
    other.post("a", "text")  # goes off by itself; a claim has come back
    assert other.read("a") == "text"
    assert [store.claim("b", name) for store, name in ((kept, "x"), (other, "y"))] == ["x", "x"]


def test_nobody_at_the_port() -> None:
    with pytest.raises(KeyValueStoreError):
        KeyValueStore("127.0.0.1", 1, wait_s=1.0)
