"""The time of a step from work made by hand: each term by arithmetic, bounds, interval."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.golden import Golden

from spbench.errors import Failure
from spbench.projection.costmodel.cluster_file import find
from spbench.projection.costmodel.constants import Constant
from spbench.projection.costmodel.hardware import Cluster
from spbench.projection.costmodel.message_cost import crossing, message_cost
from spbench.projection.costmodel.operations import DeviceRates
from spbench.projection.costmodel.step_time import OVERLAP, Mode, cost
from spbench.projection.dryrun.work import Kernel, Message, Work
from spbench.workload.mesh import Mesh
from spbench.workload.traffic import Op

H100, L20 = find("hgx-h100"), find("l20-pcie")
GB = 10**9
PRODUCT = Kernel(
    kind="gemm",
    phase="forward",
    shape=(1, 16384, 8448, 4096),
    flops=2 * 16384 * 8448 * 4096,
    moved_bytes=2 * (16384 * 4096 + 4096 * 8448 + 16384 * 8448),
)
PASS = Kernel(kind="elementwise", phase="forward", shape=(), flops=0, moved_bytes=GB)
ATTENTION = Kernel(
    kind="attention",
    phase="forward",
    shape=(1, 16, 16, 8192, 8192, 128),
    flops=4 * 16 * 8192 * 8192 * 128,
    moved_bytes=8192 * 16 * 128 * 8,
)
EXCHANGE = Message(op="all_to_all", phase="forward", axis="sequence", sent_bytes=GB)


def work(*messages: Message, ranks: int = 8, **kernels: int) -> Work:
    """A step of these messages and of so many products, attentions and passes."""
    known = {"products": PRODUCT, "attentions": ATTENTION, "passes": PASS}
    return Work(
        mesh=(("sequence", ranks),),
        dtype="bfloat16",
        kernels={known[name]: n for name, n in kernels.items()},
        messages=dict.fromkeys(messages, 1),
    )


def test_terms_are_work_over_rate() -> None:
    """A large pass takes its bytes over the memory rate, a product its operations over its rate."""
    device = H100.device
    terms = cost(work(products=10, passes=3, attentions=2), H100).terms
    assert terms["elementwise"] == pytest.approx(3 * GB / (device.memory_gb_per_s(1e3) * 1e9))
    rate = device.products.tflops["bfloat16"](PRODUCT.flops / 1e9) * 1e12
    assert terms["gemm"] == pytest.approx(10 * PRODUCT.flops / rate)
    assert terms["attention"] == pytest.approx(2 * ATTENTION.flops / 600e12)
    assert terms["host"] == pytest.approx(15 * device.launch_us.value / 1e6)


def test_a_gpus_attention_computes_whole_tiles() -> None:
    """Few queries, and few keys, take as long as 64 of either; on a CPU as long as their bytes."""
    rates = DeviceRates(device=H100.device, dtype="bfloat16")
    on_cpu = replace(rates, device=H100.device.model_copy(update={"kind": "cpu"}))
    few, whole = (
        replace(ATTENTION, shape=(512, 16, 16, n, n, 128), flops=4 * 512 * 16 * n * n * 128)
        for n in (8, 64)
    )
    assert rates.cost(few).seconds == pytest.approx(rates.cost(whole).seconds)
    assert on_cpu.cost(few).seconds < on_cpu.cost(whole).seconds / 2


def test_torchs_own_passes_reach_a_part_of_a_gpus_memory_rate() -> None:
    rates = DeviceRates(device=H100.device, dtype="bfloat16")
    norm = rates.cost(replace(PASS, name="native_layer_norm"))
    assert norm.seconds == pytest.approx(rates.cost(PASS).seconds / 0.4)


def test_a_gpus_pass_goes_at_the_rate_of_the_nearest_that_was_timed() -> None:
    """At a byte's time of that, also far from its size, but never in less than a kernel takes."""
    device = H100.device.model_copy(update={"timed_us": {"bfloat16": {f"silu {GB}": 300.0}}})
    rates = DeviceRates(device=device, dtype="bfloat16")
    for part, seconds in ((1, 3e-4), (10, 3e-5), (10**6, device.kernel_us.value / 1e6)):
        found = rates.cost(replace(PASS, name="silu", moved_bytes=GB // part))
        assert found.seconds == pytest.approx(seconds)


def test_many_small_kernels_are_bound_by_launches() -> None:
    """A GPU waits for its host; on a CPU launches add to the work, or all calls, views too, where
    the time of one is known."""
    tiny = replace(PASS, moved_bytes=100)
    many = Work(mesh=(("sequence", 1),), dtype="bfloat16", kernels={tiny: 1000}, messages={})
    eager, fused = cost(many, H100), cost(many, H100, Mode(compiled=True))
    assert eager.step_s == pytest.approx(1000 * H100.device.launch_us.value / 1e6)
    assert fused.step_s < eager.step_s / 3
    device = H100.device.model_copy(update={"kind": "cpu"})
    timed = device.model_copy(update={"operation_us": device.launch_us})
    on_cpu, by_calls = (
        cost(replace(many, calls=3000), H100.model_copy(update={"device": each}))
        for each in (device, timed)
    )
    assert on_cpu.step_s == pytest.approx(eager.step_s + eager.terms["elementwise"])
    assert by_calls.step_s == pytest.approx(3 * eager.step_s + eager.terms["elementwise"])
    on_gpu = H100.model_copy(update={"device": timed.model_copy(update={"kind": "gpu"})})
    assert cost(replace(many, calls=3000), on_gpu).step_s == pytest.approx(3 * eager.step_s)
    assert cost(replace(many, calls=3000), on_gpu, Mode(compiled=True)).step_s == fused.step_s


def test_on_a_cpu_other_work_of_its_host_comes_to_the_interval() -> None:
    device = H100.device.model_copy(update={"kind": "cpu"})
    alone = Constant(value=1.0, source="nothing", kind="model", spread=1.0)
    steps = [
        cost(work(passes=9), each, own=alone)
        for each in (H100, H100.model_copy(update={"device": device}))
    ]
    on_gpu, on_cpu = (step.high_s / step.low_s for step in steps)
    assert on_cpu > 1.1 * on_gpu


def test_overlap_is_bracketed() -> None:
    """Kernels behind a message hide it by a share; the middle lies between none and all."""
    behind = replace(EXCHANGE, behind=(PASS,) * 2)
    step = cost(work(behind, passes=20), H100)
    seconds = step.terms["elementwise"] / 20 * 2
    whole = step.terms["all_to_all sequence exposed"] + step.terms["all_to_all sequence hidden"]
    assert step.terms["all_to_all sequence hidden"] == pytest.approx(OVERLAP * seconds)
    assert step.no_overlap_s - step.full_overlap_s == pytest.approx(min(seconds, whole))
    assert step.full_overlap_s < step.step_s < step.no_overlap_s


def test_gradients_hide_behind_backward_but_for_the_last() -> None:
    """Their sum travels on a group of its own beside the rest of backward; the last bucket leaves
    when backward is over."""
    first = Message(op="all_reduce", phase="gradients", axis="all", sent_bytes=GB)
    last = replace(first, sent_bytes=GB // 4, is_last=True)
    backward = {replace(PASS, phase="backward"): 20}
    both, one = (
        cost(replace(work(), kernels=kernels, messages=messages), H100)
        for kernels, messages in ((backward, {first: 1, last: 1}), (backward, {last: 1}))
    )
    assert one.full_overlap_s == one.no_overlap_s
    assert both.full_overlap_s == pytest.approx(one.full_overlap_s)
    assert both.no_overlap_s > one.no_overlap_s


def hiding(op: Op, part: float) -> Cluster:
    """A cluster where so much was seen hidden of what could be."""
    level = H100.levels[0]
    rate = level.collectives[op].model_copy(update={"hidden": part})
    own = level.model_copy(update={"collectives": {**level.collectives, op: rate}})
    return H100.model_copy(update={"levels": (own, *H100.levels[1:])})


@pytest.mark.parametrize("part", [0.1, 0.9])
@pytest.mark.parametrize("passes", [1, 1000])
def test_a_timed_part_of_gradients_is_hidden(part: float, passes: int) -> None:
    """Of what backward can hide of them, be it shorter or longer; never more than themselves."""
    summed = Message(op="all_reduce", phase="gradients", axis="all", sent_bytes=10 * GB)
    done = replace(work(summed), kernels={replace(PASS, phase="backward"): passes})
    step = cost(done, hiding("all_reduce", part))
    backward_s, whole_s = step.terms["elementwise"], step.no_overlap_s - step.terms["elementwise"]
    can = min(backward_s, whole_s)
    assert step.no_overlap_s - step.step_s == pytest.approx(part * can)
    most = min(part / OVERLAP, 1.0)
    assert step.no_overlap_s - step.full_overlap_s == pytest.approx(most * can)


SUMMED = Message(op="all_reduce", phase="gradients", axis="all", sent_bytes=GB)
BACKWARD = replace(PASS, phase="backward")


def trained(passes: int, *messages: Message) -> Work:
    """So many passes of backward, and messages."""
    return replace(work(*messages), kernels={BACKWARD: passes} if passes else {})


def test_hidden_gradients_pay_for_no_other_message() -> None:
    """Where a draw has them sent in less than the usual time, less is hidden: no step is shorter
    for what it sends besides."""
    on = hiding("all_reduce", 1.0)
    exchange, both = (cost(trained(100, *sent), on) for sent in ((EXCHANGE,), (EXCHANGE, SUMMED)))
    more = (both.draws - exchange.draws) / exchange.draws
    assert more.min() > -1e-9
    assert more.max() > 1e-3


@pytest.mark.parametrize("passes", [3, 100])
def test_backward_hides_as_much_of_gradients_as_a_draw_has_of_both(passes: int) -> None:
    """All that can be hidden is, in the half of the draws above the middle: all gradients behind
    a long backward, however slow the links, and all of a short one, however slow its kernels."""
    on, sent = hiding("all_reduce", 1.0), replace(SUMMED, sent_bytes=10 * GB if passes == 3 else GB)
    both = cost(trained(passes, sent), on).draws
    longer = cost(trained(0, sent) if passes == 3 else trained(passes), on).draws
    assert np.mean(np.isclose(both, longer)) == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_terms_add_up_to_the_step(kind: str) -> None:
    """A GPU computes while its host launches; gradients that are hidden are not called exposed."""
    on = H100.model_copy(update={"device": H100.device.model_copy(update={"kind": kind})})
    behind = replace(EXCHANGE, op="p2p", behind=(PASS,) * 2)
    step = cost(trained(20, EXCHANGE, behind, SUMMED, replace(SUMMED, is_last=True)), on)
    terms = dict(step.terms)
    host_s = terms.pop("host")
    busy_s = sum(seconds for name, seconds in terms.items() if not name.endswith(" hidden"))
    assert step.step_s == pytest.approx(max(busy_s, host_s) if kind == "gpu" else busy_s + host_s)
    assert step.terms["all_reduce all hidden"] > 0
    assert "share" not in step.terms


def test_what_is_hidden_may_have_been_timed() -> None:
    """On cores that compute and send, kernels hide less."""
    timed = hiding("all_to_all", 0.2)
    behind = replace(EXCHANGE, behind=(PASS,) * 20)
    usual, less = (cost(work(behind, passes=20), on).terms for on in (H100, timed))
    hidden = "all_to_all sequence hidden"
    assert less[hidden] / usual[hidden] == pytest.approx(0.2 / OVERLAP)


@pytest.mark.parametrize("gradients", [False, True])
def test_a_kernel_on_a_shared_core_hides_a_part_of_its_time(*, gradients: bool) -> None:
    """Of a message that takes longer than the kernels behind it, or than the rest of backward."""
    op: Op = "all_reduce" if gradients else "all_to_all"
    level = hiding(op, 1.0).levels[0]
    rate = level.collectives[op].model_copy(update={"hides": 0.25})
    own = level.model_copy(update={"collectives": {**level.collectives, op: rate}})
    shared = H100.model_copy(update={"levels": (own, *H100.levels[1:])})
    large = {"sent_bytes": 10 * GB}
    sent = replace(SUMMED, **large) if gradients else replace(EXCHANGE, **large, behind=(BACKWARD,))
    whole, part = (cost(trained(1, sent), on) for on in (hiding(op, 1.0), shared))
    hidden_s, less_s = (x.no_overlap_s - x.step_s for x in (whole, part))
    assert less_s == pytest.approx(hidden_s / 4)
    assert less_s == pytest.approx(part.terms["elementwise"] / 4)


def test_an_interval_holds_its_time_repeats_and_widens_with_the_spread() -> None:
    """Draws have one seed; a constant that is less sure gives a wider interval."""
    step, again = (cost(work(EXCHANGE, products=5), L20) for _ in range(2))
    assert step == again
    assert step.low_s < step.step_s < step.high_s
    on_nvlink = cost(work(EXCHANGE, products=5), H100)
    assert step.high_s / step.low_s > 1.5 * on_nvlink.high_s / on_nvlink.low_s


@pytest.mark.parametrize(
    ("groups", "op", "shares"),
    [
        ((tuple(range(8)),), "all_to_all", (4 / 7, 16 / 7)),
        ((tuple(range(8)),), "p2p", (1.0, 1.0)),
        (((0, 2, 4, 6), (1, 3, 5, 7)), "p2p", (1.0, 2.0)),
        (((0, 1, 2, 3), (4, 5, 6, 7)), "all_to_all", (0.0, 0.0)),
        (((0, 4), (1, 5), (2, 6), (3, 7)), "all_gather", (1.0, 4.0)),
    ],
)
def test_what_crosses_a_socket_depends_on_the_pattern(
    groups: tuple[tuple[int, ...], ...], op: str, shares: tuple[float, float]
) -> None:
    """All-to-all crosses from every rank, a ring once, rings through every second rank twice."""
    assert crossing(groups, op, 4) == pytest.approx(shares)  # type: ignore[arg-type]


def test_all_to_all_of_eight_on_pcie_is_slower_than_a_ring_and_not_on_nvlink() -> None:
    """The same bytes: on PCIe the sockets' link decides, and across nodes one adapter does."""
    mesh = Mesh((("sequence", 8),))
    ring = replace(EXCHANGE, op="p2p")

    def seconds(message: Message, cluster: Cluster, mesh: Mesh = mesh) -> float:
        return message_cost(message, mesh, cluster, ["sequence"]).seconds

    assert seconds(EXCHANGE, L20) > 3 * seconds(ring, L20)
    assert seconds(EXCHANGE, H100) < 1.1 * seconds(ring, H100)
    four_nodes = Mesh((("sequence", 32),))
    gathered = replace(EXCHANGE, op="all_gather")
    assert seconds(EXCHANGE, H100, four_nodes) > 4 * seconds(gathered, H100, four_nodes)


def test_what_a_file_lacks_is_a_sentence(golden: Golden) -> None:
    """Too many ranks, an unknown type and an unknown kernel are refused with what there is."""
    with pytest.raises(Failure) as refused:
        cost(work(EXCHANGE, ranks=16), L20)
    golden(refused.value)
    with pytest.raises(Failure) as refused:
        DeviceRates(device=H100.device, dtype="float64").cost(PRODUCT)
    golden(refused.value, "second")
    rates = DeviceRates(device=H100.device, dtype="bfloat16", attention_kernel="mine")
    with pytest.raises(Failure) as refused:
        rates.cost(ATTENTION)
    golden(refused.value, "third")


def test_smaller_heads_take_longer_for_each_operation() -> None:
    """A score's exponential costs as much whatever the size of a head."""
    rates = DeviceRates(device=find("dgx-a100").device, dtype="bfloat16")
    seconds = [
        rates.cost(replace(ATTENTION, shape=(1, 16 * 128 // size, 16, 8192, 8192, size))).seconds
        for size in (32, 64, 96, 128)
    ]
    assert seconds == sorted(seconds, reverse=True)
