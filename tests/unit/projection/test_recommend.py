"""Advice: the fastest that fits, what is not told apart, what would decide, and what is weighed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from helpers.golden import Golden

from spbench.errors import Failure
from spbench.projection.advise.candidates import candidates, variants
from spbench.projection.advise.measurements import Measurement
from spbench.projection.advise.project import Projection
from spbench.projection.advise.published import comparison, comparison_text, share_of_wins
from spbench.projection.advise.recommend import (
    Recommendation,
    answer,
    as_data,
    how_sure,
    recommend,
    remarks,
    rivals,
    show_advice,
)
from spbench.projection.advise.search import Searched
from spbench.projection.costmodel.cluster_file import find as find_cluster
from spbench.projection.costmodel.constants import Constant
from spbench.projection.costmodel.hardware import Cluster, OnRanks
from spbench.projection.costmodel.sensitivity import scaled, slowed
from spbench.projection.costmodel.step_time import Mode, cost
from spbench.projection.dryrun.work import Kernel, Memory, Message, Work
from spbench.results.record import SURE
from spbench.strategies.registry import load, places
from spbench.workload.catalogue import find
from spbench.workload.traffic import Op

CLUSTER = find_cluster("hgx-h100")
WORKLOAD = find("flux.1-dev-small")


def done(gflops: float, sent: Mapping[Op, int], held_gb: float = 1.0) -> Work:
    """A step of one product, and messages of these bytes."""
    kernel = Kernel(
        kind="gemm",
        phase="forward",
        shape=(1, 4096, 4096, 4096),
        flops=round(gflops * 1e9),
        moved_bytes=10**6,
    )
    messages = {
        Message(op=op, phase="forward", axis="sequence", sent_bytes=count): 1
        for op, count in sent.items()
    }
    held = Memory(
        parameters=round(held_gb * 1e9), gradients=0, optimizer=0, activations=0, temporaries=0
    )
    return Work(
        mesh=(("sequence", 8),),
        dtype="bfloat16",
        kernels={kernel: 1},
        messages=messages,
        memory=held,
    )


def advised(
    works: Mapping[str, Work],
    why_nots: Mapping[str, str] | None = None,
    cluster: Cluster = CLUSTER,
    *,
    launches_differ: bool = False,
) -> Recommendation:
    projected = [
        Projection(
            workload=WORKLOAD,
            cluster=cluster,
            strategy=name,
            ranks=8,
            work=work,
            cost=cost(work, cluster, launches_of=name if launches_differ else ""),
        )
        for name, work in works.items()
    ]
    projected += [
        Projection(workload=WORKLOAD, cluster=cluster, strategy=name, ranks=8, why_not=why)
        for name, why in (why_nots or {}).items()
    ]
    return recommend(projected, cluster, Mode())


SENDS_MUCH = done(1e4, {"all_gather": 10**9})
COMPUTES_MUCH = done(1.2e4, {"all_gather": 10**7})


def test_the_fastest_wins_and_the_answer_says_by_how_much(golden: Golden) -> None:
    advice = advised({"a": done(1e5, {}), "b": done(1e4, {}), "c": done(4e4, {})}, {"d": "7 heads"})
    assert advice.best.strategy == "b"
    assert [each.strategy for each in advice.others] == ["c", "a"]
    assert advice.ratio is not None and 3 < advice.ratio < 5
    assert (advice.sure, advice.alike) == (1.0, [])
    golden("\n".join([answer(advice), *how_sure(advice)]), "the answer")
    golden("\n".join(remarks(advice, [])), "remarks")


def test_a_rate_that_all_share_is_off_for_all_alike() -> None:
    """Products that differ by 5 % are told apart, though their rate is known to 25 % alone."""
    advice = advised({"a": done(1.00e5, {}), "b": done(1.05e5, {})})
    assert (advice.sure, advice.alike) == (1.0, [])


ON_CPU = CLUSTER.model_copy(
    update={"device": CLUSTER.device.model_copy(update={"kind": "cpu"}), "link": "memory"}
)


@pytest.mark.parametrize(
    ("cluster", "gflops", "is_apart"),
    [
        (CLUSTER, 1.2e5, False),
        (CLUSTER, 1.4e5, True),
        (find_cluster("l20-pcie"), 1.1e5, False),
        (find_cluster("l20-pcie"), 1.25e5, True),
        (ON_CPU, 1.05e5, False),
        (ON_CPU, 1.2e5, True),
    ],
)
def test_a_strategy_is_off_by_itself(cluster: Cluster, gflops: float, is_apart: bool) -> None:
    """On GPUs as far as published ratios of such machines are, on a CPU as launches of equal work
    differ: what does nearly the same is not told apart."""
    works = {"a": done(1e5, {}), "b": done(gflops, {})}
    advice = advised(works, cluster=cluster, launches_differ=True)
    assert (advice.alike == []) == is_apart
    assert 0.5 < advice.sure < 1
    assert advice.ratio_low is not None and advice.ratio is not None
    assert advice.ratio_low < advice.ratio < (advice.ratio_high or 0.0)


def test_variants_of_a_strategy_share_half_of_what_it_is_off_by() -> None:
    """What is not told apart of two strategies is told apart of two forms of one."""
    for names, is_apart in (
        (("a", "b"), False),
        (("a:n=2", "a:n=4"), True),
        (("a", "a tp=2"), True),
    ):
        works = dict(zip(names, (done(1e5, {}), done(1.25e5, {})), strict=True))
        assert (advised(works, launches_differ=True).alike == []) == is_apart, names


def test_a_winner_is_named_that_wins_against_all_others_together() -> None:
    """Each of eight loses in nine of ten draws, and one of them wins in more than every tenth: not
    told apart are the fewest with which the best holds the fastest in nine of ten."""
    works = {"a": done(1e5, {})} | {f"b{n}": done(1.45e5 + n, {}) for n in range(8)}
    advice = advised(works, launches_differ=True)
    best, rest = advice.best, advice.others
    assert all(share_of_wins(best, [case]) >= SURE for case in rest)
    assert share_of_wins(best, rest) == advice.sure < SURE
    fastest = np.argmin([case.took.draws for case in (best, *rest)], axis=0)
    wins = np.bincount(fastest, minlength=9) / len(fastest)
    alike = [place for place, case in enumerate(rest, 1) if case.strategy in advice.alike]
    assert 0 < len(alike) < len(rest)
    assert wins[[0, *alike]].sum() >= SURE > wins[[0, *alike]].sum() - min(wins[alike])
    assert min(wins[alike]) >= max(np.delete(wins, [0, *alike]))
    assert answer(advice).startswith("no strategy is shown to be the fastest")


@pytest.mark.parametrize(
    ("cluster", "ranks"),
    [("l20-pcie", 8), ("hgx-h100", 8), ("hgx-h100", 16), ("nvl72-gb200", 64), ("mi300x", 8)],
)
def test_the_answer_says_what_its_choice_cost_on_such_machines(
    cluster: str, ranks: int, golden: Golden
) -> None:
    """Or that no published comparison covers them: links of another kind, or more GPUs."""
    case = advised({"a": done(1e5, {})}, cluster=find_cluster(cluster)).best
    case = replace(case, ranks=ranks)
    golden(comparison_text(case), f"{cluster} {ranks}")
    known = comparison(case)
    assert known is not None
    assert known["is_covered"] == (ranks == 8 and cluster != "mi300x")
    assert known["is_covered"] == ("mean_regret" in known)


def test_what_no_published_scatter_is_in_has_no_such_sentence() -> None:
    """Neither ranks on CPUs nor measured shares."""
    assert comparison_text(advised({"a": done(1e5, {})}, cluster=ON_CPU).best) == ""
    share = Constant(value=1.0, source="a share", kind="measured")
    assert comparison(replace(advised({"a": done(1e5, {})}).best, share=share)) is None


def test_where_a_gpu_waits_for_its_host_the_answer_says_so(golden: Golden) -> None:
    """A launch of a microsecond of work takes the host several."""
    kernel, _ = next(iter(done(1e-3, {}).kernels.items()))
    waits = replace(done(1e-3, {}), kernels={replace(kernel, shape=(1, 8, 8, 8)): 1000})
    golden("\n".join(remarks(advised({"a": waits}), [])), "eager")
    golden("\n".join(remarks(advised({"a": waits}), ["--compiled"])), "compiled")
    for cluster, work in ((ON_CPU, waits), (CLUSTER, SENDS_MUCH)):
        assert "host decides" not in " ".join(remarks(advised({"a": work}, cluster=cluster), []))


def test_what_hinges_on_an_unsure_rate_is_not_told_apart(golden: Golden) -> None:
    advice = advised({"sends": SENDS_MUCH, "computes": COMPUTES_MUCH})
    assert len(advice.alike) == 1
    golden("\n".join([answer(advice), *how_sure(advice)]))
    asked = ["-w", "my-model.yaml", "--set", "mode=forward"]
    *_, decides = remarks(advice, asked)
    golden(decides, "second")
    assert "--device" not in decides  # that of the cluster, not of the machine that answers


LINK = Measurement(
    constant="nvlink.all_gather.gb_per_s",
    what="an all-gather of 64 MB over 8 ranks",
    op="all_gather",
    ranks=8,
    mb=64.0,
    unit="GB/s",
    column="busbw",
    assumed=300.0,
    thresholds=[200.0],
    winners=["a", "b"],
    chance=0.5,
    chance_known=0.8,
    spreads_away=1.0,
    command="all_gather_perf -b 64M -e 64M -g 8",
)


def test_all_that_may_be_as_fast_are_shown_and_those_that_win_at_other_rates_decide(
    capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    names = "abcdefghijkl"
    works = {name: done(1e5 + place, {}) for place, name in enumerate(names)}
    advice = advised({**works, "slow": done(1e6, {})}, launches_differ=True)
    winners = ["l", advice.best.strategy, "slow", "k"]
    telling = replace(LINK, thresholds=[100.0, 200.0, 400.0], winners=winners)
    advice = replace(advice, measurements=[telling, replace(LINK, winners=["b", "l"])])
    best = advice.best.strategy
    assert {best, *advice.alike} == set(names)
    nearest = dict.fromkeys([best, advice.alike[0], "l", "k", "b"])
    assert list(rivals(advice, 4)) == [*nearest][:4]
    show_advice(advice, [])
    shown = capsys.readouterr().out
    assert all(f" {name}  " in shown for name in names)
    told = [line for line in shown.splitlines() if "left out" in line or "decide" in line]
    golden("\n".join(told))


def test_what_does_not_fit_is_named_and_not_recommended(golden: Golden) -> None:
    advice = advised({"large": done(1e4, {}, held_gb=79), "small": done(1e5, {}, held_gb=9)})
    assert advice.best.strategy == "small"
    assert [each.strategy for each in advice.too_large] == ["large"]
    with pytest.raises(Failure) as refused:
        advised({"large": done(1e4, {}, held_gb=79)})
    golden(refused.value)


def test_all_that_do_not_fit_are_named(golden: Golden) -> None:
    """The slower ones too, so that the only one left is not called the only one that can run."""
    held = {"large": done(2e5, {}, held_gb=79), "larger": done(3e5, {}, held_gb=90)}
    advice = advised(held | {"small": done(1e5, {}, held_gb=9)})
    assert [each.strategy for each in advice.too_large] == ["large", "larger"]
    golden(answer(advice))
    said = [line for line in remarks(advice, []) if "does not fit" in line]
    golden("\n".join(said), "second")


def test_without_any_that_can_run_it_says_why() -> None:
    with pytest.raises(Failure, match="d: 7 heads"):
        advised({}, {"d": "7 heads"})


def test_options_that_do_the_same_are_weighed_once(golden: Golden) -> None:
    advice = advised({"a": SENDS_MUCH, "b": SENDS_MUCH})
    assert advice.others == []
    golden(answer(advice))
    golden("\n".join(remarks(advice, [])), "second")
    assert as_data(advice, [])["same_work"] == {"a": ["b"]}


def test_of_equal_work_that_which_fits_is_kept() -> None:
    advice = advised({"large": done(1e5, {}, held_gb=79), "small": done(1e5, {}, held_gb=9)})
    assert advice.best.strategy == "small"
    assert [each.strategy for each in advice.too_large] == ["large"]


def test_data_is_finite_and_complete(golden: Golden) -> None:
    advice = advised({"sends": SENDS_MUCH, "computes": COMPUTES_MUCH})
    data = as_data(advice, ["-w", "w"])
    assert data["kind"] == "projected"
    assert {each["strategy"] for each in data["projected"]} == {"sends", "computes"}
    assert all(math.isfinite(each["step_s"]) for each in data["projected"])
    *_, decides = remarks(advice, ["-w", "w"])
    assert decides.endswith(f": {data['decides']}")
    golden(decides)


def test_no_run_decides_what_is_not_open() -> None:
    is_clear = advised({"a": done(1e5, {}), "b": done(1e4, {})})
    assert as_data(is_clear, ["-w", "w"])["decides"] is None


@pytest.mark.parametrize("what", ["rate", "latency", "compute", "launch"])
@pytest.mark.parametrize("has_parts", [False, True])
def test_a_scaled_cluster_differs_in_one_kind_of_constant(what: str, has_parts: bool) -> None:
    work = done(1e4, {"all_to_all": 10**8})
    own = OnRanks(ranks=8, device=CLUSTER.device, levels=CLUSTER.levels)
    cluster = CLUSTER.model_copy(update={"on_ranks": (own,)}) if has_parts else CLUSTER
    plain, more = (cost(work, scaled(cluster, what, factor)).terms for factor in (1.0, 2.0))
    changed = {name for name in plain if not math.isclose(plain[name], more[name])}
    expected = {
        "rate": {"all_to_all sequence exposed"},
        "latency": {"all_to_all sequence exposed"},
        "compute": {"gemm"},
        "launch": {"host"},
    }
    assert changed == expected[what]


@pytest.mark.parametrize(("link", "sent"), [("memory", 2**0.8), ("network", 1.0)])
def test_slow_processors_carry_what_a_machine_sends_itself(
    link: Literal["memory", "network"], sent: float
) -> None:
    """Not by as much as products; and a wire takes as long as ever."""
    work = done(1e4, {"all_to_all": 10**8})
    cluster = CLUSTER.model_copy(update={"link": link})
    plain, slow = (cost(work, slowed(cluster, factor)).terms for factor in (1.0, 2.0))
    ratios = {name: slow[name] / seconds for name, seconds in plain.items() if seconds}
    expected = {"gemm": 2.0, "host": 2**0.8, "all_to_all sequence exposed": sent}
    assert ratios == pytest.approx(expected)


def names_of(found: Sequence[str]) -> set[str]:
    return {each.partition(":")[0] for each in found}


def test_each_size_of_groups_is_weighed() -> None:
    workload = find("flux.1-dev")
    found = candidates(list(places()), workload, 8)
    assert names_of(found) == set(places())
    meshes = {
        tuple(n for _, n in load(name).on(workload, 8).mesh.axes) for name in found if _runs(name)
    }
    assert {(4, 2), (2, 4)} <= meshes
    assert list(variants(next(iter(places())), workload, 7)) == []  # 7 has no other divisors


def _runs(name: str) -> bool:
    strategy, workload = load(name), find("flux.1-dev")
    return not (strategy.misfit(workload) or strategy.why_not(workload, 8))


def test_what_keeps_every_strategy_from_running_is_said_once(golden: Golden) -> None:
    """As where a cluster has too few ranks for any of them."""
    with pytest.raises(Failure) as refused:
        advised({}, {"dsp": "here has 4 ranks", "rsa": "here has 4 ranks"})
    golden(refused.value)
    with pytest.raises(Failure) as refused:
        advised({}, {"dsp": "3 heads", "rsa": "2 rows"})
    golden(refused.value, "second")


LONG = "usp:ulysses=8:across=attention-2d dp=2 cfg=2 pp=2 tp=2"
SEARCHED = Searched(
    workload=WORKLOAD,
    ranks=8,
    projected=[],
    too_large=0,
    least_bytes=1.0,
    slower=0,
    at_least=1.0,
    axes_apart=[],
)


@pytest.mark.parametrize("searched", [None, SEARCHED])
@pytest.mark.parametrize(
    "works",
    [
        {LONG: done(1e4, {}), "b": done(2e4, {})},
        {LONG: SENDS_MUCH, f"{LONG} again": COMPUTES_MUCH},
        {LONG: SENDS_MUCH},
        {LONG: SENDS_MUCH, "b": SENDS_MUCH, "c": SENDS_MUCH},
        {LONG: SENDS_MUCH, "b": done(2e5, {}, held_gb=79)},
        {LONG: SENDS_MUCH, "b": SENDS_MUCH, "c": done(2e5, {}, held_gb=79)},
    ],
)
def test_the_first_sentence_has_35_words_at_most(
    works: Mapping[str, Work], searched: Searched | None
) -> None:
    """With all axes around a strategy, and settings that make the workload's name long."""
    long = WORKLOAD.model_copy(
        update={"name": "my-own-model heads=8 hidden=64 " + "block=[a, b, c] " * 9, "mode": "train"}
    )
    advice = advised(works)
    advice = replace(advice, best=replace(advice.best, workload=long), searched=searched)
    assert LONG in answer(advice)
    assert len(answer(advice).split()) <= 35, answer(advice)
    assert "\n" not in answer(advice)
