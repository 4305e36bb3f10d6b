"""What is timed is what was proved: defects that a gate on a small shape does not see are caught.

Each test plants one, and looks at a launch as ``run`` makes it, on ranks that are threads; where
the gate alone can see it, ``verify`` is asked too. Tests of what only timed steps show end in
``in_run``.
"""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.builders import a_case
from helpers.complaints import DIFFERS, IN_TIMED_STEPS, SILENT_WRITES
from helpers.run_on_threads import complaint, run_on_threads, verify_on_threads
from torch import Tensor

from spbench.comm import gradient_buckets
from spbench.comm.fake import SilentTransport
from spbench.layers import heads
from spbench.model.transformer import Transformer
from spbench.strategies import ulysses
from spbench.sweep.first_launch import FOLDER, compare_with_first
from spbench.worker import reference
from spbench.worker.step import Step
from spbench.workload.case import Case
from spbench.workload.catalogue import find, with_settings
from spbench.workload.workload import Workload


def shape(name: str = "axes-2d-uneven", **settings: Any) -> Workload:
    return with_settings(find(name, "verify"), [f"{k}={v}" for k, v in settings.items()])


ONE_BLOCK = {"depth": 1, "block": "[{attention: space}, {attention: time}, {mlp: 2.6}]"}


@pytest.fixture
def reduced_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    """No workload fits whole."""
    monkeypatch.setattr(reference, "GATE_FLOPS", {"cpu": 0.0})


@pytest.fixture
def smallest_gates(monkeypatch: pytest.MonkeyPatch, reduced_gates: None) -> None:
    """The gate's device can run next to nothing."""
    monkeypatch.setattr(reference, "REDUCED_FLOPS", {"cpu": 0.0})


@pytest.fixture
def alone_in_c10d() -> Iterator[None]:
    """A process group of one, so that collectives of torch.distributed can be called here."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_right_steps_agree_with_one_device() -> None:
    """Nothing is planted: equal to itself to the last digit, and to one device within rounding."""
    samples = run_on_threads(shape(), "ulysses", 2)
    assert complaint(samples) == ""
    first = samples[0]
    assert first.agreed_with == "one device"
    assert first.repeat_error == 0.0
    assert 0 < (first.agreement_error or 0) < 1e-5
    assert first.fingerprint and samples[1].fingerprint is None
    assert first.compute_ms and first.compute_note == ""


def test_attention_skipped_from_the_fourth_step_on_in_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gate and memory pass are right, what is timed is faster and wrong."""
    steps: dict[int, int] = {}
    real, right = Step.__call__, heads.attend_whole

    def counted(self: Step, *args: Any) -> Any:
        if self.ranks > 1:
            steps[threading.get_ident()] = steps.get(threading.get_ident(), 0) + 1
        return real(self, *args)

    def skipped(q: Tensor, *rest: Any) -> Tensor:
        return q if steps.get(threading.get_ident(), 0) >= 4 else right(q, *rest)

    monkeypatch.setattr(Step, "__call__", counted)
    monkeypatch.setattr(heads, "attend_whole", skipped)
    words = complaint(run_on_threads(shape(**ONE_BLOCK), "ulysses", 2))
    assert IN_TIMED_STEPS in words
    assert words.startswith("wrong_result: ")


def test_nan_in_a_gradient_of_every_timed_step_in_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The input's gradient is sound; that of one weight is not, on one rank."""
    real = Step.__call__
    steps = itertools.count()

    def broken(self: Step, *args: Any) -> Any:
        out = real(self, *args)
        if self.ranks > 1 and self.rank == 1 and next(steps) > 2:
            parameter = dict(self.model.named_parameters())[
                "blocks.0.residuals.0.sublayer.out.bias"
            ]
            assert parameter.grad is not None
            parameter.grad[0] = torch.nan
        return out

    monkeypatch.setattr(Step, "__call__", broken)
    samples = run_on_threads(shape(**ONE_BLOCK), "ulysses", 2)
    assert {sample.status for sample in samples} == {"wrong_result"}
    words = "gradient of blocks.0.residuals.0.sublayer.out.bias is not finite in the timed steps"
    assert samples[1].reason == words


def test_every_bucket_but_the_first_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timed model has one bucket; the gate's has several."""
    real = gradient_buckets.GradientSum.finish

    def halved(self: gradient_buckets.GradientSum) -> None:
        real(self)
        for bucket in self._buckets[1:]:
            for parameter in bucket.parameters:
                assert parameter.grad is not None
                parameter.grad *= 1 if self._comm.size == 1 else 0.5

    monkeypatch.setattr(gradient_buckets.GradientSum, "finish", halved)
    assert "gradient of" in complaint(run_on_threads(shape(), "dsp", 2))
    assert "gradient of" in verify_on_threads(shape(), "dsp", 2)


@pytest.mark.parametrize("is_backward", [False, True])
def test_a_collective_that_bypasses_comm(
    monkeypatch: pytest.MonkeyPatch, alone_in_c10d: None, is_backward: bool
) -> None:
    """Right values, and bytes as predicted; it is seen in backward, too."""
    right = ulysses.UlyssesPlan.attend

    def secretive(self: Any, q: Tensor, *rest: Any) -> Tensor:
        out = right(self, q, *rest)
        if is_backward:
            out.register_hook(lambda grad: dist.all_reduce(grad.clone()))  # type: ignore[no-untyped-call]
        else:
            dist.all_reduce(q.detach().clone())
        return out

    monkeypatch.setattr(ulysses.UlyssesPlan, "attend", secretive)
    work = shape(block="[{attention: space}, {attention: time}]")
    words = "a collective that comm/ does not count: c10d::allreduce_ (4 calls)"
    assert words in complaint(run_on_threads(work, "ulysses", 2))
    assert words in verify_on_threads(work, "ulysses", 2)


