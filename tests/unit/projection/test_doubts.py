"""What is drawn together and what apart: by names within a cluster, never by values or texts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from spbench.projection.advise.project import Projection
from spbench.projection.advise.recommend import Recommendation, answer, recommend
from spbench.projection.costmodel.cluster_file import find
from spbench.projection.costmodel.constants import Doubt, Drawing, Together
from spbench.projection.costmodel.hardware import Cluster
from spbench.projection.costmodel.sensitivity import scaled
from spbench.projection.costmodel.step_time import Mode, cost
from spbench.projection.dryrun.work import Kernel, Message, Work
from spbench.workload.catalogue import find as find_workload
from spbench.workload.config_names import names
from spbench.workload.traffic import Op

PCIE = ("4090-pcie", "a100-pcie", "l20-pcie", "l40-pcie")
PRODUCT = Kernel(
    kind="gemm", phase="forward", shape=(1, 4096, 4096, 4096), flops=10**12, moved_bytes=10**8
)
SENT: dict[str, dict[Op, int]] = {
    "exchange": {"all_to_all": 10**8},
    "gather": {"all_gather": 10**8},
    "ring": {"p2p": 1.05 * 10**8},  # type: ignore[dict-item]
    "sum": {"all_reduce": 9 * 10**7, "reduce_scatter": 10**7},
}
"""Bytes that a rank sends, under strategies whose order hangs on how far links are off."""


def work(sent: dict[Op, int], ranks: int = 4) -> Work:
    """A step of one product and messages."""
    messages = {
        Message(op=op, phase="forward", axis="sequence", sent_bytes=round(count)): 1
        for op, count in sent.items()
    }
    mesh = (("sequence", ranks),)
    return Work(mesh=mesh, dtype="bfloat16", kernels={PRODUCT: 1}, messages=messages)


def advised(cluster: Cluster) -> Recommendation:
    workload = find_workload("flux.1-dev-small")
    known: dict[str, Any] = {"workload": workload, "cluster": cluster, "ranks": 4}
    took = {name: work(sent) for name, sent in SENT.items()}
    projected = [
        Projection(strategy=name, work=own, cost=cost(own, cluster, launches_of=name), **known)
        for name, own in took.items()
    ]
    return recommend(projected, cluster, Mode())


@lru_cache
def as_packaged(name: str) -> Recommendation:
    return advised(find(name))


def texts(value: Any, key: str) -> Iterator[dict[str, Any]]:
    """Every mapping of a cluster's data that has the key."""
    if isinstance(value, dict):
        if isinstance(value.get(key), str):
            yield value
        for each in value.values():
            yield from texts(each, key)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from texts(each, key)


@pytest.mark.parametrize("name", ["l20-pcie", "hgx-h100", "piz-daint"])
@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_no_wording_of_a_source_moves_an_answer(name: str, data: st.DataObject) -> None:
    """Sources, reasons and texts of sources may be worded in any way."""
    plain = find(name).model_dump()
    reworded = st.lists(st.sampled_from("ab,. :0é"), min_size=1, max_size=9).map("".join)
    for key in ("source", "why"):
        for each in texts(plain, key):
            if data.draw(st.booleans()):
                each[key] = data.draw(reworded)
    plain["sources"] = {key: data.draw(reworded) for key in plain["sources"]}
    before, after = as_packaged(name), advised(Cluster.model_validate(plain))
    assert answer(after) == answer(before)
    assert after.sure == before.sure
    for was, now in zip((before.best, *before.others), (after.best, *after.others), strict=True):
        assert np.array_equal(was.took.draws, now.took.draws)


def logs(cluster: Cluster, *constants: str) -> list[np.ndarray[Any, Any]]:
    return [np.log(cluster.drawing.factors(Doubt(name, 2.0))) for name in constants]


@pytest.mark.parametrize("name", PCIE)
def test_operations_on_pcie_share_a_part_of_their_doubt(name: str) -> None:
    """The machine's part, 0.7; a ring's figure stands for all rings, and none for an exchange."""
    cluster = find(name)
    exchange, gather, ring, shared = logs(
        cluster,
        "socket.all_to_all.gb_per_s",
        "socket.all_gather.gb_per_s",
        "node.p2p.gb_per_s",
        "node.shared_gb_per_s",
    )
    assert np.allclose(gather, ring)
    for other in (gather, shared):
        assert np.corrcoef(exchange, other)[0, 1] == pytest.approx(0.7, abs=0.05)
    assert np.std(exchange) == pytest.approx(np.log(2.0) / 1.96, rel=0.05)


