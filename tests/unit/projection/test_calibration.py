"""From times to constants: what was planted is found again, and a file holds all of it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.examples import ALL
from helpers.golden import Golden

from spbench.errors import UNFIT, Failure
from spbench.launch.cluster import Cluster as Node
from spbench.launch.local import LocalLauncher
from spbench.projection.advise.project import project
from spbench.projection.costmodel.cluster_file import find as find_cluster
from spbench.projection.costmodel.constants import Constant, constant, curve
from spbench.projection.costmodel.hardware import Cluster, Device, OnRanks
from spbench.projection.costmodel.message_cost import host_calls
from spbench.projection.costmodel.operations import BIAS, BIASED, DeviceRates, label_of, operations
from spbench.projection.costmodel.sensitivity import in_company
from spbench.projection.costmodel.step_time import Mode, middle_s
from spbench.projection.dryrun.rank_work import works
from spbench.projection.dryrun.trace import work
from spbench.projection.dryrun.work import Kernel
from spbench.projection.microbench import calibrate as calibrating
from spbench.projection.microbench import calibration_fit, calibration_plan, timed_calls
from spbench.projection.microbench.calibrate import _with_waits, calibrate, write
from spbench.projection.microbench.calibration_fit import (
    _least_squares,
    collective_rate,
    device,
    in_steps,
    level,
)
from spbench.projection.microbench.calibration_plan import (
    BETWEEN,
    CalibrationPlan,
    Timed,
    TimedCollective,
    TransferTime,
    _transfer,
    plan,
    usual,
)
from spbench.projection.microbench.timed_calls import (
    MOST_FLOPS_OF_OTHERS,
    calls_on_gpu,
    distinct,
    held_bytes,
)
from spbench.results.link_report import LinkTimes, LinkTiming
from spbench.strategies.registry import BUILT_IN, in_mesh, load
from spbench.workload.case import GateCheck
from spbench.workload.catalogue import find
from spbench.workload.timed import TimedKernel
from spbench.workload.traffic import OPS, Op
from spbench.workload.workload import Workload

GEMM_RATE, ATTENTION_RATE, MOVED_RATE = 2e9, 1e9, 4e9
LATENCY_S, HOP_S, SENT_RATE = 1e-4, 5e-5, 1e9
SMALL = {
    "name": "small",
    "axes": {"time": 8, "space": 64},
    "hidden": 64,
    "heads": 2,
    "depth": 2,
    "mode": "forward",
    "block": [{"attention": "space"}, {"attention": "time"}, {"mlp": 4}],
}


FEW = ("earthformer", "evoformer-pair", "flux.1-dev", "open-sora-plan-65")
"""Workloads whose calls are looked for below."""


@pytest.fixture(autouse=True)
def _two_strategies(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a short run two strategies stand for all, of which each adds calls of its own to a plan:
    one keeps the scores of its attention. Few workloads stand for the catalogue."""
    if not ALL:
        few = [name + ending for name in FEW for ending in ("", "-small")]
        monkeypatch.setattr(timed_calls, "names", lambda: few)
        monkeypatch.setattr(timed_calls, "places", lambda: ("megatron-sp", "rsa"))


def gemm(m: int) -> TimedKernel:
    return TimedKernel(kind="gemm", shape=[1, m, 64, 64], dtype="float32")


def attention(keys: int, *, masked: bool = False) -> TimedKernel:
    shape = [2, 4, 4, keys, keys, 32]
    return TimedKernel(kind="attention", shape=shape, dtype="float32", is_masked=masked)


def passing(count: int) -> TimedKernel:
    return TimedKernel(kind="elementwise", shape=[count], dtype="float32")


def seconds(kernel: TimedKernel) -> float:
    match kernel.kind:
        case "gemm":
            return 2 * kernel.shape[1] * 64 * 64 / GEMM_RATE
        case "elementwise":
            return 8 * kernel.shape[0] / MOVED_RATE
    keys = kernel.shape[4]
    pairs = keys * (keys + 1) / 2 if kernel.is_masked else keys**2
    # A mask leaves half of the rate.
    return 4 * 8 * pairs * 32 / (ATTENTION_RATE * (0.5 if kernel.is_masked else 1.0))


def times_of(*, rank: int = 0, **times: Any) -> LinkTimes:
    """Times of a rank of gloo."""
    known = {"host": "here", "backend": "gloo", "hardware": "", "link": ""}
    return LinkTimes(rank=rank, nominal_bytes_per_s=None, **known, **times)


