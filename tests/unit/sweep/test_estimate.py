"""What a run will take is said before it starts: by formula, near what was measured."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
from helpers.command_line import ROOT, spbench

from spbench.report import units
from spbench.results.run_json import read_run
from spbench.strategies.describe import predictions
from spbench.sweep import estimate
from spbench.sweep.devices import Machines
from spbench.sweep.estimate import Foreseen, announcement, counted_sentences, estimates, foreseen
from spbench.workload.case import QUICK, Case, Cell, MeasurementBudget
from spbench.workload.catalogue import find, with_settings

GIB = 2**30
LAPTOP = Machines(cores=2, memory_bytes=8 * GIB, core_flops_per_s=150e9)
H200 = Machines(
    cores=16,
    memory_bytes=100 * GIB,
    core_flops_per_s=150e9,
    gpus=[{"name": "NVIDIA H200", "memory_bytes": 140 * GIB}],
)
ARCHIVE = ROOT / "results" / "archive" / "20261122-h200"


def cell(name: str, strategy: str = "dsp", ranks: int = 2, **more: object) -> Cell:
    case = Case(workload=find(name), strategy=strategy, ranks=ranks, device="cpu")
    return Cell(case=case.model_copy(update=more), why_not=None)


def said(cells: list[Cell], machines: Machines = LAPTOP, limit_s: float = 600.0) -> list[str]:
    return announcement(cells, estimates(cells, predictions(cells), machines), machines, limit_s)


@pytest.mark.parametrize(
    ("name", "settings", "strategy", "ranks", "launch_s", "peak_mib"),
    [
        ("dsp-720m-small", [], "dsp", 2, 21.1, 112),
        ("dsp-720m-small", [], "rsa", 2, 16.1, 114),
        ("dsp-720m-small", ["axes.time=32"], "megatron-sp", 2, 63.6, 428),
        ("bert-base-small", ["batch=64"], "rsa", 2, 13.6, 122),
        ("latte-1-small", [], "ulysses", 4, 14.7, 29),
        ("evoformer-pair-small", [], "dsp", 2, 15.8, 24),
        ("gpt-7b-small", [], "rsa", 8, 16.6, 16),
    ],
)
def test_estimates_are_near_what_two_busy_cores_did(
    name: str, settings: list[str], strategy: str, ranks: int, launch_s: float, peak_mib: float
) -> None:
    """Seconds and peaks as they were measured with other work on the same cores."""
    work = with_settings(find(name), settings)
    (found,) = _estimated([cell(name, strategy, ranks, workload=work)], LAPTOP)
    assert found.launch_s is not None
    assert 0.7 < launch_s / found.launch_s < 3.0
    assert 0.7 < peak_mib * 2**20 / found.rank_bytes < 1.4


def test_estimates_are_near_what_one_h200_did() -> None:
    """All full launches that are kept of it: one rank's share of 4 to 64 of dsp-720m."""
    described = {case["key"]: case for case in read_run(ARCHIVE)["cases"]}
    with (ARCHIVE / "runs.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["status"] == "ok"]
    compared = 0
    for row in rows:
        fields = {k: v for k, v in described[row["case"]].items() if k not in ("key", "why_not")}
        (found,) = _estimated([Cell(case=Case.model_validate(fields), why_not=None)], H200)
        assert found.launch_s is not None
        assert 0.7 < float(row["launch_s"]) / found.launch_s < 3.0
        assert 0.7 < float(row["peak_allocated_bytes"]) / found.rank_bytes < 1.4
        compared += 1
    assert compared >= 10


def _estimated(cells: list[Cell], machines: Machines) -> list[estimate.Estimate]:
    return list(estimates(cells, predictions(cells), machines).values())


def test_a_small_run_is_announced_in_one_line() -> None:
    """Time, memory, what there is, and how far off tries were."""
    (line,) = said([cell("dsp-720m-small", "rsa")] * 3)
    assert line.startswith("estimated: about ")
    assert " of memory for all ranks, of 8 GiB. Tries took 0.7 to 3 times as long" in line


def test_a_papers_sweep_on_a_laptop_is_warned_of() -> None:
    """Too long for a launch, too large for the machine, more ranks than cores: what to do."""
    first, late, tight, remedy, crowded = said([cell("dsp-3b", "rsa", n) for n in (2, 8, 32)])
    ended = "estimated: about 30 min, since --timeout ends 3 launches after 10 min each (about "
    assert first.startswith(ended)
    assert " d without it); up to " in first
    assert late.startswith("warning: 3 launches will hardly be done within --timeout, which is 10")
    largest = "the largest being rsa on 32 of dsp-3b"
    assert tight == f"warning: 3 launches will hardly fit into memory, {largest}"
    assert "--sweep NAME --small" in remedy
    assert crowded == (
        "warning: 2 launches on 8, 32 ranks, more than 2 cores: ranks wait for each other, and "
        "times say little; --gpus 1,2 leaves them out"
    )


def test_what_all_take_is_what_the_launches_take() -> None:
    """Launches that end at --timeout are told of beside what they would take without it."""
    cells = [cell("dsp-3b", "rsa")] * 2
    (found,) = _estimated(cells[:1], LAPTOP)
    assert found.launch_s is not None
    whole = units.roughly(estimate.LOAD_S + 2 * found.launch_s)
    (first, *_), (in_time, *others) = said(cells, limit_s=60.0), said(cells, limit_s=math.inf)
    assert "about 2.1 min, since --timeout ends 2 launches after 60 s each" in first
    assert f"each (about {whole} without it); up to" in first
    assert in_time.startswith(f"estimated: about {whole}; up to ")
    assert not [line for line in others if "--timeout" in line]


def test_counted_memory_takes_the_place_of_the_formulas() -> None:
    """With what a process takes besides, and without the scatter of estimates."""
    cells = [cell("dsp-3b", "rsa")]
    peaks = {cells[0].case.key: 3 * GIB}
    known = estimates(cells, predictions(cells), LAPTOP)
    first, *_ = announcement(cells, known, LAPTOP, 600.0, peaks)
    assert "; up to 6.59 GiB of memory for all ranks, of 8 GiB. Tries took 0.7 to 3 times" in first
    assert not first.endswith("the memory")
    before = Foreseen(predictions={}, estimates=known, sentences=[], machines=LAPTOP)
    assert counted_sentences(before, cells, 600.0, peaks)[0] == first
    unknown = Foreseen(predictions={}, estimates={}, sentences=["as it was"])
    assert counted_sentences(unknown, cells, 600.0, peaks) == ["as it was"]


def test_ranks_that_share_cores_are_advised_fewer() -> None:
    """Where all of them do, no number of ranks is left that would go without the others."""
    *_, crowded = said([cell("dsp-720m-small", "rsa", 4)])
    assert crowded.endswith("--gpus 1,2 gives each a core")


def test_small_forms_are_not_advised_where_they_are_too_large() -> None:
    """A launch of a small form that will be late is told of shorter axes, also with settings."""
    long = with_settings(find("dsp-3b-small"), ["axes.time=8"])
    for work in (long, long.model_copy(update={"name": "dsp-3b-small batch=1"})):
        *_, remedy = said([cell("dsp-3b-small", workload=work)], limit_s=1.0)
        assert "--small" not in remedy and "shorter axes or a smaller batch" in remedy
    full = [cell("dsp-3b-small", workload=long), cell("dsp-3b", "rsa", 2)]
    assert any("--sweep NAME --small" in line for line in said(full, limit_s=1.0))


def test_ranks_that_share_cores_take_longer_than_their_part() -> None:
    """Half the cores make it four times as long: they also wait for each other."""
    four = Machines(cores=4, memory_bytes=8 * GIB, core_flops_per_s=150e9)
    case = cell("dsp-720m-small", ranks=4).case
    alone_s, crowded_s = (estimate._compute_s(case, 1e12, each) for each in (four, LAPTOP))
    assert alone_s and crowded_s == pytest.approx(4 * alone_s)


def test_what_is_not_known_is_not_guessed() -> None:
    """A GPU without a data sheet, and cells that cannot run."""
    unknown = Machines(cores=2, memory_bytes=GIB, core_flops_per_s=1e9, gpus=[{"name": "X"}])
    (line,) = said([cell("dsp-720m", device="cuda")], unknown)
    assert line.startswith("estimated: time not known, since this GPU's rate is not; up to ")
    assert "on a GPU. Tries" in line
    none = foreseen([Cell(case=cell("bert-base").case, why_not="no axis")], 1, math.inf)
    assert (none.predictions, none.estimates, none.sentences) == ({}, {}, [])


def test_a_quick_launch_is_estimated_shorter() -> None:
    """Warm-up and timed steps are those of the measurement budget."""
    full, quick = (
        _estimated([cell("dsp-720m-small", budget=budget)], LAPTOP)[0].launch_s or 0.0
        for budget in (MeasurementBudget(), QUICK)
    )
    assert quick < 0.9 * full


def test_a_dry_run_lists_cases_with_launches(tmp_path: Path) -> None:
    """One line a case, with launches and time; --json has the figures of each launch. Each case
    has one memory, the counted one."""
    words = ["run", "-w", "earthformer-small", "-s", "dsp,rsa", "-g", "2", "--launches", "7"]
    done = spbench(tmp_path, *words, "--dry-run", torch=True)
    assert (done.code, done.err) == (0, "")
    cases, _ = done.out.split("a step on the busiest rank")
    head, *lines = [line.split() for line in cases.splitlines() if "MiB" in line or " 2  " in line]
    assert head[:3] == ["strategy", "ranks", "launches"] and head[-2:] == ["a", "launch"]
    assert [line[:3] for line in lines] == [["dsp", "2", "7"], ["rsa", "2", "7"]]
    assert "\nestimated: about " in done.out
    assert "memory MiB" not in done.out
    assert done.out.count("peak MiB") == 1
    assert "the memory" not in done.out
    rows = json.loads(spbench(tmp_path, *words, "--dry-run", "--json", torch=True).out)
    assert len(rows) == 14
    assert all(row["estimated_launch_s"] > 1 for row in rows)
    assert all(sum(row["peak_bytes"].values()) > 1e6 for row in rows)
    assert not [name for name in rows[0] if name.endswith("_bytes") and "estimated" in name]
