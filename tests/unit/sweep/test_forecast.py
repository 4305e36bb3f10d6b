"""What a run will take is said before it starts, from counted operations and a machine's rate."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
from helpers.command_line import ROOT, spbench
from helpers.golden import Golden

from spbench.results.run_json import read_run
from spbench.sweep.devices import Machines, estimated, forecast, memory_needed
from spbench.workload.case import QUICK, Case, Cell
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


def a_case(name: str, strategy: str = "dsp", ranks: int = 2, **more: object) -> Case:
    case = Case(workload=find(name), strategy=strategy, ranks=ranks, device="cpu")
    return case.model_copy(update=more)


def said(cases: list[Case], machines: Machines = LAPTOP, limit_s: float = 600.0) -> list[str]:
    seconds = {case.key: machines.launch_s(case) for case in cases}
    known = {key: taken_s for key, taken_s in seconds.items() if taken_s is not None}
    return estimated(cases, known, machines, limit_s)


@pytest.mark.parametrize(
    ("name", "settings", "strategy", "ranks", "launch_s"),
    [
        ("dsp-720m-small", [], "dsp", 2, 21.1),
        ("dsp-720m-small", [], "rsa", 2, 16.1),
        ("dsp-720m-small", ["axes.time=32"], "megatron-sp", 2, 63.6),
        ("bert-base-small", ["batch=64"], "rsa", 2, 13.6),
        ("latte-1-small", [], "ulysses", 4, 14.7),
        ("evoformer-pair-small", [], "dsp", 2, 15.8),
        ("gpt-7b-small", [], "rsa", 8, 16.6),
    ],
)
def test_estimates_are_near_what_two_busy_cores_did(
    name: str, settings: list[str], strategy: str, ranks: int, launch_s: float
) -> None:
    """Seconds as they were measured with other work on the same cores."""
    work = with_settings(find(name), settings)
    found_s = LAPTOP.launch_s(a_case(name, strategy, ranks, workload=work))
    assert found_s is not None
    assert 0.7 < launch_s / found_s < 3.0


def test_estimates_are_near_what_one_h200_did() -> None:
    """All full launches that are kept of it: one rank's share of 4 to 64 of dsp-720m."""
    described = {case["key"]: case for case in read_run(ARCHIVE)["cases"]}
    with (ARCHIVE / "runs.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["status"] == "ok"]
    assert len(rows) >= 10
    for row in rows:
        fields = {k: v for k, v in described[row["case"]].items() if k not in ("key", "why_not")}
        found_s = H200.launch_s(Case.model_validate(fields))
        assert found_s is not None
        assert 0.7 < float(row["launch_s"]) / found_s < 3.0


def test_a_small_run_is_announced_in_one_line() -> None:
    """What it will take; nothing else, since nothing will go wrong."""
    (line,) = said([a_case("dsp-720m-small", "rsa")] * 3)
    assert line.startswith("estimated: about ")


def test_a_papers_sweep_on_a_laptop_is_warned_of(golden: Golden) -> None:
    """Launches end at --timeout; more ranks than cores have an advice."""
    golden("\n".join(said([a_case("dsp-3b", "rsa", n) for n in (2, 8, 32)])), "the paper's")
    golden("\n".join(said([a_case("dsp-720m-small", "rsa", 4)])), "a small form")


def test_memory_is_the_counted_one(golden: Golden) -> None:
    """All ranks of a CPU with their processes, which share its memory; one rank of a GPU."""
    case = a_case("dsp-3b", "rsa")
    on_cpu = memory_needed({case.key: 3 * GIB}, [case], LAPTOP)
    golden(on_cpu)
    on_gpu = a_case("dsp-3b", "rsa", device="cuda")
    there = memory_needed({on_gpu.key: 3 * GIB}, [on_gpu], H200)
    golden(there, "second")
    assert memory_needed({}, [case], LAPTOP) == ""


def test_ranks_that_share_cores_take_longer_than_their_part() -> None:
    """Half the cores make it four times as long: they also wait for each other."""
    four = Machines(cores=4, memory_bytes=8 * GIB, core_flops_per_s=150e9)
    case = a_case("dsp-720m-small", ranks=4)
    alone_s, crowded_s = four.step_s(case), LAPTOP.step_s(case)
    assert alone_s and crowded_s == pytest.approx(4 * alone_s)


def test_what_is_not_known_is_not_guessed(golden: Golden) -> None:
    """A GPU without a data sheet, and cells that cannot run."""
    unknown = Machines(cores=2, memory_bytes=GIB, core_flops_per_s=1e9, gpus=[{"name": "X"}])
    (line,) = said([a_case("dsp-720m", device="cuda")], unknown)
    golden(line)
    nothing = forecast([Cell(case=a_case("bert-base"), why_not="no axis")], 1, math.inf)
    assert (nothing.launch_s, nothing.sentences, nothing.machines) == ({}, [], None)


def test_a_quick_launch_is_estimated_shorter() -> None:
    """Warm-up and timed steps are those of the measurement budget."""
    full_s, quick_s = (
        LAPTOP.launch_s(a_case("dsp-720m-small", **budget)) or 0.0
        for budget in ({}, {"budget": QUICK})
    )
    assert quick_s < 0.9 * full_s


def test_a_dry_run_lists_cases_with_launches(tmp_path: Path, golden: Golden) -> None:
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
    golden(done.out.splitlines()[-1], hide={r"\d[\d.]*": "N"})
    assert done.out.count("peak MiB") == 1
    rows = json.loads(spbench(tmp_path, *words, "--dry-run", "--json", torch=True).out)
    assert len(rows) == 14
    assert all(row["estimated_launch_s"] > 1 for row in rows)
    assert all(sum(row["peak_bytes"].values()) > 1e6 for row in rows)
    assert not [name for name in rows[0] if name.endswith("_bytes") and "estimated" in name]