def planted(ranks: int) -> Timed:
    kernels = [gemm(16), gemm(4096), attention(16), attention(64), attention(64, masked=True)]
    kernels += [passing(4**i) for i in range(5, 10)]
    transfers = [_transfer(op, 4**i, ranks) for op in OPS for i in range(5, 12)]
    plan = CalibrationPlan(ranks=ranks, kernels=kernels, transfers=transfers)
    sent = [4.0**i for _ in OPS for i in range(5, 12)]
    latency_s = LATENCY_S + HOP_S * (ranks - 2)
    took = [latency_s + (each - sent[0]) / SENT_RATE for each in sent]
    timings = [LinkTiming(sent_bytes=s, ms=[1e3 * t]) for s, t in zip(sent, took, strict=True)]
    times = times_of(
        timings=timings, kernels_s=[seconds(kernel) for kernel in kernels], launch_s=3e-6
    )
    return Timed.of(plan, [times.model_copy(update={"rank": rank}) for rank in range(ranks)])


def cluster() -> Cluster:
    timed, fewer = planted(4), planted(2)
    few, most = (
        OnRanks(
            ranks=each.plan.ranks,
            device=device("cores", "cpu", 8.0, each),
            levels=(level("machine", each, fewer),),
        )
        for each in (fewer, timed)
    )
    return Cluster(
        name="here",
        device=most.device,
        levels=most.levels,
        on_ranks=(few,),
        link="memory",
        call_us=constant(3.0),
    )


def test_planted_rates_are_found() -> None:
    found = cluster().device
    assert found.products.tflops["float32"](1e-3) == pytest.approx(GEMM_RATE / 1e12)
    (rates,) = found.attention
    assert rates.tflops(32) == pytest.approx(ATTENTION_RATE / 1e12)
    assert rates.masked is not None and rates.masked.value == pytest.approx(0.5)
    assert found.memory_gb_per_s(1.0) == pytest.approx(MOVED_RATE / 1e9)
    assert found.launch_us.value == pytest.approx(3.0)


@pytest.mark.parametrize("op", OPS)
def test_planted_links_are_found(op: str) -> None:
    rate = cluster().levels[0].collectives[op]  # type: ignore[index]
    assert rate.latency_us.value == pytest.approx(1e6 * LATENCY_S, rel=0.01) or op == "p2p"
    if op != "p2p":
        assert rate.hop_us is not None and rate.hop_us.value == pytest.approx(1e6 * HOP_S)
    assert rate.gb_per_s(4.0) == pytest.approx(SENT_RATE / 1e9, rel=0.01)


def test_small_messages_take_as_long_as_timed() -> None:
    """All up to 64 KiB wait for nothing but the other ranks, and chance makes the smallest take
    longest: they take their mean, without the rate of large messages."""
    kib = {1: 5.6e-3, 16: 4e-3, 64: 4.1e-3, 256: 12.7e-3, 1024: 44e-3}
    timed = TimedCollective(ranks=2, points=[(1024.0 * size, s) for size, s in kib.items()])
    found = collective_rate(timed, None)
    mean_s = (5.6e-3 + 4e-3 + 4.1e-3) / 3
    assert found.latency_us.value == pytest.approx(1e6 * mean_s, rel=1e-4)

    def seconds_of(sent: float) -> float:
        return found.latency_us.value / 1e6 + sent / found.gb_per_s(sent / 1e6) / 1e9

    for size in (1, 16, 64):
        assert seconds_of(1024.0 * size) == pytest.approx(mean_s, rel=0.06)
    assert 5e-3 < seconds_of(128 * 1024.0) < 8e-3
    assert seconds_of(256 * 1024.0) == pytest.approx(12.7e-3, rel=1e-3)


def test_attention_in_two_types_has_the_rates_of_each() -> None:
    """Two workloads of one head size, in float32 and four times as fast in bfloat16."""
    found = cluster().device
    (slow,) = found.attention
    fast_rates = slow.tflops.model_copy(update={"values": tuple(4 * x for x in slow.tflops.values)})
    fast = slow.model_copy(update={"dtype": "bfloat16", "tflops": fast_rates})
    both = found.model_copy(update={"attention": (fast, slow)})
    (kernel,) = (
        each
        for each in work(Workload.model_validate(SMALL), load("dsp"), 2).kernels
        if each.kind == "attention" and each.shape[4] == 64
    )
    took_s = {
        dtype: DeviceRates(device=both, dtype=dtype).cost(kernel).seconds
        for dtype in ("float32", "bfloat16", "float16")
    }
    assert took_s["float32"] == pytest.approx(kernel.flops / ATTENTION_RATE)
    assert took_s["bfloat16"] == took_s["float16"] == pytest.approx(took_s["float32"] / 4)


def test_a_file_holds_the_whole_cluster(tmp_path: Path) -> None:
    path = tmp_path / "clusters" / "here.yaml"
    write(cluster(), path)
    assert find_cluster(str(path)) == cluster()


