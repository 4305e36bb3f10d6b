"""Which measurement decides: its values hold in a log that has them, and which comes first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from helpers.golden import Golden
from helpers.nccl_logs import text, write

from spbench.projection.advise.measurements import (
    Measurement,
    measurements,
    what_changes,
    what_decides,
)
from spbench.projection.advise.project import Projection
from spbench.projection.costmodel.cluster_file import find as find_cluster
from spbench.projection.costmodel.hardware import Cluster, OnRanks
from spbench.projection.costmodel.message_cost import message_cost
from spbench.projection.costmodel.scatter import as_constant
from spbench.projection.costmodel.sensitivity import with_slower
from spbench.projection.costmodel.step_time import Mode, cost, middle_s
from spbench.projection.dryrun.work import Kernel, Message, Work
from spbench.projection.microbench.imported_links import with_logs
from spbench.projection.microbench.nccl_logs import NAMES
from spbench.workload.catalogue import find
from spbench.workload.mesh import Mesh
from spbench.workload.traffic import Op

H100, L20, NVL72 = (find_cluster(name) for name in ("hgx-h100", "l20-pcie", "nvl72-gb200"))
WORKLOAD = find("flux.1-dev-small")
PRODUCT = Kernel(
    kind="gemm", phase="forward", shape=(1, 4096, 4096, 4096), flops=137 * 10**9, moved_bytes=10**6
)
TEST_OF = {op: test for test, op in NAMES.items()}


def step(products: float, sent: Mapping[Op, int], times: int = 1, ranks: int = 8) -> Work:
    """So many products, and so often messages of these bytes."""
    messages = {
        Message(op=op, phase="forward", axis="sequence", sent_bytes=count): times
        for op, count in sent.items()
    }
    kernel = replace(PRODUCT, flops=round(PRODUCT.flops * products))
    mesh = (("sequence", ranks),)
    return Work(mesh=mesh, dtype="bfloat16", kernels={kernel: 1}, messages=messages)


def advised(
    cluster: Cluster, works: Mapping[str, Work], ranks: int = 8, scatter: float | None = None
) -> list[Measurement]:
    """``scatter``: how far each strategy alone is off; by default as published of such machines."""
    own = None if scatter is None else as_constant(scatter)
    runs = [
        Projection(
            workload=WORKLOAD,
            cluster=cluster,
            strategy=name,
            ranks=ranks,
            work=work,
            cost=cost(work, cluster, launches_of=name, own=own),
        )
        for name, work in works.items()
    ]
    runs.sort(key=lambda run: run.took.step_s)
    return measurements(runs, cluster, Mode())


def fastest(cluster: Cluster, works: Mapping[str, Work]) -> str:
    return min(works, key=lambda name: middle_s(works[name], cluster, Mode()))


def of(found: list[Measurement], constant: str) -> Measurement:
    return next(each for each in found if each.constant == constant)


def sides(measurement: Measurement, margin: float) -> list[tuple[float, str]]:
    """Values a little below and above each threshold, and which strategy it names there."""
    pairs = zip(measurement.thresholds, pairwise(measurement.winners), strict=True)
    return [
        (value, name)
        for at, (below, above) in pairs
        for value, name in ((at / margin, below), (at * margin, above))
    ]


def log_of(folder: Path, measurement: Measurement, value: float, cluster: Cluster) -> Path:
    """What the command prints where it measures this value: a busbw, or a time of 1 KB."""
    assert measurement.op is not None and measurement.mb is not None
    test, ranks = TEST_OF[measurement.op], measurement.ranks
    hosts = -(-ranks // cluster.ranks_of_host)
    names = [f"node-{host}" for host in range(hosts)]
    if measurement.column == "busbw":
        sizes = [round(measurement.mb * 2**20)]
        return write(
            folder,
            "one.log",
            text(test, ranks, lambda sent: sent / value / 1e9, hosts=names, sizes=sizes),
        )
    sizes = [2**n for n in range(10, 29, 2)]

    def seconds(sent: float) -> float:
        message = Message(
            op=measurement.op or "p2p", phase="forward", axis="s", sent_bytes=round(sent)
        )
        took = message_cost(message, Mesh((("s", ranks),)), cluster, ["s"]).seconds
        return took + (value - measurement.assumed) / 1e6

    return write(folder, "one.log", text(test, ranks, seconds, hosts=names, sizes=sizes))


RIVALS: dict[str, tuple[Cluster, int, dict[str, Work]]] = {
    "one node of NVLink": (
        H100,
        8,
        {"gathers": step(90, {"all_gather": 10**9}), "exchanges": step(90, {"all_to_all": 10**9})},
    ),
    "two sockets": (
        L20,
        8,
        {"rings": step(9, {"p2p": 3 * 10**8}), "exchanges": step(9, {"all_to_all": 10**8})},
    ),
    "four hosts": (
        H100,
        32,
        {
            "rings": step(90, {"p2p": 10**8}, ranks=32),
            "exchanges": step(93, {"all_to_all": 14 * 10**7}, ranks=32),
        },
    ),
}


@pytest.mark.parametrize("case", RIVALS)
def test_a_log_with_a_value_beyond_the_threshold_changes_the_winner(
    tmp_path: Path, case: str
) -> None:
    """A log as nccl-tests prints it, with that number in the column that the sentence names."""
    cluster, ranks, works = RIVALS[case]
    found = [each for each in advised(cluster, works, ranks) if each.column == "busbw"]
    seen = set()
    for measurement in found:
        assert measurement.op is not None
        if measurement.command.startswith("NCCL_TESTS_SPLIT"):
            continue
        seen.add(measurement.op)
        for value, name in sides(measurement, 1.03):
            log = log_of(tmp_path, measurement, value, cluster)
            line = next(x for x in log.read_text().splitlines() if x.strip()[:1].isdecimal())
            busbw = float(line.split()[7])
            assert busbw == pytest.approx(value, rel=0.01)
            measured = with_logs("ours", cluster, [log]).cluster
            assert fastest(measured, works) == name, (measurement.constant, value)
    assert len(seen) == 2


def test_a_log_with_another_latency_changes_the_winner(tmp_path: Path) -> None:
    """Of many small messages, which the host calls at once: the time at 1 KB decides."""
    quick = H100.model_copy(
        update={"call_us": H100.call_us.model_copy(update={"value": 1.0, "spread": 1.1})}
    )
    works = {
        "gathers": step(0.1, {"all_gather": 10**4}, times=400),
        "exchanges": step(0.1, {"all_to_all": 10**4}, times=400),
    }
    found = [each for each in advised(quick, works) if each.column == "time"]
    assert {each.op for each in found} == {"all_gather", "all_to_all"}
    for measurement in found:
        for value, name in sides(measurement, 1.1):
            log = log_of(tmp_path, measurement, value, quick)
            measured = with_logs("ours", quick, [log]).cluster
            assert fastest(measured, works) == name, (measurement.constant, value)


def test_what_no_test_times_is_a_constant_of_the_file() -> None:
    """A product's rate: the thresholds are those of the constant itself."""
    works = {"computes": step(1000, {}), "sends": step(900, {"all_gather": 55 * 10**8})}
    product = of(advised(H100, works), "device.products.bfloat16")
    assert (product.unit, product.column, product.op) == ("TFLOP/s", "", None)
    for value, name in sides(product, 1.03):
        slower = product.assumed / value
        changed = with_slower(H100, product.constant, slower)
        assert fastest(changed, works) == name


