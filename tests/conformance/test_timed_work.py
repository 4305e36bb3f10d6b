"""Who computes or sends less looks faster: steps that do less than the first ones are caught.

Each test plants one that gives right numbers in the first steps, and looks at a launch as ``run``
makes it, on ranks that are threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from helpers.complaints import (
    BYTES_OF_SILENT,
    BYTES_OF_TIMED,
    DRIFTS,
    IN_TIMED_STEPS,
    NO_UPDATE,
    OF_FLIPPED,
)
from helpers.gate_on_threads import arrived
from helpers.golden import Golden
from helpers.run_on_threads import BRIEF, complaint, run_on_threads, verify_on_threads
from torch import Tensor
from torch.optim import AdamW

from spbench.comm import collectives
from spbench.comm.gradient_buckets import GradientSum
from spbench.comm.group import ShareOfGroup
from spbench.comm.transport import DONE
from spbench.layers import heads, linear
from spbench.layers.attention import Scores
from spbench.results.hand_over import Sample
from spbench.worker.observer import Observer
from spbench.worker.run_case import run_case
from spbench.worker.step import Step
from spbench.workload.case import Case, MeasurementBudget
from spbench.workload.catalogue import find, with_settings
from spbench.workload.workload import Workload

Attend = Callable[[Tensor, Tensor, Tensor, Scores], Tensor]


ONE_BLOCK = {"depth": 1, "block": "[{attention: space}, {attention: time}, {mlp: 2.6}]"}
"""All that faults are planted in: an attention with switches, one without, weights, updates."""


def whole_shape(**settings: Any) -> Workload:
    """Of two blocks, with cross-attention, too: what is right is to stand on it."""
    return with_settings(
        find("axes-2d-uneven", "verify"), [f"{k}={v}" for k, v in settings.items()]
    )


def shape(**settings: Any) -> Workload:
    return whole_shape(**(ONE_BLOCK | settings))


class Now:
    """What a rank, which is a thread, is doing: the number of its step, the gate's being 1; whether
    it is a silent one; and how many calls of what was planted it has made in it."""

    def __init__(self) -> None:
        self.of_ranks = threading.local()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.of_ranks, name, 0)

    def begin(self) -> None:
        self.of_ranks.step, self.of_ranks.calls = self.step + 1, 0

    def call(self) -> tuple[int, int]:
        """Names a call by the rank and its place in the step."""
        self.of_ranks.calls = self.calls + 1
        return threading.get_ident(), self.calls


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    now, real, silenced = Now(), Step.__call__, Step.silenced

    def counted(self: Step, *args: Any) -> Any:
        if self.ranks > 1:
            now.begin()
        return real(self, *args)

    @contextmanager
    def noted(self: Step) -> Iterator[None]:
        now.of_ranks.is_silent = True
        with silenced(self):
            yield
        now.of_ranks.is_silent = False

    monkeypatch.setattr(Step, "__call__", counted)
    monkeypatch.setattr(Step, "silenced", noted)
    return now


def plant(monkeypatch: pytest.MonkeyPatch, make: Callable[[Attend], Attend]) -> None:
    """Ulysses's attention becomes what ``make`` makes of the right one."""
    monkeypatch.setattr(heads, "attend_whole", make(heads.attend_whole))


class Kept(torch.autograd.Function):
    """Gives an output and gradients of an earlier step."""

    @staticmethod
    def forward(ctx: Any, kept: dict[str, Tensor], *qkv: Tensor) -> Tensor:  # noqa: ARG004
        ctx.kept = kept
        return kept["out"].clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override] # noqa: ARG004
        return None, ctx.kept["q"], ctx.kept["k"], ctx.kept["v"]


def keep(kept: dict[str, Tensor], out: Tensor, **inputs: Tensor) -> Tensor:
    """Keeps what a right step gives, backward too."""
    kept["out"] = out.detach().clone()
    for name, x in inputs.items():
        if x.requires_grad:
            x.register_hook(lambda grad, name=name: kept.update({name: grad.clone()}))
    return out


