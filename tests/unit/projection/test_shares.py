"""Measured shares in projections: which cases they stand for, and what they do to an interval."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.golden import Golden

from spbench.errors import Failure
from spbench.projection.advise.project import (
    Projection,
    Shares,
    project,
    read_shares,
    which_are_measured,
)
from spbench.projection.advise.projected_rows import row_of
from spbench.projection.costmodel.cluster_file import find as find_cluster
from spbench.projection.costmodel.step_time import Mode
from spbench.projection.dryrun.rank_work import works
from spbench.results.record import Record
from spbench.results.store import Store
from spbench.workload.case import Case, Device
from spbench.workload.catalogue import find, with_settings
from spbench.workload.workload import Workload

CLUSTER = find_cluster("l20-pcie")
WORKLOAD = find("dsp-720m-small").model_copy(update={"depth": 1})
LAUNCHES_MS = (100.0, 121.0)


def run(folder: Path, device: Device = "cuda", noisy_ms: float | None = None) -> Path:
    """A run with two launches of the share of dsp on 4 ranks, and a noisy one."""
    case = Case(workload=WORKLOAD, strategy="dsp", ranks=4, device=device, kind="one_gpu_share")
    known = {"run_id": "r", "started_utc": "2026-01-01T00:00:00Z", "status": "ok"}
    times = [*LAUNCHES_MS, *([] if noisy_ms is None else [noisy_ms])]
    with Store(folder) as store:
        for launch, ms in enumerate(times):
            noisy = "others used 1 core" if ms == noisy_ms else ""
            of_launch = case.model_copy(update={"launch": launch})
            store.copy([Record.of_case(of_launch, compute_ms=ms, noisy=noisy, **known)])
    return folder


def projected(
    shares: Shares, strategies: str = "dsp", workload: Workload = WORKLOAD
) -> list[Projection]:
    return list(project(workload, CLUSTER, strategies.split(), [4], Mode(), works(), shares))


def test_quiet_launches_are_the_computation_of_their_case(tmp_path: Path) -> None:
    """The noisy launch does not count; spread is the scatter of launches."""
    shares = read_shares(run(tmp_path, noisy_ms=900.0), CLUSTER)
    (share,) = [shares.of(WORKLOAD, "dsp", 4)]
    assert share is not None
    assert share.value == pytest.approx(0.11)
    assert 1.2 < share.factor < 1.4
    assert shares.of(WORKLOAD.model_copy(update={"name": "other"}), "dsp", 4) == share
    for other in ({"dtype": "float16"}, {"mode": "forward"}, {"batch": 2}):
        assert shares.of(WORKLOAD.model_copy(update=other), "dsp", 4) is None
    assert shares.of(WORKLOAD, "dsp", 2) is None
    assert shares.of(WORKLOAD, "ulysses", 4) is None


def test_a_share_takes_the_place_of_modelled_terms(tmp_path: Path, golden: Golden) -> None:
    """What is left beside it is what messages expose, as modelled; the interval is narrower."""
    (plain,), (measured,) = projected(Shares()), projected(read_shares(run(tmp_path), CLUSTER))
    assert plain.cost is not None
    assert measured.cost is not None
    exposed = {t: s for t, s in measured.cost.terms.items() if t.endswith(" exposed")}
    assert exposed == {t: s for t, s in plain.cost.terms.items() if t.endswith(" exposed")}
    assert measured.cost.terms["share"] == pytest.approx(0.11)
    assert measured.cost.terms["gemm"] == measured.cost.terms["host"] == 0
    assert 0.11 < measured.cost.step_s <= 1.0001 * (0.11 + sum(exposed.values()))
    widths = [c.high_s / c.low_s for c in (measured.cost, plain.cost)]
    assert widths[0] < widths[1]
    assert (plain.data["compute"], measured.data["compute"]) == ("modelled", "measured share")
    facts = {"run_id": "r", "started_utc": ""}
    row = row_of(measured, Mode(), **facts)
    assert row.kind == "projected"
    golden(row.cluster)
    assert row.compute_ms == pytest.approx(110)


def test_what_has_no_share_is_named_with_what_measures_it(tmp_path: Path, golden: Golden) -> None:
    shares = read_shares(run(tmp_path), CLUSTER)
    asked = ["-w", "dsp-720m-small"]
    some = projected(shares, "dsp ulysses")
    golden(which_are_measured(some, shares, asked), "one has none")
    golden(which_are_measured(some[:1], shares, asked), "all have one")
    with pytest.raises(Failure) as refused:
        which_are_measured(some[1:], shares, asked)
    golden(refused.value, "none has one")


def test_each_length_without_a_share_has_a_command_of_its_own(
    tmp_path: Path, golden: Golden
) -> None:
    shares = read_shares(run(tmp_path), CLUSTER)
    longer = [with_settings(WORKLOAD, [f"axes.space={length}"]) for length in (48, 96)]
    cases = projected(shares, "dsp")
    for each in longer:
        cases += projected(shares, "dsp", each)
    said = which_are_measured(cases, shares, ["-w", WORKLOAD.name], "space")
    golden(said)


def test_a_share_of_another_kind_of_device_is_refused(tmp_path: Path, golden: Golden) -> None:
    with pytest.raises(Failure) as refused:
        read_shares(run(tmp_path, device="cpu"), CLUSTER)
    golden(refused.value)