def test_the_file_of_many_numbers_of_ranks_is_read(tmp_path: Path) -> None:
    """Each has hundreds of kernels of its own; eight of them exceed what a workload may have."""
    whole = cluster()
    times = {"float32": {f"gemm 1x{n}x64x64": 1.25 * n for n in range(1, 600)}}
    device = whole.device.model_copy(update={"timed_us": times})
    parts = tuple(OnRanks(ranks=n, device=device, levels=whole.levels) for n in range(1, 9))
    path = tmp_path / "here.yaml"
    write(whole.model_copy(update={"on_ranks": parts}), path)
    assert path.stat().st_size > 100_000
    assert find_cluster(str(path)).on_ranks == parts


def test_more_ranks_than_were_timed_are_refused(golden: Golden) -> None:
    """Nothing is known of what joins them; the sentence says what would tell."""
    here = cluster()
    assert [here.used_by(ranks).levels[0].ranks for ranks in (2, 3, 4)] == [2, 4, 4]
    work_of = works(here.device.runs_on)
    small = Workload.model_validate(SMALL)
    *timed, beyond = project(small, here, ["dsp"], [2, 4, 8], Mode(), work_of)
    assert all(each.cost is not None for each in timed)
    golden(beyond.why_not)


def test_nodes_join_as_many_ranks_as_their_links_do() -> None:
    """As many as a file says, where the network joins any number."""
    onto = find_cluster("hgx-h100")
    assert onto.most_ranks is None
    assert onto.model_copy(update={"nodes": 4}).most_ranks == 32


def test_ranks_of_several_nodes_have_the_memory_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four ranks on two nodes have half a node's memory each."""
    times = {2: planted(2), 4: planted(4)}
    monkeypatch.setattr(
        "spbench.projection.microbench.calibrate._launches", lambda *_: times.items()
    )
    monkeypatch.setattr("spbench.projection.microbench.calibrate.described", lambda node, *_: node)
    monkeypatch.setattr(
        "spbench.projection.microbench.calibrate._memory_gb", lambda _, ranks: 16.0 / ranks
    )
    two = Node(nodes=2, node=0, head="here", port=1)
    small = [Workload.model_validate(SMALL)]
    for node, nodes, memory_gb in ((None, 0, (8.0, 4.0)), (two, 2, (16.0, 8.0))):
        made = calibrate("x", [2, 4], "cpu", 1, small, node)
        assert made is not None
        parts = (*made.on_ranks, made)
        assert tuple(each.device.memory_gb.value for each in parts) == memory_gb
        assert (made.nodes, made.most_ranks) == (nodes, 4)


def test_ranks_that_fail_leave_the_times_of_fewer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    """Where these are several; one rank has no links."""

    def launch(planned: CalibrationPlan, *_: object) -> Timed:
        if planned.ranks == fails["at"]:
            raise Failure("timeout: not done after 1 s", UNFIT)
        return planted(max(planned.ranks, 2))

    class Launcher(LocalLauncher):
        def meet(self, *_: object, **__: object) -> None: ...

    monkeypatch.setattr("spbench.projection.microbench.calibrate._launch", launch)
    monkeypatch.setattr("spbench.projection.microbench.calibrate.LocalLauncher", Launcher)
    small = [Workload.model_validate(SMALL)]
    fails = {"at": 4}
    made = calibrate("x", [4, 2], "cpu", 1, small)
    assert made is not None and made.most_ranks == 2
    golden(capsys.readouterr().err)
    for fails["at"] in (1, 2):
        with pytest.raises(Failure) as failure:
            calibrate("x", [1, 2, 4], "cpu", 1, small)
        golden(failure.value, f"where {fails['at']} failed")


def test_ranks_beside_the_work_of_others_leave_the_times_of_fewer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    """As where they fail."""
    timed = {2: planted(2), 4: replace(slowed_pass(0, 1300.0), plan=planted(4).plan)}
    monkeypatch.setattr(
        "spbench.projection.microbench.calibrate._launches", lambda *_: timed.items()
    )
    small = [Workload.model_validate(SMALL)]
    made = calibrate("x", [2, 4], "cpu", 1, small)
    assert made is not None and made.most_ranks == 2
    golden(capsys.readouterr().err)
    timed.pop(2)
    with pytest.raises(Failure) as failure:
        calibrate("x", [2, 4], "cpu", 1, small)
    golden(failure.value, "where no fewer are left")


