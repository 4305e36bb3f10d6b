"""The optimizer of a train step: its updates are one device's, and its memory is counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from helpers.examples import ALL
from helpers.gate_on_threads import CPU, prove, why_wrong
from helpers.golden import Golden
from helpers.thread_group import ThreadGroup
from helpers.variants import by_day, suited
from torch import Tensor, nn
from torch.optim import AdamW

from spbench.comm.fake import silent_transports
from spbench.comm.threaded import ThreadRendezvous, ThreadTransport, run_rank_threads
from spbench.layers.linear import part_of
from spbench.strategies.registry import load
from spbench.worker import measure as measuring
from spbench.worker import step
from spbench.worker.gate import GateResult
from spbench.worker.observer import Observer
from spbench.worker.reference import OneDevice
from spbench.worker.step import Step
from spbench.workload.case import COUNTED, Case
from spbench.workload.catalogue import find, with_settings
from spbench.workload.fields import DTYPE_BYTES
from spbench.workload.flops import parameters
from spbench.workload.workload import Workload

FLOAT32 = pytest.param("float32", marks=pytest.mark.long)
LARGE = ("hidden=192", "heads=6", "depth=1")
BLOCKS = () if ALL else ("depth=1",)
STRATEGIES = ("dsp", "ulysses", "megatron-sp", "rsa")


def shape(name: str = "axes-2d-uneven", *settings: str) -> Workload:
    return with_settings(find(name, "verify"), ["optimizer=adamw", *settings])


def caught(strategy: str, ranks: int, *settings: str) -> str:
    """The gate's complaint; an empty text means that the defect got through."""
    return why_wrong(prove(shape("axes-2d", *BLOCKS, *settings), load(strategy), ranks))


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.long), 3])
@pytest.mark.parametrize("strategy", by_day())
def test_two_updates_equal_one_devices(strategy: str, ranks: int) -> None:
    """Every weight after two steps of AdamW in float64, cut or whole, below 1e-9."""
    work = suited(strategy, shape("checkpointed", "dtype=float64", *BLOCKS))
    outcomes = prove(work, load(strategy), ranks)
    assert not why_wrong(outcomes)
    assert max(outcome.worst.relative for outcome in outcomes) < 1e-9