def scale_attention(monkeypatch: pytest.MonkeyPatch, is_wrong: Callable[[Tensor], bool]) -> None:
    """2 % off on several ranks, where ``is_wrong`` says so of queries (B, *axes, Z, D)."""
    right = heads.attend_whole

    def wrong(q: Tensor, k: Tensor, v: Tensor, scores: Any) -> Tensor:
        return right(q, k, v, scores) * (1.02 if is_wrong(q) else 1.0)

    monkeypatch.setattr(heads, "attend_whole", wrong)


BLOCKS = "[{attention: space}, {attention: time}, {mlp: 2}]"
FOUR_BLOCKS = {"depth": 4, "block": BLOCKS, "batch": 1}
BEYOND = {
    "heads above 12": (FOUR_BLOCKS | {"hidden": 80}, lambda q: q.shape[-1] > 12),
    "axes above 512": (
        FOUR_BLOCKS | {"hidden": 16, "heads": 2, "axes": "{time: 2, space: 516}"},
        lambda q: 516 in q.shape,
    ),
}


@pytest.mark.parametrize("what", BEYOND)
def test_a_scale_that_is_wrong_by_2_percent(
    monkeypatch: pytest.MonkeyPatch, reduced_gates: None, what: str
) -> None:
    """The reduced workload keeps head size and longest axis while time and memory allow."""
    settings, is_wrong = BEYOND[what]
    work = shape(**settings)
    right = run_on_threads(work, "ulysses", 2)
    assert complaint(right) == ""
    assert "(3 of 4 blocks)" in right[0].gated_on
    scale_attention(monkeypatch, is_wrong)
    assert DIFFERS in complaint(run_on_threads(work, "ulysses", 2))
    assert DIFFERS in verify_on_threads(work, "ulysses", 2)


@pytest.mark.parametrize(
    "what", ["heads above 12", pytest.param("axes above 512", marks=pytest.mark.long)]
)
def test_a_scale_beyond_the_reach_of_the_gate_in_run(
    monkeypatch: pytest.MonkeyPatch, smallest_gates: None, tmp_path: Path, what: str
) -> None:
    """The smallest reduced workload shows nothing, but the run's first launch tells."""
    settings, is_wrong = BEYOND[what]
    work = shape(**settings)
    dsp, ulysses = (
        Case(workload=work, strategy=name, ranks=2, device="cpu") for name in ("dsp", "ulysses")
    )
    assert compare_with_first(tmp_path, dsp, run_on_threads(work, "dsp", 2)) is None
    shutil.copytree(tmp_path / FOLDER, tmp_path / "later" / FOLDER)
    good = compare_with_first(tmp_path, ulysses, run_on_threads(work, "ulysses", 2))
    assert good is not None and good.why_wrong is None
    assert good.columns["agreed_with"] == f"{a_case().label} ranks"
    assert 0 < good.columns["agreement_error"] < 1e-5
    scale_attention(monkeypatch, is_wrong)
    samples = run_on_threads(work, "ulysses", 2)
    assert complaint(samples) == ""
    assert "head size 8" in samples[0].gated_on or "space 4 of 516" in samples[0].gated_on
    bad = compare_with_first(tmp_path / "later", ulysses, samples)
    assert bad is not None and bad.why_wrong is not None
    assert "dsp on 2 " in bad.why_wrong
    assert "one of" in bad.why_wrong


def test_a_defect_from_the_third_block_on(
    monkeypatch: pytest.MonkeyPatch, smallest_gates: None
) -> None:
    """The smallest reduced workload has three blocks."""
    real = Transformer.__init__

    def wrong(self: Transformer, plan: Any, comm: Any, stage: Any) -> None:
        real(self, plan, comm, stage)
        for block in [*self.blocks.values()][2:] if comm.size > 1 else ():
            for residual in block.residuals:
                residual.register_forward_hook(lambda module, given, out: (out[0] * 1.02, out[1]))

    monkeypatch.setattr(Transformer, "__init__", wrong)
    work = shape(**FOUR_BLOCKS)
    assert DIFFERS in complaint(run_on_threads(work, "dsp", 2))
    assert DIFFERS in verify_on_threads(work, "dsp", 2)


def copied(part: Tensor) -> Tensor:
    return part.copy_(part.clone())


def multiplied(part: Tensor) -> Tensor:
    return torch.mul(part, 1.0, out=part)


@pytest.mark.parametrize("copy", [copied, multiplied])
def test_a_silent_pass_that_copies_fifty_times(
    monkeypatch: pytest.MonkeyPatch, copy: Callable[[Tensor], Tensor]
) -> None:
    """Its time would be called computation: it stays blank, and the row says why."""
    real = SilentTransport._fill

    @torch.no_grad()
    def busy(self: SilentTransport, received: Any) -> Any:
        for part in list(received) * 50:
            copy(part)
        return real(self, received)

    monkeypatch.setattr(SilentTransport, "_fill", busy)
    assert SILENT_WRITES in verify_on_threads(shape(), "dsp", 2)
    samples = run_on_threads(shape(), "dsp", 2)
    assert complaint(samples) == ""
    for sample in samples:
        assert sample.compute_ms is None
        assert SILENT_WRITES in sample.compute_note
        assert "bytes more" in sample.compute_note