def test_one_gpu_has_the_links_of_a_cluster_that_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its kernels are its own; what the catalogue says of links stays, with its sources."""
    monkeypatch.setattr(
        "spbench.projection.microbench.calibrate._launches", lambda *_: {1: planted(2)}.items()
    )
    onto = find_cluster("hgx-h200")
    made = calibrate("mine", [1], "cpu", 1, [Workload.model_validate(SMALL)], onto=onto)
    assert made is not None
    assert (made.name, made.levels, made.link) == ("mine", onto.levels, onto.link)
    assert made.call_us == onto.call_us  # a single rank sends nothing
    assert made.device.products.tflops["float32"].source == "calibrate"
    write(made, tmp_path / "mine.yaml")
    assert find_cluster(str(tmp_path / "mine.yaml")) == made


def test_products_that_memory_bounds_tell_no_rate_of_a_gpus_products() -> None:
    """Of two, the one of few columns: at the rate of its bytes, and a hundredth of the other's."""
    shapes = ([1, 4096, 4096, 4096], [1, 262144, 8, 1024])
    products = [TimedKernel(kind="gemm", shape=each, dtype="bfloat16") for each in shapes]
    passes = TimedKernel(kind="elementwise", shape=[2**26], dtype="bfloat16")
    attention = TimedKernel(kind="attention", shape=[1, 8, 8, 512, 512, 64], dtype="bfloat16")
    plan_of = CalibrationPlan(ranks=1, kernels=[*products, passes, attention], transfers=[])
    seconds = [2e-4, 1.5e-4, 2**28 / 4e12, 1e-5]
    timed_of = replace(planted(2), plan=plan_of, kernels_s=seconds, steps_s=[], shares_s=[])
    rates = device("mine", "gpu", 141.0, timed_of).products.tflops["bfloat16"]
    assert rates.values == (pytest.approx(2 * 4096**3 / 2e-4 / 1e12, rel=1e-3),)


@pytest.mark.parametrize("keys", [8, 15, 64, 77, 512])
def test_a_gpus_attention_takes_what_it_took(keys: int) -> None:
    """Also one of fewer keys than a tile, of which the same tiles are then computed."""
    shape = [64, 16, 16, 2 * keys, keys, 72]
    kernels = [
        TimedKernel(kind="attention", shape=shape, dtype="bfloat16"),
        TimedKernel(kind="gemm", shape=[1, 4096, 4096, 4096], dtype="bfloat16"),
        TimedKernel(kind="elementwise", shape=[2**26], dtype="bfloat16"),
    ]
    plan_of = CalibrationPlan(ranks=1, kernels=kernels, transfers=[])
    seconds = [1e-3, 2e-4, 2**28 / 4e12]
    timed_of = replace(planted(2), plan=plan_of, kernels_s=seconds, steps_s=[], shares_s=[])
    found = device("mine", "gpu", 141.0, timed_of)
    again = Kernel(
        kind="attention",
        phase="forward",
        shape=(*shape,),
        flops=int(operations("attention", (*shape,))),
        moved_bytes=1,
    )
    by_rates = found.model_copy(update={"timed_us": {}})
    for each in (found, by_rates):
        rates = DeviceRates(device=each, dtype="bfloat16")
        assert rates.cost(again).seconds == pytest.approx(1e-3, rel=1e-3)


def test_a_bias_costs_what_it_took_or_as_many_times_as_on_an_h200() -> None:
    """By its time; where none was timed, and by rates, which are of attention without one."""
    shape = [64, 16, 16, 512, 512, 64]
    alone, biased = (
        TimedKernel(kind="attention", shape=shape, dtype="bfloat16", name=name)
        for name in ("", BIASED)
    )
    product = TimedKernel(kind="gemm", shape=[1, 4096, 4096, 4096], dtype="bfloat16")
    passes = TimedKernel(kind="elementwise", shape=[2**26], dtype="bfloat16")
    with_bias = Kernel(
        kind="attention",
        phase="forward",
        shape=(*shape,),
        flops=int(operations("attention", (*shape,))),
        moved_bytes=1,
        name=BIASED,
    )

    def found(*attentions: TimedKernel) -> Device:
        kernels = [*attentions, product, passes]
        times_s = [{"": 1e-3, BIASED: 5e-3}[x.name] for x in attentions] + [2e-4, 1e-4]
        own = CalibrationPlan(ranks=1, kernels=kernels, transfers=[])
        timed_of = replace(planted(2), plan=own, kernels_s=times_s, steps_s=[], shares_s=[])
        return device("mine", "gpu", 141.0, timed_of)

    both = found(alone, biased)
    by_rates = both.model_copy(update={"timed_us": {}})
    for each, expected_s in ((both, 5e-3), (found(alone), BIAS * 1e-3), (by_rates, BIAS * 1e-3)):
        rates = DeviceRates(device=each, dtype="bfloat16")
        assert rates.cost(with_bias).seconds == pytest.approx(expected_s, rel=1e-3)


