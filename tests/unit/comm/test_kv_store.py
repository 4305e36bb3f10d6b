"""The key-value store: texts by name, and ports that come again."""

from __future__ import annotations

import psutil
import pytest
from helpers.golden import Golden
from helpers.spbench_process import listening

from spbench.comm.kv_store import KeyValueStore, KeyValueStoreError


def test_a_port_that_a_closed_store_had() -> None:
    """A reused port leads to the new store, as the ranks of a launch need."""
    first = KeyValueStore("127.0.0.1", 0, keeps=True)
    assert first.claim("a", "text") == "text"
    port = first.port
    del first
    kept = KeyValueStore("127.0.0.1", port, keeps=True)
    assert KeyValueStore("127.0.0.1", port).read("a") is None
    assert kept.claim("a", "other") == "other"


def test_texts_by_name() -> None:
    """All read a posted text; the first to claim a name has it; a missing text is None."""
    kept = KeyValueStore("127.0.0.1", 0, keeps=True)
    other = kept.another()
    assert other.read("a") is None
    other.post("a", "text")  # goes off by itself; a claim has come back
    assert other.read("a") == "text"
    assert [store.claim("b", name) for store, name in ((kept, "x"), (other, "y"))] == ["x", "x"]


@pytest.mark.parametrize(
    ("host", "address"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("localhost", "::")]
)
def test_an_address_narrows_who_may_connect(host: str, address: str, golden: Golden) -> None:
    """A store at an address listens there alone; at a name it listens everywhere."""
    before = listening(psutil.Process())
    store = KeyValueStore(host, 0, keeps=True)
    (opened,) = set(listening(psutil.Process())) - set(before)
    assert opened == (address, store.port)
    with pytest.raises(KeyValueStoreError) as refused:
        KeyValueStore(host, store.port, keeps=True)
    golden(refused.value, hide={f"{store.port}": "PORT"})


def test_nobody_at_the_port() -> None:
    with pytest.raises(KeyValueStoreError):
        KeyValueStore("127.0.0.1", 1, wait_s=1.0)
