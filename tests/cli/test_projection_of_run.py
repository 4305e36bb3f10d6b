"""``spbench project --against RUN``: measured steps beside their projection to a cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.command_line import spbench
from helpers.golden import Golden

from spbench.errors import USAGE
from spbench.projection.advise.own_run import Compared, beside, judged, measured
from spbench.projection.costmodel.cluster_file import find as find_cluster
from spbench.projection.costmodel.hardware import Cluster, OnRanks
from spbench.report import projection_table
from spbench.results.record import Record
from spbench.results.store import Store
from spbench.workload.case import Case, Device
from spbench.workload.catalogue import find, with_settings

WORKLOAD = with_settings(find("dsp-720m-small"), ["depth=1"])
STRATEGIES = ("dsp", "ulysses", "kv-gather")


def kept(
    folder: Path, *, described: bool = True, device: Device = "cuda", speed: float | None = None
) -> Path:
    """A run with a noisy and two quiet launches of three strategies on two ranks."""
    cases = [Case(workload=WORKLOAD, strategy=name, ranks=2, device=device) for name in STRATEGIES]
    with Store(folder) as store:
        entries = [
            {"key": each.key, "why_not": None, **each.model_dump(mode="json", by_alias=True)}
            for each in cases
        ]
        store.write_run({"argv": ["spbench", "run"], "cases": entries if described else []})
        for factor, case in enumerate(cases, start=1):
            for launch, (step_ms, noisy) in enumerate([(500.0, "others"), (10.0, ""), (40.0, "")]):
                known = {"run_id": "run", "started_utc": "now", "status": "ok", "noisy": noisy}
                row = Record.of_case(case, **known, step_ms=factor * step_ms, cpu_gflop_per_s=speed)
                store.append(replace(row, launch=launch))
    return folder


def test_a_case_is_the_mean_of_its_quiet_launches(tmp_path: Path) -> None:
    found = measured(kept(tmp_path / "run"))
    assert {each.case.strategy: each.measured_s for each in found} == pytest.approx(
        {"dsp": 0.02, "ulysses": 0.04, "kv-gather": 0.06}
    )
    assert not any(each.is_noisy for each in found)


def test_each_case_is_beside_its_projection(tmp_path: Path, golden: Golden) -> None:
    kept(tmp_path / "run")
    words = ("project", "--against", "run", "--cluster", "l20-pcie")
    done = spbench(tmp_path, *words, "--json", torch=True)
    assert done.code == 0, done.err
    data = json.loads(done.out)
    assert [row["strategy"] for row in data["cases"]] == sorted(STRATEGIES)
    for row in data["cases"]:
        assert row["error"] == pytest.approx(row["projected_ms"] / row["measured_ms"] - 1)
    assert data["cases_judged"] == 3
    assert data["worst_error"] == max(abs(row["error"]) for row in data["cases"])
    assert data["by_ranks"]["2"]["pairs_apart"] == data["pairs_apart"] == 3
    shown = spbench(tmp_path, *words, torch=True)
    golden(shown.out)


def test_a_run_on_another_kind_of_device_is_refused(tmp_path: Path, golden: Golden) -> None:
    kept(tmp_path / "run", device="cpu")
    done = spbench(tmp_path, "project", "--against", "run", "--cluster", "l20-pcie", torch=True)
    assert done.code == USAGE
    golden(done.err)


def test_a_run_without_a_cluster_is_refused(tmp_path: Path, golden: Golden) -> None:
    """Whatever machine measured it, its cluster has to be named."""
    kept(tmp_path / "run")
    done = spbench(tmp_path, "project", "--against", "run")
    assert (done.code, done.out) == (USAGE, "")
    golden(done.err)


def test_coverage_is_of_the_cases_that_are_modelled(tmp_path: Path, golden: Golden) -> None:
    """A case on a CPU among those on GPUs is not modelled, and the sentence counts it apart."""
    found = measured(kept(tmp_path / "run"))
    on_cpu = found[0].case.model_copy(update={"device": "cpu"})
    cases = beside([replace(found[0], case=on_cpu), *found[1:]], find_cluster("l20-pcie"))
    assert "cpu" in (cases[0].why_not or "")
    total = judged(cases)
    assert (total["cases_judged"], total["cases_modelled"]) == (3, 2)
    golden(projection_table._errors(total))


def test_pairs_that_are_close_are_not_judged(tmp_path: Path) -> None:
    """From 100, 110 and 200 ms two pairs are apart, of which the reverse order has none right; it
    chooses 200 ms. On one rank there is no choice."""
    projected = beside(measured(kept(tmp_path / "run")), find_cluster("l20-pcie"))
    projected.sort(key=lambda each: each.projected.step_s if each.projected else 0.0)
    times_s = (0.2, 0.11, 0.1)
    reversed_order: list[Compared] = [
        replace(each, measured_s=seconds) for each, seconds in zip(projected, times_s, strict=True)
    ]
    total = judged(reversed_order)
    assert (total["pairs_apart"], total["pairs_in_order"]) == (2, 0.0)
    assert total["mean_regret"] == total["worst_regret"] == pytest.approx(1.0)
    assert "at worst 100.0 %" in projection_table._errors(total)
    alone = [
        replace(each, case=each.case.model_copy(update={"ranks": 1})) for each in reversed_order
    ]
    assert judged(alone)["mean_regret"] is None


def test_what_all_strategies_are_off_by_is_no_error_of_their_ratios(tmp_path: Path) -> None:
    projected = beside(measured(kept(tmp_path / "run")), find_cluster("l20-pcie"))
    off_by = (1.5, 1.5, 1.5 * 1.331)
    scaled = [
        replace(each, measured_s=each.projected.step_s * factor)
        for each, factor in zip(projected, off_by, strict=True)
        if each.projected is not None
    ]
    total = judged(scaled)
    assert total["bias"] == pytest.approx(1 / 1.5 - 1)
    assert total["median_error_of_ratios"] == pytest.approx(0.1)
    assert total["worst_error_of_ratios"] == pytest.approx(1 - 1 / 1.21)
    alone = judged(scaled[:1])
    assert alone["worst_error_of_ratios"] is None


def calibrated(speed: float | None, ranks: int = 2) -> Cluster:
    """A cluster of CPUs with this speed; its kernels are a GPU's, which is not what is asked."""
    cluster = find_cluster("l20-pcie")
    device = cluster.device.model_copy(update={"kind": "cpu", "cpu_gflop_per_s": speed})
    timed = OnRanks(ranks=ranks, device=device, levels=cluster.levels)
    return cluster.model_copy(update={"device": device, "on_ranks": (timed,)})