def test_what_is_written_has_five_digits() -> None:
    """A file is read by people, and no measurement has more."""
    assert constant(1 / 3).value == 0.33333
    assert curve([(10 / 3, 2e5 / 3)]).values == (66667.0,)


def test_a_curve_has_the_scatter_of_its_points_as_spread() -> None:
    smooth = curve((4.0**i, 2.0) for i in range(5))
    rough = curve((4.0**i, 2.0 * f) for i in range(5) for f in (0.5, 2.0))
    assert smooth.factor == pytest.approx(1.05)
    assert rough(4.0) == pytest.approx(2.0)
    assert rough.factor == pytest.approx(4.0)


def test_kernels_that_are_alike_are_timed_once() -> None:
    kernels = [gemm(100), gemm(120), gemm(200), attention(100), attention(100, masked=True)]
    assert distinct(kernels) == [gemm(100), gemm(200), *kernels[3:]]
    passes = [TimedKernel(kind="elementwise", shape=[n], dtype="float32") for n in (1000, 1900)]
    assert distinct(passes) == passes[:1]


def slowed_pass(at: int, factor: float) -> Timed:
    """Times of two ranks in which one pass over memory took a multiple of its time."""
    timed = planted(2)
    passes = [i for i, kernel in enumerate(timed.plan.kernels) if kernel.kind == "elementwise"]
    taken = [*timed.kernels_s]
    taken[passes[at]] *= factor
    return replace(timed, kernels_s=taken)


@pytest.mark.parametrize("at", [0, 2, -1])
def test_passes_beside_the_work_of_others_are_refused(at: int, golden: Golden) -> None:
    """A thousandth of the rate was kept, 0.003 GB/s with a spread of 1.05, without a word."""
    with pytest.raises(Failure) as failure:
        device("machine", "cpu", 1.0, slowed_pass(at, 1300.0))
    golden(failure.value)
    assert failure.value.code == UNFIT


def test_a_disturbed_pass_widens_the_spread_of_all() -> None:
    """It took twice as long as one over four times its bytes."""
    quiet, disturbed = (
        device("machine", "cpu", 1.0, timed).memory_gb_per_s
        for timed in (planted(2), slowed_pass(1, 8.0))
    )
    assert quiet.factor == pytest.approx(1.05)
    assert disturbed.factor >= 2.0


def test_short_attentions_are_alike_only_in_number() -> None:
    """17 keys take much longer than 16; one head as long as another."""
    short, other = attention(16), attention(17)
    more = short.model_copy(update={"shape": [2, *short.shape[1:]]})
    assert distinct([short, other, more]) == [short, other]


def test_a_cpu_times_the_attentions_of_all_small_workloads() -> None:
    """Of all positions and of a rank's part, without the largest; of those that were asked for
    where some were."""
    every = [x for x in plan(2, "cpu").kernels if x.kind == "attention"]
    assert max(operations(label_of(x), (*x.shape,)) for x in every) <= MOST_FLOPS_OF_OTHERS["cpu"]
    shapes = {(*x.shape[3:],) for x in every}
    assert {(17, 17, 8), (9, 9, 8), (64, 64, 8), (13, 13, 16)} <= shapes
    own = plan(2, "cpu", [Workload.model_validate(SMALL)]).kernels
    assert all(x.shape[5] == 32 for x in own if x.kind == "attention")


def test_a_cpu_times_products_of_rows_of_scores_of_all_small_workloads() -> None:
    """As one of two ranks has them: 144 queries and 288 keys are of flux.1-dev-small."""
    found = plan(2, "cpu").kernels
    assert {(24, 144, 288, 8), (24, 144, 8, 288)} <= {(*x.shape,) for x in found}
    assert any(label_of(x) == "softmax" for x in found)
    assert any(label_of(x) == "softmax of short rows" for x in found)


def stepped(
    kind: str, in_step: float, call_s: float, faster: float = 1.0, most: int = 3
) -> tuple[Device, Constant]:
    """What is found of small steps on two ranks in which an operation takes 20 us; kernels take
    ``in_step`` of their time, on a GPU beside the host's."""
    bare = planted(2)
    bare = replace(bare, kernels_s=[each / faster for each in bare.kernels_s])
    found = device("any", kind, 8.0, bare)
    steps = plan(2, found.runs_on, [Workload.model_validate(SMALL)]).steps[:most]
    rates = DeviceRates(device=found, dtype="float32")

    def took_s(step: GateCheck, ranks: int) -> float:
        done = work(step.workload, load(step.strategy), ranks, 0, device=found.runs_on)
        kernels_s = sum(n * rates.cost(kernel).seconds for kernel, n in done.kernels.items())
        calls = sum(host_calls(message.op) * n for message, n in done.messages.items())
        host_s = 20e-6 * done.calls + call_s * calls
        kernels_s *= in_step
        return max(kernels_s, host_s) if kind == "gpu" else kernels_s + host_s

    timed = replace(
        bare,
        plan=bare.plan.model_copy(update={"steps": steps}),
        steps_s=[took_s(step, 1) for step in steps],
        shares_s=[took_s(step, 2) for step in steps],
    )
    return in_steps(found, timed)


