"""What a strategy chooses itself, its layout and its options, sends as few bytes as any other way.

A dear choice leaves every number right, and bytes as predicted from it: only the check of plans
sees it (``helpers/plan_check.py``). Each test of a defect plants one.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.examples import ALL
from helpers.plan_check import why_not_cheapest
from helpers.variants import variants

from spbench.strategies import usp
from spbench.strategies.dsp import DSP
from spbench.strategies.fixed_axis import Known
from spbench.strategies.registry import load, places
from spbench.strategies.ulysses import Ulysses
from spbench.strategies.usp import USP
from spbench.workload.catalogue import find, with_settings
from spbench.workload.config_names import names
from spbench.workload.traffic import waited_bytes
from spbench.workload.workload import Workload

SHAPES = [find(name, "verify") for name in names("verify")]
CHOOSING = [*variants(), "usp:across=kv-gather", "usp:across=attention-2d"]
CHOOSING += ["megatron-sp:tp=2:across=usp", "dsp:across=usp"]
RANKS = (2, 3, 4, 6, 8, 12) if ALL else (4, 6)


@pytest.mark.parametrize("strategy", CHOOSING)
def test_no_choice_is_dearer_than_another(strategy: str) -> None:
    """On every shape that it runs on, whole numbers of heads and checkpointing included."""
    for shape in SHAPES:
        for ranks in RANKS:
            asked_for = load(strategy)
            if not (asked_for.misfit(shape) or asked_for.why_not(shape, ranks)):
                assert why_not_cheapest(asked_for, shape, ranks) is None, (shape.name, ranks)


@pytest.mark.parametrize("strategy", places())
def test_what_is_settled_is_one_of_the_alternatives(strategy: str) -> None:
    """A strategy that writes out an option names all values that it might have had."""
    asked_for = load(strategy)
    for shape in SHAPES:
        if asked_for.why_not(shape, 6):
            continue
        settled = asked_for.settled(shape, 6)
        alternatives = asked_for.alternatives(shape, 6)
        assert settled in (alternatives or [asked_for]), shape.name
        assert [each.settled(shape, 6) for each in alternatives] == [*alternatives]


def dearest(strategy: USP, known: Known, ranks: int) -> USP:
    """The groups of most bytes in place of the fewest."""

    def sent(each: USP) -> float:
        return waited_bytes(each.traffic(known.workload, ranks))

    return max(strategy.alternatives(known.workload, ranks), key=sent)


def test_the_dearest_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring of all ranks where heads could be shared out: right numbers, twice the bytes."""
    monkeypatch.setattr(usp, "_cheapest", dearest)
    work = with_settings(find("axes-2d", "verify"), ["depth=1", "mode=forward"])
    words = why_not_cheapest(load("usp"), work, 4) or ""
    assert words.startswith("ulysses=1 was chosen, which costs ")
    assert " times as much as ulysses=4: " in words


def test_the_dearest_groups_across_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a strategy chooses that exchanges in the place of another is held as well."""
    monkeypatch.setattr(usp, "_cheapest", dearest)
    work = find("axes-2d", "verify")
    words = why_not_cheapest(load("megatron-sp:tp=2:across=usp"), work, 8)
    assert words is not None and words.startswith("ulysses=1 was chosen")


def test_the_dearest_exchange_among_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention over all axes joined goes by the exchange that sends most."""

    def dear(self: DSP, workload: Workload, ranks: int) -> DSP:
        if self.across != "auto":
            return self
        return replace(self, across="ring", inner="1")

    monkeypatch.setattr(DSP, "settled", dear)
    block = "[{attention: [time, space]}, {attention: time}, {mlp: 2}]"
    work = with_settings(find("axes-2d", "verify"), [f"block={block}", "depth=1", "mode=forward"])
    words = why_not_cheapest(load("dsp"), work, 4) or ""
    assert words.startswith("across=ring was chosen, which costs 2.00 times")


def test_a_plan_of_2_67_times_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers are right, and bytes as predicted from the plan; a fixed axis may be dear, too."""

    def restless(self: DSP, workload: Workload, ranks: int) -> tuple[str, ...]:
        plan = [next(iter(workload.axes))]
        for sublayer in workload.stack:
            axes = self.choices(sublayer, workload, ranks)
            plan.append(next((axis for axis in axes if axis != plan[-1]), plan[-1]))
        return tuple(plan[1:])

    round_trip = "{attention: space}, {mlp: 1}, {mlp: 1}, {attention: time}"
    block = f"[{round_trip}, {round_trip}, {{mlp: 1}}]"
    work = with_settings(find("axes-2d", "verify"), [f"block={block}", "depth=1"])
    monkeypatch.setattr(DSP, "layout", restless)
    words = why_not_cheapest(load("dsp"), work, 2) or ""
    assert "the layout that ran sends 2.67 times the bytes of the cheapest" in words
    block = "[{attention: space}, {attention: space}, {attention: time}]"
    monkeypatch.setattr(Ulysses, "layout", lambda *_: ("space",) * 6)
    words = (
        why_not_cheapest(
            load("ulysses"), with_settings(find("axes-2d", "verify"), [f"block={block}"]), 2
        )
        or ""
    )
    assert "the layout that ran sends 2.00 times the bytes" in words


@pytest.mark.parametrize(
    ("name", "ranks", "settings", "size"),
    [
        ("stacks", 2, [], "1"),
        ("stacks", 2, ["checkpointing=none"], "2"),
        ("causal", 4, ["mode=forward"], "1"),
        ("causal", 4, [], "4"),
    ],
)
def test_groups_by_the_bytes_of_a_whole_step(
    name: str, ranks: int, settings: list[str], size: str
) -> None:
    """What recomputation sends again counts, and backward where there is none does not."""
    work = with_settings(find(name, "verify"), settings)
    assert load("usp").settled(work, ranks) == load(f"usp:ulysses={size}")
