"""What a strategy chooses itself, its layout and its options, sends as few bytes as any other way.

A dear choice leaves every number right, and bytes as predicted from it: only the check of plans
sees it (``helpers/plan_check.py``). Each test of a defect plants one.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.examples import ALL
from helpers.golden import Golden
from helpers.plan_check import why_not_cheapest
from helpers.variants import variants

from spbench.strategies.base import Plan
from spbench.strategies.dsp import DSP
from spbench.strategies.registry import load, places
from spbench.strategies.ulysses import Ulysses
from spbench.strategies.usp import USP, USPPlan
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
            if not (asked_for.misfit(shape) or asked_for.unfit(shape, ranks)):
                assert why_not_cheapest(asked_for, shape, ranks) is None, (shape.name, ranks)


@pytest.mark.parametrize("strategy", places())
def test_what_is_chosen_is_one_of_the_alternatives(strategy: str) -> None:
    """A strategy that writes out an option names all values that it might have had."""
    asked_for = load(strategy)
    for shape in SHAPES:
        if asked_for.unfit(shape, 6):
            continue
        chosen = asked_for.on(shape, 6).strategy
        alternatives = [plan.strategy for plan in asked_for.alternatives(shape, 6)]
        assert chosen in alternatives, shape.name
        assert [each.on(shape, 6).strategy for each in alternatives] == alternatives


@pytest.mark.parametrize("across", ["ring", "kv-gather", "attention-2d"])
def test_no_groups_cost_less_than_their_bound(across: str) -> None:
    """Sizes of groups are left out by it, so that a bound too high would hide the cheapest."""
    asked_for = load(f"usp:across={across}")
    fitting = [shape for shape in SHAPES if asked_for.declines(shape, 6) is None]
    plans = [plan for shape in fitting for plan in asked_for.alternatives(shape, 6)]
    assert len(plans) > len(fitting) > 5
    for plan in plans:
        assert isinstance(plan, USPPlan)
        assert plan.least_cost <= plan.cost, (plan.workload.name, plan.size)


@pytest.fixture
def dearest(monkeypatch: pytest.MonkeyPatch) -> None:
    """USP has groups of the most bytes in place of the fewest."""
    right = USP.on

    def wrong(self: USP, workload: Workload, ranks: int) -> Plan:
        if self.ulysses != "auto":
            return right(self, workload, ranks)
        plans = self.alternatives(workload, ranks)
        return max(plans, key=lambda plan: waited_bytes(plan.traffic))

    monkeypatch.setattr(USP, "on", wrong)


@pytest.mark.usefixtures("dearest")
def test_the_dearest_groups(golden: Golden) -> None:
    """A ring of all ranks where heads could be shared out: right numbers, twice the bytes."""
    work = with_settings(find("axes-2d", "verify"), ["depth=1", "mode=forward"])
    golden(why_not_cheapest(load("usp"), work, 4))


@pytest.mark.usefixtures("dearest")
def test_the_dearest_groups_across_others(golden: Golden) -> None:
    """What a strategy chooses that exchanges in the place of another is held as well."""
    work = find("axes-2d", "verify")
    golden(why_not_cheapest(load("megatron-sp:tp=2:across=usp"), work, 8))


def test_the_dearest_exchange_among_switches(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Attention over all axes joined goes by the exchange that sends most."""
    right = DSP.on

    def dear(self: DSP, workload: Workload, ranks: int) -> Plan:
        return right(replace(self, across="ring", inner="1"), workload, ranks)

    monkeypatch.setattr(DSP, "on", dear)
    block = "[{attention: [time, space]}, {attention: time}, {mlp: 2}]"
    work = with_settings(find("axes-2d", "verify"), [f"block={block}", "depth=1", "mode=forward"])
    golden(why_not_cheapest(load("dsp"), work, 4))


def test_a_plan_of_2_67_times_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers are right, and bytes as predicted from the plan."""
    right = DSP.on

    def restless(self: DSP, workload: Workload, ranks: int) -> Plan:
        plan = right(self, workload, ranks)
        layout = [next(iter(workload.axes))]
        for sublayer in workload.stack:
            axes = plan.choices(sublayer)
            layout.append(next((axis for axis in axes if axis != layout[-1]), layout[-1]))
        return replace(plan, layout=tuple(layout[1:]))

    round_trip = "{attention: space}, {mlp: 1}, {mlp: 1}, {attention: time}"
    block = f"[{round_trip}, {round_trip}, {{mlp: 1}}]"
    work = with_settings(find("axes-2d", "verify"), [f"block={block}", "depth=1"])
    monkeypatch.setattr(DSP, "on", restless)
    words = why_not_cheapest(load("dsp"), work, 2) or ""
    assert "2.67 times" in words


def test_the_dearer_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fixed axis may be dear, too."""
    right = Ulysses.on

    def along_space(self: Ulysses, workload: Workload, ranks: int) -> Plan:
        return replace(right(self, workload, ranks), layout=("space",) * len(workload.stack))

    monkeypatch.setattr(Ulysses, "on", along_space)
    block = "[{attention: space}, {attention: space}, {attention: time}]"
    work = with_settings(find("axes-2d", "verify"), [f"block={block}"])
    words = why_not_cheapest(load("ulysses"), work, 2) or ""
    assert "axis space" in words and "2.00 times" in words


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
    assert load("usp").on(work, ranks).strategy == load(f"usp:ulysses={size}")