def test_the_host_s_time_of_a_gpu_is_that_of_steps_it_waits_for() -> None:
    """A bare copy has neither Python's nor autograd's time; a compiled model's is a guess."""
    own, call = stepped("gpu", 1.0, 300e-6, faster=1e4)
    assert own.operation_us is not None
    assert (own.operation_us.value, call.value) == pytest.approx((20, 300), rel=1e-3)
    assert own.compiled_launch_us.value == 6
    assert min(own.operation_us.factor, own.compiled_launch_us.factor, call.factor) >= 1.5
    assert own.in_step is None


def test_a_gpu_whose_small_steps_wait_for_kernels_has_the_usual_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such steps tell nothing of the host; what is not timed is wide. They tell what kernels take
    in company, as under a power cap."""
    monkeypatch.setattr(calibration_fit, "LARGE", 0)
    own, call = stepped("gpu", 1.1, 300e-6, faster=1e-2)
    assert own.in_step is not None and own.in_step.value == pytest.approx(1.1, rel=1e-3)
    assert (own.launch_us.value, own.compiled_launch_us.value, call.value) == (30, 6, 120)
    assert min(own.launch_us.factor, own.compiled_launch_us.factor, call.factor) >= 2


def test_one_small_step_does_not_tell_three_times() -> None:
    """As of a workload whose other step would take seconds: any split explains it."""
    own, call = stepped("cpu", 1.1, 300e-6, most=1)
    assert own.operation_us is not None and min(call.factor, own.operation_us.factor) >= 3


def test_calls_that_least_squares_find_free_take_what_launches_take() -> None:
    """A zero is not written as a measured millionth of a microsecond."""
    own, call = stepped("cpu", 1.1, -30e-6)
    assert call == own.operation_us and call.value > 1 and call.factor >= 3


def test_what_a_step_adds_to_its_kernels_is_found() -> None:
    """Small steps that take 1.1 times their kernels, 20 us a launch and 300 us a message."""
    own, call = stepped("cpu", 1.1, 300e-6)
    assert own.in_step is not None and own.in_step.value == pytest.approx(1.1, rel=1e-3)
    assert own.operation_us is not None and own.operation_us.value == pytest.approx(20, rel=1e-3)
    assert call.value == pytest.approx(300, rel=1e-3)


def test_steps_that_tell_nothing_of_kernels_leave_them_as_timed() -> None:
    """Launches alone explain these steps best; kernels keep their time, and launches the rest."""
    in_step, launch_s, call_s = _least_squares(np.array([[0.1, 100.0, 0.0], [0.4, 100.0, 0.0]]))
    assert (in_step, call_s) == (1.0, 0.0)
    assert launch_s == pytest.approx(0.0075)


def test_a_transfer_is_what_it_adds_to_the_slowest_kernel() -> None:
    """One rank's kernel takes 3 ms, the other's 1 ms; with the transfer both take 4."""
    transfer = _transfer("p2p", 4, 2, passing(8))
    plan_of_one = CalibrationPlan(ranks=2, kernels=[], transfers=[transfer])
    both = [
        times_of(rank=rank, timings=[LinkTiming(sent_bytes=4, kernel_ms=[alone], ms=[4 - alone])])
        for rank, alone in enumerate((3.0, 1.0))
    ]
    timed = Timed.of(plan_of_one, both)
    assert [each.seconds for each in timed.transfers] == pytest.approx([1e-3])


def quick(ranks: int) -> tuple[Timed, OnRanks]:
    """Ranks whose kernels take a thirtieth, so that messages count; and what is found of them."""
    timed = planted(ranks)
    timed = replace(timed, kernels_s=[each / 30 for each in timed.kernels_s])
    own = device("any", "cpu", 8.0, timed).model_copy(
        update={"operation_us": constant(2.0), "in_step": constant(1.1)}
    )
    levels = (level("machine", timed, planted(2)),)
    return timed, OnRanks(ranks=ranks, device=own, levels=levels, call_us=constant(30.0))


def told(
    timed: Timed, part: OnRanks, waits: float, hops: float, latencies: dict[Op, float]
) -> OnRanks:
    """What steps of a small workload tell that take what the cost model says of such factors."""
    there = in_company(part, waits, 0.3, hops, dict.fromkeys(OPS, 1.0) | latencies)
    known = {"device": there.device, "levels": there.levels, "call_us": there.call_us}
    on = Cluster.model_validate({"name": "here", "link": "memory", **known})
    steps = plan(part.ranks, "cpu", [Workload.model_validate(SMALL)]).steps
    meshes = [(x.workload, in_mesh(x.strategy, x.mesh)) for x in steps]
    done = [work(*each, part.ranks, device="cpu") for each in meshes]
    took_s = [middle_s(each, on, Mode()) for each in done]
    planned = timed.plan.model_copy(update={"steps": steps})
    return _with_waits(part, replace(timed, plan=planned, together_s=took_s))


def test_steps_with_messages_tell_how_long_ranks_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing takes 1.3 times as long, and gathers and scatters 2.5 times: both are found where
    steps count much. Else numbers are drawn to what parts said, and one that no step tells is that.
    """
    monkeypatch.setattr(timed_calls, "places", lambda: ("megatron-sp", "rsa"))
    slower: dict[Op, float] = {"all_gather": 2.5, "reduce_scatter": 2.5}
    bare, part = quick(2)

    def factors(there: OnRanks) -> tuple[float, ...]:
        """Of computing, of an all-gather's latency, and of an all-to-all's, which no step has."""
        assert there.device.in_step is not None
        before, after = (x.levels[0].collectives for x in (part, there))
        to_all, gather = (
            after[op].latency_us.value / before[op].latency_us.value for op in OPS[:2]
        )
        return there.device.in_step.value / 1.1, gather, to_all

    assert factors(told(bare, part, 1.0, 1.0, {})) == pytest.approx((1.0, 1.0, 1.0), abs=1e-3)
    drawn = factors(told(bare, part, 1.3, 1.0, slower))
    assert 1.1 < drawn[0] < 1.45 and 1.05 < drawn[1] < 2.5 and drawn[2] == pytest.approx(1)
    monkeypatch.setattr(calibrating, "CHANGE", 10.0)
    assert factors(told(bare, part, 1.3, 1.0, slower)) == pytest.approx((1.3, 2.5, 1.0), rel=0.05)
    untold = _with_waits(part, bare)
    assert factors(untold) == (1.0, 1.0, 1.0), "no step has told"
    assert {x.hides for x in untold.levels[0].collectives.values()} == {0.3}


