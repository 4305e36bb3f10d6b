"""What ``verify`` proves of all strategies: each with the options that people run it with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner
from helpers.complaints import DIFFERS
from helpers.run_on_threads import run_on_threads, verify_on_threads
from helpers.variants import variants

from spbench.cli import verify_command
from spbench.model.transformer import Transformer
from spbench.strategies import registry
from spbench.strategies.registry import VENDORS, forms_of, load, places
from spbench.strategies.ulysses import Ulysses
from spbench.sweep.verification import FORM_SHAPES, checks_for
from spbench.workload.case import GateCheck
from spbench.workload.catalogue import find, with_settings
from spbench.workload.config_names import names

RUN_BY_PEOPLE = {
    "megatron-sp:tp=2",
    "usp:ulysses=2",
    "ulysses:padded",
    "kv-gather:gather-again",
    "dsp:inner=2",
}
SHAPES = [find(name, "verify") for name in names("verify")]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[GateCheck]:
    """The checks that ``verify`` would make."""
    checks: list[GateCheck] = []

    def verify(wanted: Sequence[GateCheck], *_: Any) -> list[Any]:
        checks.extend(wanted)
        return []

    monkeypatch.setattr(verify_command, "verify", verify)
    return checks


def test_all_is_every_strategy_in_the_forms_that_people_run(asked: list[GateCheck]) -> None:
    """Every flag, sizes of groups, guidance in groups of ranks; an optimizer; the fused adaLN."""
    CliRunner().invoke(verify_command.verify_command, ["-s", "all", "--gpus", "2"])
    proved = {check.name for check in asked}
    assert {*places(), *RUN_BY_PEOPLE} < proved
    assert {f"{name} cfg=2" for name in (*places(), *RUN_BY_PEOPLE)} < proved
    assert {*variants()} <= proved, "a flag that nothing proves"
    shapes = {check.workload.name: check.workload for check in asked}
    assert shapes["deep"].optimizer == "adamw"
    assert (shapes["deep"].depth, shapes["deep"].samples) == (5, 1)
    assert shapes["guided"].guidance == 2
    assert {*FORM_SHAPES} <= {*shapes}


def test_names_are_proved_as_they_are_given(asked: list[GateCheck]) -> None:
    """Who asks for one strategy, or for a workload, gets no others."""
    CliRunner().invoke(verify_command.verify_command, ["-s", "ulysses", "--gpus", "2"])
    assert {check.name for check in asked} == {"ulysses"}
    asked.clear()
    CliRunner().invoke(
        verify_command.verify_command, ["-s", "all", "--gpus", "2", "-w", "latte-1-small"]
    )
    assert {check.name for check in asked} == {*places()}


class PlugIn(Ulysses):  # type: ignore[misc]
    """A strategy of another package, with a form of its own."""

    forms: ClassVar[tuple[str, ...]] = ("shard-axis=space",)


def test_plug_ins_name_their_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list is the strategies' own."""
    monkeypatch.setattr(registry, "plug_ins", lambda: {"mine": "some:Class"})
    monkeypatch.setattr(registry, "class_of", lambda name, where: PlugIn)
    assert forms_of(["mine"]) == ["mine:shard-axis=space"]


@pytest.mark.parametrize("text", forms_of([*places()]))
def test_every_form_runs_somewhere(text: str) -> None:
    """On 4 ranks, on one of the shapes that forms are proved on."""
    strategy = load(text)
    shapes = [check.workload for check in checks_for([], SHAPES, forms=[text])]
    assert any(not (strategy.misfit(x) or strategy.why_not(x, 4)) for x in shapes)


@pytest.mark.parametrize("strategy", ["dsp:chunks=3", "ulysses:chunks=3"])
@pytest.mark.parametrize("modulation", ["none", "per_sample"])
def test_chunks_are_sent_one_by_one(strategy: str, modulation: str) -> None:
    """As many bytes in more transfers, in forward and in backward: it is proved where it happens.

    Time is whole again behind the mlp, and before the next attention along it is cut: of DSP's
    switches one follows an mlp. Ulysses' heads, 8 on 2 ranks, go four a rank.
    """
    settings = ["axes={time: 6, space: 12}", "heads=8", f"modulation={modulation}", "dtype=float64"]
    work = with_settings(find("axes-2d", "verify"), settings)
    whole, in_chunks = (
        [sample.collectives for sample in run_on_threads(work, name, 2)]
        for name in (strategy.partition(":")[0], strategy)
    )
    switches = "forward.all_to_all", "backward.all_to_all"
    for before, now in zip(whole, in_chunks, strict=True):
        assert before is not None and now is not None
        assert all(now[name] > before[name] for name in switches)


@pytest.mark.parametrize("strategy", ["dsp:chunks=2", "ulysses:chunks=2"])
@pytest.mark.parametrize("recomputes", ["full", "selective"])
def test_chunks_where_forward_runs_again(strategy: str, recomputes: str) -> None:
    """What backward runs again sends what is predicted, and waits for all of it."""
    settings = [f"checkpointing={recomputes}", "axes={time: 6, space: 12}", "dtype=float64"]
    assert (
        verify_on_threads(with_settings(find("checkpointed", "verify"), settings), strategy, 2)
        == ""
    )


def test_a_wrong_fourth_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """No reduced workload has one: a shape of five blocks is proved whole."""
    real = Transformer.__init__

    def wrong(self: Transformer, plan: Any, comm: Any, stage: Any) -> None:
        real(self, plan, comm, stage)
        for block in [*self.blocks.values()][3:4] if comm.size > 1 else ():
            for residual in block.residuals:
                residual.register_forward_hook(lambda module, given, out: (out[0] * 1.02, out[1]))

    monkeypatch.setattr(Transformer, "__init__", wrong)
    assert verify_on_threads(find("checkpointed", "verify"), "dsp", 2) == ""
    assert DIFFERS in verify_on_threads(find("deep", "verify"), "dsp", 2)


def test_vendors_bring_the_forms_of_their_code(asked: list[GateCheck]) -> None:
    """On any workload, of the built-in shapes too: stock and patched are other code."""
    words = ["-s", "vendors", "--gpus", "2", "-w", "attention-alone,latte-1-small"]
    CliRunner().invoke(verify_command.verify_command, words)
    assert {check.workload.name for check in asked} == {"attention-alone", "latte-1-small"}
    proved = {check.name for check in asked}
    assert {*VENDORS} < proved
    assert {"torch-cp:alltoall", "yunchang-ring:patched"} < proved