def test_equal_constants_are_apart_unless_a_file_joins_them() -> None:
    """Two rates of one text were one random number, and dropped out of every comparison."""
    cluster = find("l20-pcie").model_copy(update={"drawn_together": ()})
    socket = cluster.levels[0].collectives
    assert socket["p2p"].gb_per_s == socket["all_gather"].gb_per_s
    one, other = logs(cluster, "socket.p2p.gb_per_s", "socket.all_gather.gb_per_s")
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.1


def test_a_ring_s_lead_over_an_exchange_on_pcie_is_in_doubt() -> None:
    """They send over the same slots, each in a way whose rate is known to a factor of 2."""
    advice = advised(find("l20-pcie"))
    assert 0.3 < advice.sure < 0.95


def test_machines_share_no_doubt_and_one_machine_with_other_links_does() -> None:
    """H100 and H200 are two; a copy whose links have half the rate is drawn as its original."""
    rate = "network.all_gather.gb_per_s"
    plain = find("hgx-h100")
    copy = scaled(plain, "rate", 0.5).model_copy(update={"name": "half", "drawn_as": plain.name})
    (own,), (other,), (at_half,) = (logs(each, rate) for each in (plain, find("hgx-h200"), copy))
    assert abs(np.corrcoef(own, other)[0, 1]) < 0.1
    assert np.array_equal(own, at_half)


def test_parts_of_a_variance_add_up() -> None:
    """What the groups leave is a constant's own."""
    together = [
        Together(constants=("a.*",), part=0.5, why="x"),
        Together(constants=("*",), why="y"),
    ]
    half = Drawing(machine="m", together=together[:1])
    whole = Drawing(machine="m", together=together[1:])
    a, b = (np.log(half.factors(Doubt(name, 3.0))) for name in ("a.b", "a.c"))
    assert np.corrcoef(a, b)[0, 1] == pytest.approx(0.5, abs=0.05)
    assert np.array_equal(whole.factors(Doubt("a.b", 3.0)), whole.factors(Doubt("c", 3.0)))


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ({"constants": ["socket.all_gater.gb_per_s"]}, "names 'socket.all_gater.gb_per_s', and no"),
        ({"constants": ["node.p2p.gb_per_s"], "part": 0.1}, "parts of node.p2p.gb_per_s .* 1.1;"),
    ],
)
def test_what_cannot_be_drawn_together_is_refused(group: dict[str, Any], message: str) -> None:
    data = find("l20-pcie").model_dump()
    data["drawn_together"] = [*data["drawn_together"], {"why": "a test", **group}]
    with pytest.raises(ValidationError, match=message):
        Cluster.model_validate(data)


@pytest.mark.parametrize("name", names("clusters"))
def test_packaged_clusters_say_what_is_drawn_together(name: str) -> None:
    """What one figure stands for is one number: operations of one level with the same rates."""
    cluster = find(name)
    for level in cluster.levels:
        by_rate: dict[tuple[float, ...], list[str]] = {}
        for op, rate in level.collectives.items():
            by_rate.setdefault(rate.gb_per_s.values, []).append(f"{level.name}.{op}.gb_per_s")
        rings = max(by_rate.values(), key=len)
        first, *others = logs(cluster, *rings)
        assert all(np.allclose(first, other) for other in others), rings


@pytest.mark.parametrize(
    ("name", "exchange", "ring", "shared"),
    [(name, 14.0, 20.0, 24.0) for name in PCIE[1:]] + [("4090-pcie", 12.0, 14.0, 16.0)],
)
def test_rates_of_pcie_are_those_of_their_sources(
    name: str, exchange: float, ring: float, shared: float
) -> None:
    """They were once all set to one figure after a look at the points that score them."""
    for level in find(name).levels:
        rates = {op: max(rate.gb_per_s.values) for op, rate in level.collectives.items()}
        assert rates.pop("all_to_all") == exchange
        assert set(rates.values()) == {ring}
    limit = find(name).levels[-1].shared_gb_per_s
    assert limit is not None and limit.value == shared