def test_steps_tell_what_a_group_of_few_pays_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of what two further ranks add to a latency, groups of two of the four pay 0.6, too; whole
    groups take as long as they were timed, of fewer ranks what these take. Steps without groups of
    two tell nothing of it."""
    monkeypatch.setattr(calibrating, "CHANGE", 10.0)
    bare, part = quick(4)
    timed = part.levels[0].collectives["all_gather"]
    assert timed.hop_us is not None

    def found(*strategies: str) -> list[float]:
        """The microseconds of two of four ranks, of three of five, of all four, and of three."""
        monkeypatch.setattr(timed_calls, "places", lambda: strategies)
        there = told(bare, part, 1.0, 0.4, {}).levels[0].collectives["all_gather"]
        return [1e6 * there.latency_s(*of) for of in ((2, 4), (3, 5), (4, 4), (3, 3))]

    latency_us, hop_us = timed.latency_us.value, timed.hop_us.value
    shares = 0.6 * 2, 0.6 * 3 + 0.4, 2.0, 1.0
    expected = [latency_us + share * hop_us for share in shares]
    assert found("attention-2d", "kv-gather", "dsp") == pytest.approx(expected, rel=0.05)
    own = [latency_us + hops * hop_us for hops in (0, 1, 2, 1)]
    assert found("kv-gather", "dsp") == pytest.approx(own, rel=0.05)


@pytest.mark.parametrize("ranks", [4, 6, 8])
@pytest.mark.parametrize("names", [(), ("bert-large-small",)])
def test_one_step_is_of_smaller_groups(
    ranks: int, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is calibrated: no other tells what a group of few pays for the others."""
    monkeypatch.setattr(timed_calls, "places", lambda: BUILT_IN)
    chosen = [find(name) for name in names or calibration_plan.WORKLOADS]
    steps = [*calibration_plan._steps(chosen, ranks, "cpu", math.inf)]
    strategies = [load(each.strategy) for each in steps]
    plans = [
        strategy.on(strategy.flattened(step.workload), ranks)
        for strategy, step in zip(strategies, steps, strict=True)
    ]
    meshes = [[n for _, n in plan.mesh.axes] for plan in plans]
    assert any(sum(size > 1 for size in sizes) > 1 for sizes in meshes)