@pytest.mark.parametrize("mode", ["train", "forward"])
@pytest.mark.parametrize("since", [4, 7])
def test_an_output_kept_from_an_earlier_step_in_run(
    monkeypatch: pytest.MonkeyPatch, now: Now, mode: str, since: int
) -> None:
    """From the warm-up on, and from the second timed step on."""
    kept: dict[Any, dict[str, Tensor]] = {}

    def make(right: Attend) -> Attend:
        def cached(q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> Tensor:
            mine = kept.setdefault(now.call(), {})
            if now.step >= since and mine["out"].shape == q.shape:
                return Kept.apply(mine, q, k, v)
            return keep(mine, right(q, k, v, scores), q=q, k=k, v=v)

        return cached

    plant(monkeypatch, make)
    words = complaint(run_on_threads(shape(mode=mode), "ulysses", 2))
    assert words.startswith("wrong_result: ")
    assert IN_TIMED_STEPS in words


@pytest.mark.parametrize("factor", [1.005, 1.05, 0.995])
@pytest.mark.parametrize("since", [5, 8])
@pytest.mark.parametrize("what", ["output, forward", "output", "gradient of q", "of a weight"])
def test_a_value_in_bfloat16_that_is_little_off_in_run(
    monkeypatch: pytest.MonkeyPatch, now: Now, what: str, since: int, factor: float
) -> None:
    """From the warm-up on, and from a timed step on: attention's output, dQ, or a weight's sum. The
    same rounding gives the same numbers, so 25 % between strategies are not let pass here."""
    sum_gradients = GradientSum.finish

    def make(right: Attend) -> Attend:
        def planted(q: Tensor, *rest: Any) -> Tensor:
            if now.step < since or "weight" in what:
                return right(q, *rest)
            if "gradient" in what and q.requires_grad:
                q.register_hook(lambda grad: grad * factor)
                return right(q, *rest)
            return right(q, *rest) * factor

        return planted

    def planted_sum(self: GradientSum) -> None:
        sum_gradients(self)
        if now.step >= since and "weight" in what:
            weight = self._buckets[0].parameters[0]
            assert weight.grad is not None
            weight.grad *= factor

    plant(monkeypatch, make)
    monkeypatch.setattr(GradientSum, "finish", planted_sum)
    work = shape(dtype="bfloat16", mode="forward" if "forward" in what else "train")
    words = complaint(run_on_threads(work, "ulysses", 2))
    assert IN_TIMED_STEPS in words


@pytest.mark.parametrize("since", [None, 5, 8])
def test_a_backward_that_adds_in_another_order_each_time_in_run(
    monkeypatch: pytest.MonkeyPatch, now: Now, since: int | None
) -> None:
    """As a GPU's does: the last digit of some of dQ is another one each time. A right step is not
    blamed for it; one whose output is 0.5 % off is, as nothing shakes that."""

    def make(right: Attend) -> Attend:
        def shaken(q: Tensor, *rest: Any) -> Tensor:
            factor = 1.005 if since is not None and now.step >= since else 1.0

            def shake(grad: Tensor) -> Tensor:
                digits = 2.0**-7 * torch.randint(-1, 2, grad.shape) * (torch.rand(grad.shape) < 0.1)
                return (grad * (1 + digits)).to(grad.dtype)

            if q.dtype == torch.bfloat16:  # not in the float32 copy of the gate's step
                q.register_hook(shake)
            return right(q, *rest) * factor

        return shaken

    plant(monkeypatch, make)
    samples = run_on_threads(whole_shape(dtype="bfloat16"), "ulysses", 2)
    if since is None:
        assert complaint(samples) == ""
        assert 0 < (samples[0].repeat_error or 0) < 0.02
    else:
        assert "output" in complaint(samples)
        assert IN_TIMED_STEPS in complaint(samples)


def test_an_output_kept_from_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate sees it: its second step has other inputs."""
    kept: dict[Any, Tensor] = {}

    def make(right: Attend) -> Attend:
        def cached(q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> Tensor:
            key = (threading.get_ident(), scores.dims, q.shape)
            return kept.setdefault(key, right(q, k, v, scores).detach())

        return cached

    work = shape(mode="forward", block="[{attention: space}, {attention: time}]", depth=1)
    plant(monkeypatch, make)
    said = verify_on_threads(work, "ulysses", 2)
    assert OF_FLIPPED in said
    assert OF_FLIPPED in complaint(run_on_threads(work, "ulysses", 2))


def test_switches_that_are_not_sent_from_the_fourth_step_on_in_run(
    monkeypatch: pytest.MonkeyPatch, now: Now, golden: Golden
) -> None:
    """What came earlier is taken once more: the bytes of each block tell."""
    right, kept = collectives.make_whole, dict[Any, list[Tensor]]()

    def lazy(transport: Any, xs: Any, *more: Any) -> Any:
        key = now.call()
        if now.step < 4 or transport.size == 1:
            kept[key] = arrived(right(transport, xs, *more))
        return DONE, [x.clone() for x in kept[key]]

    monkeypatch.setattr(collectives, "make_whole", lazy)
    golden(complaint(run_on_threads(shape(), "ulysses", 2)))


@pytest.mark.parametrize("steps", [3, 20, 30])
@pytest.mark.parametrize("parity", [0, 1])
def test_attention_in_every_other_step_alone_in_run(
    monkeypatch: pytest.MonkeyPatch, now: Now, parity: int, steps: int
) -> None:
    """In blocks of one step, of two and of three."""

    def make(right: Attend) -> Attend:
        def lazy(q: Tensor, *rest: Any) -> Tensor:
            return q if now.step > 3 and now.step % 2 == parity else right(q, *rest)

        return lazy

    plant(monkeypatch, make)
    budget = MeasurementBudget(
        min_warmup=1, max_warmup=1, min_iterations=steps, max_iterations=steps, silent=False
    )
    work = shape(mode="forward", depth=1)
    words = complaint(run_on_threads(work, "ulysses", 2, budget=budget))
    assert DRIFTS in words


def test_an_optimizer_that_is_not_called_from_the_fourth_step_on_in_run(
    monkeypatch: pytest.MonkeyPatch, now: Now
) -> None:
    """Its learning rate is 0 in timed steps: no number tells, but it counts its own updates."""
    real = AdamW.step

    def lazy(self: AdamW, *args: Any) -> Any:
        return None if now.step >= 4 else real(self, *args)

    monkeypatch.setattr(AdamW, "step", lazy)
    words = complaint(run_on_threads(shape(optimizer="adamw"), "ulysses", 2))
    assert words == f"wrong_result: {NO_UPDATE.format('timed')}"


def test_weights_that_are_kept_from_an_earlier_step_in_run(
    monkeypatch: pytest.MonkeyPatch, now: Now
) -> None:
    """As if a gather of cut weights were made once for all steps."""
    right, kept = linear.product, dict[Any, Tensor]()

    def cached(x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
        key = (threading.get_ident(), id(weight))
        if now.step <= 3:
            kept[key] = weight.detach().clone()
            return right(x, weight, *rest)
        return right(x, weight + (kept[key] - weight).detach(), *rest)

    monkeypatch.setattr(linear, "product", cached)
    words = complaint(run_on_threads(shape(), "ulysses", 2))
    assert DRIFTS in words


def remembers(right: Attend, kept: dict[Any, list[Tensor]]) -> Attend:
    """Attention that looks its result up by the values of what it is given."""

    def looked_up(q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> Tensor:
        mine = kept.setdefault(threading.get_ident(), [])
        for one, out in zip(mine[::2], mine[1::2], strict=True):
            if q.shape == one.shape and torch.equal(q, one):
                return out
        mine += [q, right(q, k, v, scores)]
        return mine[-1]

    return looked_up


def test_an_output_that_is_looked_up_by_its_input_in_run(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Right on both inputs, and all is sent; a step behind the timed ones computes less."""
    kept: dict[Any, list[Tensor]] = {}
    plant(monkeypatch, lambda right: remembers(right, kept))
    words = complaint(run_on_threads(shape(mode="forward"), "ulysses", 2))
    golden(words, hide={r"\d[\d,]*": "N"})


def test_what_the_first_step_sets_up_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that depends on nothing that changes, and is made once."""
    kept: dict[Any, Tensor] = {}

    def make(right: Attend) -> Attend:
        def with_table(q: Tensor, *rest: Any) -> Tensor:
            key = (threading.get_ident(), q.shape)
            kept[key] = kept[key] if key in kept else torch.ones_like(q).exp().log()
            return right(q, *rest) * kept[key]

        return with_table

    plant(monkeypatch, make)
    samples = run_on_threads(whole_shape(), "ulysses", 2)
    assert complaint(samples) == ""
    assert samples[0].compute_ms and samples[0].compute_note == ""
    assert verify_on_threads(whole_shape(), "ulysses", 2) == ""


@pytest.mark.parametrize("optimizer", ["none", "adamw"])
def test_right_steps_compare_with_silent_ones(optimizer: str) -> None:
    """Nothing is planted, and nothing is wrong; AdamW's own counting is no work of a step."""
    samples = run_on_threads(whole_shape(optimizer=optimizer), "megatron-tp", 2)
    assert complaint(samples) == ""
    assert all(sample.compute_ms and not sample.compute_note for sample in samples)
    assert verify_on_threads(whole_shape(optimizer=optimizer), "megatron-tp", 2) == ""


def silent_note(workload: Workload) -> str:
    """Why silent times are blank; the rest of the row is sound."""
    samples = run_on_threads(workload, "ulysses", 2)
    assert complaint(samples) == ""
    assert all(sample.compute_ms is None for sample in samples)
    (note,) = {
        sample.compute_note for sample in samples if "another rank" not in sample.compute_note
    }
    return note


@pytest.mark.parametrize("since", [0, 7])
@pytest.mark.parametrize("word", ["less", "more"])
def test_silent_steps_that_do_another_amount_of_work(
    monkeypatch: pytest.MonkeyPatch, now: Now, word: str, since: int
) -> None:
    """Without attention, or with more of it: what communication adds would be too much, or too
    little. From the first on, and behind the first that is looked at."""

    def make(right: Attend) -> Attend:
        def planted(q: Tensor, *rest: Any) -> Tensor:
            if not now.is_silent or now.step < since:
                return right(q, *rest)
            return q if word == "less" else right(q, *rest) + 0 * right(q, *rest)

        return planted

    plant(monkeypatch, make)
    assert f"bytes {word} " in silent_note(shape())
    if since == 0:
        assert f"bytes {word} " in verify_on_threads(shape(), "ulysses", 2)


def test_silent_steps_without_their_collectives(monkeypatch: pytest.MonkeyPatch, now: Now) -> None:
    """Neither packed nor counted: what is not sent is still to be handed over."""
    right, kept = collectives.make_whole, dict[Any, list[Tensor]]()

    def lazy(transport: Any, xs: Any, *more: Any) -> Any:
        key = now.call()
        if not now.is_silent:
            kept[key] = arrived(right(transport, xs, *more))
        return DONE, [x.clone() for x in kept[key]]

    monkeypatch.setattr(collectives, "make_whole", lazy)
    assert BYTES_OF_SILENT in silent_note(shape())


def test_silent_steps_without_an_optimizer(monkeypatch: pytest.MonkeyPatch, now: Now) -> None:
    """From the second on."""
    real = AdamW.step

    def lazy(self: AdamW, *args: Any) -> Any:
        return None if now.is_silent and now.step > 6 else real(self, *args)

    monkeypatch.setattr(AdamW, "step", lazy)
    note = silent_note(shape(optimizer="adamw"))
    assert note == NO_UPDATE.format("silent")


def share_of(workload: Workload) -> Sample:
    """The sample of one rank's share of two."""
    case = Case(
        workload=workload,
        strategy="ulysses",
        ranks=2,
        device="cpu",
        kind="one_gpu_share",
        budget=BRIEF,
    )
    return run_case(case, ShareOfGroup(torch.device("cpu"), 2), Observer())


def test_a_share_that_does_less(monkeypatch: pytest.MonkeyPatch, now: Now) -> None:
    """Its numbers are random, but what it would send, its updates and its work are looked at."""
    assert share_of(shape(optimizer="adamw")).status == "ok"
    now.of_ranks.step = 0
    real, right = AdamW.step, collectives.make_whole
    kept: dict[Any, list[Tensor]] = {}

    def never(self: AdamW, *args: Any) -> Any:
        return None if now.step >= 5 else real(self, *args)

    def lazy(transport: Any, xs: Any, *more: Any) -> Any:
        key = now.call()
        if now.step < 5 or transport.size == 1:
            kept[key] = arrived(right(transport, xs, *more))
        return DONE, [x.clone() for x in kept[key]]

    with monkeypatch.context() as lazy_optimizer:
        lazy_optimizer.setattr(AdamW, "step", never)
        sample = share_of(shape(optimizer="adamw"))
        assert (sample.status, sample.reason) == ("wrong_result", NO_UPDATE.format("timed"))
    now.of_ranks.step = 0
    monkeypatch.setattr(collectives, "make_whole", lazy)
    sample = share_of(shape())
    assert sample.status == "wrong_result" and BYTES_OF_TIMED in sample.reason