@pytest.mark.parametrize("dtype", [FLOAT32, "bfloat16", "float16"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_other_dtypes(strategy: str, dtype: str) -> None:
    """Each passes against its own tolerance."""
    assert not caught(strategy, 2, f"dtype={dtype}")


def test_gradients_of_nothing_but_rounding() -> None:
    """Cross-attention to one token: its queries' gradient is noise, and must not move a weight."""
    block = "[{attention: space}, {attention: time}, {cross_attention: 1}, {mlp: 2}]"
    assert not caught("megatron-sp", 2, f"block={block}", "dtype=float32")


def alone(dtype: str = "float64") -> Step:
    """One device's step, without a gate around it."""
    return Step(
        OneDevice().on(shape("axes-2d", *BLOCKS, f"dtype={dtype}"), 1), silent_transports(0, 1), CPU
    )


def weights(of: Step) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in of.model.named_parameters()}


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_timed_steps_keep_the_weights(dtype: str) -> None:
    """At a learning rate of 0 the arithmetic runs, and no weight moves by a bit."""
    one = alone(dtype)
    before, inputs = weights(one), one.seeded_inputs()
    for _ in range(3):
        one(*inputs)
    assert all(torch.equal(before[name], weight) for name, weight in weights(one).items())
    assert one.optimizer is not None
    assert all(float(state["step"]) == 3 for state in one.optimizer.state.values())
    moments = [state["exp_avg"] for state in one.optimizer.state.values()]
    assert all(moment.isfinite().all() and moment.any() for moment in moments)


def test_updates_are_adamws() -> None:
    """Two steps by the formula of Loshchilov and Hutter, written out."""
    one = alone()
    now, inputs = weights(one), one.seeded_inputs()
    assert one.optimizer is not None
    step.take_updates(one.optimizer, eps=0.5)
    first = {name: torch.zeros_like(weight) for name, weight in now.items()}
    second = {name: torch.zeros_like(weight) for name, weight in now.items()}
    for t in (1, 2):
        one(*inputs)
        for name, weight in one.model.named_parameters():
            assert weight.grad is not None
            first[name] = 0.9 * first[name] + 0.1 * weight.grad
            second[name] = 0.999 * second[name] + 0.001 * weight.grad**2
            size = (second[name] / (1 - 0.999**t)).sqrt() + 0.5
            now[name] -= step.LEARNING_RATE * first[name] / (1 - 0.9**t) / size
    torch.testing.assert_close(weights(one), now, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float64", FLOAT32])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("left_out", ["first", "last", "cut"])
def test_an_optimizer_that_skips_a_parameter(
    monkeypatch: pytest.MonkeyPatch, strategy: str, dtype: str, left_out: str
) -> None:
    """One weight of many keeps its value, or all weights that a rank holds a part of do."""
    right = step.adamw

    def wrong(every: Iterable[nn.Parameter]) -> AdamW:
        every = list(every)
        if left_out == "cut":
            return right([weight for weight in every if part_of(weight) is None])
        return right(every[1:] if left_out == "first" else every[:-1])

    prove(
        shape("axes-2d", *BLOCKS, f"dtype={dtype}"), load(strategy), 1
    )  # keeps one device's answer
    monkeypatch.setattr(step, "adamw", wrong)
    complaint = caught(strategy, 2, f"dtype={dtype}")
    plan = load(strategy).on(shape("axes-2d", *BLOCKS, f"dtype={dtype}"), 2)
    cuts = left_out != "cut" or plan.cuts_weights
    assert ("after 2 updates differs" in complaint) == cuts


def test_an_optimizer_with_other_gradients(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    """It takes half of each, as if the sum over two ranks were not there yet; the gradients that
    are compared are right."""
    right = AdamW.step

    def wrong(self: AdamW, *args: Any) -> Any:
        every = [weight for group in self.param_groups for weight in group["params"]]
        summed = [weight.grad for weight in every]
        for weight in every:
            weight.grad = weight.grad / 2
        right(self, *args)
        for weight, gradient in zip(every, summed, strict=True):
            weight.grad = gradient

    prove(shape("axes-2d", *BLOCKS, "dtype=float64"), load("dsp"), 1)
    monkeypatch.setattr(AdamW, "step", wrong)
    golden(caught("dsp", 2, "dtype=float64"), hide={r"by [\d.]+": "by N"})


def test_an_optimizer_that_forgets(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    """Moments that begin anew with every step."""
    right = AdamW.step

    def wrong(self: AdamW, *args: Any) -> Any:
        self.state.clear()
        return right(self, *args)

    prove(shape("axes-2d", *BLOCKS, "dtype=float64"), load("dsp"), 1)
    monkeypatch.setattr(AdamW, "step", wrong)
    golden(caught("dsp", 2, "dtype=float64"), hide={r"by [\d.]+": "by N"})


def measured(strategy: str, ranks: int, *settings: str) -> list[dict[str, Any]]:
    """What each rank measures of a step that is large beside its counts of steps."""
    work = shape("axes-2d", *LARGE, *settings)
    case = Case(workload=work, strategy=strategy, ranks=ranks, device="cpu", budget=COUNTED)
    meetings = [ThreadRendezvous(ranks) for _ in range(3)]

    def rank_main(transport: ThreadTransport) -> dict[str, Any]:
        group = ThreadGroup(transport.rank, meetings)
        return measuring.measure(case, load(strategy).on(work, ranks), group, Observer())

    return run_rank_threads(ranks, rank_main)


def counted(strategy: str, ranks: int, *settings: str) -> Iterator[tuple[int, int, float]]:
    """Each rank's counted bytes, by how much its peak is higher than without, and the arithmetic.

    That is two moments of each weight, where weights are cut of a part of those.
    """
    with_it = measured(strategy, ranks, *settings)
    without = measured(strategy, ranks, *settings, "optimizer=none")
    work = shape("axes-2d", *LARGE, *settings)
    held, parts = parameters(work), ranks if load(strategy).on(work, ranks).cuts_weights else 1
    each = 2 * DTYPE_BYTES[work.dtype] * (held.replicated + held.cuttable / parts)
    for fields, plain in zip(with_it, without, strict=True):
        assert plain["optimizer_bytes"] is None
        more = fields["peak_allocated_bytes"] - plain["peak_allocated_bytes"]
        yield fields["optimizer_bytes"], more, each


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.long)])
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.long), 3])
@pytest.mark.parametrize(
    "strategy",
    ["dsp", "megatron-sp", *(pytest.param(s, marks=pytest.mark.long) for s in ("ulysses", "rsa"))],
)
def test_memory_is_as_computed(strategy: str, ranks: int, dtype: str) -> None:
    """Within 1 % of two moments a weight that the rank holds; and the peak is so much higher."""
    for bytes_, more, arithmetic in counted(strategy, ranks, f"dtype={dtype}"):
        assert bytes_ == pytest.approx(arithmetic, rel=0.01)
        # Storages are rounded up to 512 bytes, counts of steps, too.
        assert more == pytest.approx(arithmetic, rel=0.02 if dtype == "float32" else 0.04)


def test_a_state_that_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moments that are no part of the bytes, or no part of the peak: the arithmetic tells."""
    right = step.state_tensors
    monkeypatch.setattr(step, "state_tensors", lambda kept: right(kept)[::3])
    ((bytes_, more, arithmetic),) = counted("dsp", 1)
    assert bytes_ < 0.6 * arithmetic
    assert more == pytest.approx(arithmetic, rel=0.02)
    monkeypatch.setattr(measuring, "state_tensors", lambda _: [])
    ((_, more, arithmetic),) = counted("dsp", 1)
    assert more < 0.1 * arithmetic


def test_the_gate_reports_the_first_steps_bytes() -> None:
    """Steps that update weights send too; they are not among the bytes that were predicted."""
    outcomes: list[GateResult] = prove(
        shape("axes-2d", *BLOCKS, "dtype=float64"), load("ulysses"), 2
    )
    assert all(sum(outcome.sent.values()) > 0 for outcome in outcomes)
    assert all(outcome.sent == outcome.predicted for outcome in outcomes)