def test_few_rounds_have_a_median_and_many_a_mean_without_the_ends() -> None:
    assert usual([1.0, 2.0, 30.0]) == 2
    assert usual([1.0, 2.0, 3.0, 5.0, 100.0]) == pytest.approx(10 / 3)


def test_shifts_are_timed_as_in_a_ring() -> None:
    """By themselves and one behind the other, where a link has no rest; the slower counts."""
    planned = plan(4, "cpu", [Workload.model_validate(SMALL)])
    shifts = [x for x in planned.transfers if x.op == "p2p" and x.between == BETWEEN]
    assert {x.in_a_row for x in shifts} == {1, 3}
    assert not [x for x in plan(2, "cpu", [find("dsp-720m-small")]).transfers if x.in_a_row > 1]
    times = [
        TransferTime(transfer=x, sent_bytes=4.0 * x.elements[0], seconds=seconds)
        for x in shifts
        for seconds in [(1e-3 if x.in_a_row == 1 else 4e-9 * x.elements[0])]
    ]
    found = replace(planted(4), transfers=times).collective("p2p")
    assert dict(found.points) == {
        4.0**i: max(1e-3, 4.0**i / 1e9 if i <= 10 else 0) for i in range(5, 13)
    }


def test_a_step_that_would_take_seconds_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of small ones two tiny steps, and a block under both strategies, each once."""
    monkeypatch.setattr(timed_calls, "places", lambda: ("megatron-sp", "rsa"))
    large = Workload.model_validate(SMALL | {"axes": {"time": 64, "space": 16384}})
    few, many = (plan(2, "cpu", [each]).steps for each in (Workload.model_validate(SMALL), large))
    assert (len(few), len(many)) == (4, 2)
    assert len({each.model_dump_json() for each in few}) == 4


def test_a_gpu_times_the_large_kernels_of_a_workload() -> None:
    """Attentions of 4e13 operations take a tenth of a second there; what exceeds memory is not
    timed, here products of scores of 107 GiB."""
    planned = plan(8, "cuda", [find("wan-2.1-14b")])
    kernels = planned.kernels
    assert 4 * max(max(t.elements) for t in planned.transfers if t.op == "p2p") == 2**28
    largest = max(operations(label_of(k), (*k.shape,)) for k in kernels if k.kind == "attention")
    assert largest > 1e13
    products = [k.shape for k in kernels if k.kind == "gemm"]
    assert max(batch * (m * k + k * n + m * n) for batch, m, n, k in products) <= 2**32


def test_a_gpu_times_nothing_that_it_cannot_hold() -> None:
    """Slices of scores span 120 GiB of which they have four; attentions too large for 24 GB are
    timed with a part of their batch, and a step of 19 GiB is not."""
    for name in ("llama3-8b", "axial-weather"):
        of_share = calls_on_gpu(find(name), load("ulysses"), 8)
        assert max(map(held_bytes, of_share)) <= 2**33
    weather = [*calls_on_gpu(find("axial-weather"), load("ulysses"), 1)]
    whole, part = 16200, [k.shape[0] for k in weather if k.kind == "attention"]
    assert max(part) == whole and 1170 in part
    few, many = (plan(1, "cuda", [find("dsp-720m")], size) for size in (24e9, 80e9))
    assert [x.workload.tokens > 2**17 for x in few.steps] == [False]
    assert [x.workload.tokens > 2**17 for x in many.steps] == [False, True]


def test_gpus_time_bfloat16_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most models are in bfloat16, and full size is what a GPU computes."""
    if not ALL:
        monkeypatch.setattr(calibration_plan, "WORKLOADS", calibration_plan.WORKLOADS[:1])
    kernels = plan(2, "cuda").kernels
    for kind in ("gemm", "attention", "elementwise"):
        assert {k.dtype for k in kernels if k.kind == kind} == {"float32", "bfloat16"}


def test_a_plan_without_attention_is_refused(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """A cluster without a rate of attention cannot be written, however long it was timed."""
    monkeypatch.setitem(timed_calls.MOST_FLOPS, "cuda", 1e6)
    monkeypatch.setattr(
        "spbench.projection.microbench.calibrate.LocalLauncher", None
    )  # none is started
    with pytest.raises(Failure) as failure:
        calibrate("x", [8], "cuda", 1, [find("dsp-720m")])
    golden(failure.value)


def test_passes_over_gigabytes_are_not_timed_on_a_cpu() -> None:
    """Of a workload in full size those of shorter axes stand for them, not only tiny ones."""
    passes = [k for k in plan(2, "cpu", [find("dsp-720m")]).kernels if k.name == "gelu"]
    assert 2**24 < 4 * max(k.shape[0] for k in passes) <= 2**28