def test_a_launch_is_told_in_microseconds_of_the_host() -> None:
    kernels = {replace(PRODUCT, shape=(1, 8, 8, 8), flops=1024): 1000}
    launches = replace(step(1, {}), kernels=kernels)
    works = {"launches": launches, "computes": step(150, {})}
    launch = of(advised(H100, works), "device.launch_us")
    assert (launch.unit, launch.assumed) == ("us", 30.0)
    for value, name in sides(launch, 1.03):
        assert fastest(with_slower(H100, launch.constant, value / 30.0), works) == name
    assert launch.command_for(["-w", "mine.yaml", "--set", "depth=2"]) == (
        "spbench calibrate mine -g 1 --onto hgx-h100 -w mine.yaml"
    )


@pytest.mark.parametrize("case", RIVALS)
def test_it_is_said_with_its_column_and_its_command(case: str, golden: Golden) -> None:
    cluster, ranks, works = RIVALS[case]
    golden("\n".join(what_decides(advised(cluster, works, ranks), ["-w", "w"])), case)


def test_what_a_socket_sends_is_measured_by_pairs_at_once() -> None:
    """NCCL_TESTS_SPLIT starts them together; the rate of one is its part of what is shared."""
    group = (("ring", 2), ("heads", 4))
    pairs = Work(
        mesh=group,
        dtype="bfloat16",
        kernels={PRODUCT: 1},
        messages={Message(op="p2p", phase="forward", axis="ring", sent_bytes=10**8): 1},
    )
    works = {"pairs": pairs, "gathers": step(1, {"all_gather": 34 * 10**7})}
    shared = of(advised(L20, works), "node.shared_gb_per_s")
    assert shared.assumed == 24 / 4
    assert shared.command == (
        'NCCL_TESTS_SPLIT="MOD 4" mpirun -np 8 -x NCCL_TESTS_SPLIT sendrecv_perf -b 64M -e 64M -g 1'
    )
    for value, name in sides(shared, 1.03):
        changed = with_slower(L20, shared.constant, shared.assumed / value)
        assert fastest(changed, works) == name