def test_a_slower_processor_is_projected_as_one(tmp_path: Path) -> None:
    """At half of the speed products and attention take twice as long, the host by the power 0.8 of
    that, messages over links no longer, and what of them nothing hides is less."""
    found = measured(kept(tmp_path / "run", device="cpu", speed=50.0))
    clusters = [calibrated(50.0), calibrated(100.0), calibrated(None), calibrated(100.0, ranks=3)]
    plain, slower, unknown, other_threads = (beside(found, each) for each in clusters)
    for as_it_was, twice, *same in zip(plain, slower, unknown, other_threads, strict=True):
        assert as_it_was.projected and twice.projected
        assert (as_it_was.slower, twice.slower) == pytest.approx((1, 2))
        before, after = as_it_was.projected.terms, twice.projected.terms
        for term, times in (("gemm", 2), ("attention", 2), ("host", 2**0.8)):
            assert after[term] == pytest.approx(times * before[term], rel=0.05)  # or the least
        links = [term for term in before if term.endswith(" exposed")]
        # Slower products hide more of them.
        assert links and all(after[term] <= before[term] for term in links)
        assert [each.slower for each in same] == [1.0, 1.0]


def test_a_run_that_describes_no_cases_is_refused(tmp_path: Path, golden: Golden) -> None:
    kept(tmp_path / "run", described=False)
    done = spbench(tmp_path, "project", "--against", "run", "--cluster", "l20-pcie", torch=True)
    assert done.code != 0
    golden(done.err)