def test_ranks_of_a_cpu_are_timed_by_calibrate() -> None:
    cpu = H100.model_copy(
        update={"device": H100.device.model_copy(update={"kind": "cpu"}), "link": "memory"}
    )
    found = advised(cpu, RIVALS["one node of NVLink"][2])
    assert found and {each.column for each in found} == {""}
    assert {each.command for each in found} == {"spbench calibrate mine -g 8 --device cpu"}


def test_what_is_timed_on_as_many_ranks_counts() -> None:
    """A machine that was calibrated with 8 and 16 ranks has constants of its own for 8."""
    own = OnRanks(ranks=8, device=H100.device, levels=H100.levels, call_us=H100.call_us)
    calibrated = H100.model_copy(update={"on_ranks": (own,)})
    works = RIVALS["one node of NVLink"][2]
    assert advised(calibrated, works) == advised(H100, works) != []


def test_the_first_is_that_which_names_the_fastest_most_often() -> None:
    """Who sends little is told by nothing but the link that the other one uses."""
    works = {"gathers": step(90, {"all_gather": 10**9}), "computes": step(104, {})}
    first, *others = advised(H100, works, scatter=1.03)
    assert first.constant == "nvlink.all_gather.gb_per_s"
    assert first.chance_known > first.chance + 0.05
    assert all(each.chance_known <= first.chance_known for each in others)
    assert len(first.winners) == len(first.thresholds) + 1
    assert sorted(first.thresholds) == list(first.thresholds)


def test_where_one_wins_every_draw_nothing_changes_that() -> None:
    works = {"fast": step(90, {}), "slow": step(900, {})}
    assert advised(H100, works) == []
    (said,) = what_changes([], [])
    assert said.startswith("no single measurement would change that")


def test_a_clear_answer_says_what_would_change_it(golden: Golden) -> None:
    works = {"gathers": step(90, {"all_gather": 10**9}), "computes": step(107, {})}
    found = advised(H100, works)
    golden("\n".join(what_changes(found, ["-w", "w"])))


def test_a_test_over_hosts_is_of_whole_ones() -> None:
    """Ranks of a part of a host beside whole hosts would be refused as a log."""
    works = {
        "rings": step(90, {"p2p": 10**8}, ranks=12),
        "exchanges": step(90, {"all_to_all": 12 * 10**7}, ranks=12),
    }
    exchange = next(x for x in advised(NVL72, works, 12) if x.op == "all_to_all")
    assert "mpirun -np 12 --hostfile HOSTS --map-by ppr:4:node alltoall_perf" in exchange.command
    exchange = next(x for x in advised(H100, works, 12) if x.op == "all_to_all")
    assert "mpirun -np 16 --hostfile HOSTS --map-by ppr:8:node alltoall_perf" in exchange.command
