"""``spbench project`` as a user calls it: times with their kind, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from helpers.command_line import spbench
from helpers.golden import NOW, Golden

from spbench.projection.costmodel.cluster_file import find
from spbench.projection.costmodel.sensitivity import scaled
from spbench.projection.microbench.calibrate import write
from spbench.results.runs_csv import latest, read_runs

SMALL = ("project", "dsp-720m-small", "--cluster", "l20-pcie", "-s", "dsp,ulysses", "--set")
CASES = (*SMALL, "depth=1", "--gpus", "4,32")


def test_cases_have_an_interval_or_a_reason(tmp_path: Path, golden: Golden) -> None:
    """Every row says projected; the cluster's limit is a row with a reason."""
    done = spbench(tmp_path, *CASES, "--json", torch=True)
    assert done.code == 0, done.err
    golden(done.err, hide=NOW)
    rows = json.loads(done.out)
    assert {row["kind"] for row in rows} == {"projected"}
    ok = [row for row in rows if row["status"] == "ok"]
    assert [(row["strategy"], row["world_size"]) for row in ok] == [("dsp", 4), ("ulysses", 4)]
    assert all(row["step_ms_low"] < row["step_ms"] < row["step_ms_high"] for row in ok)
    reasons = {row["reason"] for row in rows if row["status"] == "skipped"}
    golden("\n".join(reasons), "reasons")
    printed = spbench(tmp_path, *CASES, "--csv", torch=True).out
    table = [*csv.DictReader(io.StringIO(printed))]
    assert [row["kind"] for row in table] == ["projected"] * 4
    # Kernels are counted, and what the host takes to launch them is timed: neither is a launch.
    assert not [name for name in table[0] if "launch" in name]
    assert {"kernels", "host_ms"} <= {*table[0]}


def test_rows_that_plot_and_compare_show(tmp_path: Path, golden: Golden) -> None:
    """Rows of kind projected on their cluster; the table says so, and gives no verdict."""
    done = spbench(tmp_path, *CASES, "--out", "here", torch=True)
    assert done.code == 0, done.err
    golden(done.err, hide=NOW)
    frame = read_runs(tmp_path / "here")
    assert frame.attrs["remarks"] == []
    assert set(frame["kind"]) == {"projected"}
    assert set(frame["cluster"]) == {"l20-pcie"}
    ok = frame[frame["status"] == "ok"]
    assert (ok["step_ms_low"] < ok["step_ms"]).all()
    assert (ok["step_ms"] < ok["step_ms_high"]).all()
    assert (ok["peak_allocated_bytes"] < ok["memory_limit_bytes"]).all()
    shown = spbench(tmp_path, "compare", "here")
    golden(shown.out, "compared")
    assert "fastest;" not in shown.out
    again = spbench(tmp_path, *CASES, "--out", "here", torch=True)
    assert again.code == 0
    assert len(latest(read_runs(tmp_path / "here"))) == len(frame)


def test_lengths_of_an_axis_are_rows_of_one_run(tmp_path: Path, golden: Golden) -> None:
    """A table for each length; a further length is added to the rows, and JSON and CSV name it."""
    asked = (*SMALL, "depth=1", "--gpus", "2", "--out", "here", "--axis")
    done = spbench(tmp_path, *asked, "space=64,128", torch=True)
    assert done.code == 0, done.err
    golden(done.out)
    assert spbench(tmp_path, *asked, "space=256", torch=True).code == 0
    words = (*SMALL, "depth=1", "--gpus", "2,32", "--axis", "space=64,128")
    rows = json.loads(spbench(tmp_path, *words, "--json", torch=True).out)
    printed = spbench(tmp_path, *words, "--csv", torch=True).out
    for each in (rows, list(csv.DictReader(io.StringIO(printed)))):
        known = [(row["axes"], row["strategy"], int(row["world_size"])) for row in each]
        assert known == [
            (f"time=8xspace={length}", name, count)
            for length in (64, 128)
            for count in (2, 32)
            for name in ("dsp", "ulysses")
        ]
    axes = list(read_runs(tmp_path / "here")["axes"])
    assert axes == [f"time=8xspace={n}" for n in (64, 64, 128, 128, 256, 256)]


def test_rows_of_a_copy_with_other_links_stay_apart(tmp_path: Path) -> None:
    """A cluster with half the rate is a copy of its file under another name."""
    for name, factor in (("lab", 1.0), ("lab-half", 0.5)):
        links = scaled(find("hgx-h100"), "rate", factor)
        write(links.model_copy(update={"name": name}), tmp_path / f"{name}.yaml")
        words = ("project", "dsp-720m-small", "--cluster", f"{name}.yaml", "-s", "dsp")
        done = spbench(tmp_path, *words, "--gpus", "2", "--out", "here", torch=True)
        assert done.code == 0, done.err
        assert f"on {name}" in done.out
    frame = latest(read_runs(tmp_path / "here"))
    assert sorted(frame["cluster"]) == ["lab", "lab-half"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name a workload, as in 'spbench project dsp-720m"),
        (("dsp-720m",), "name a cluster, as in 'spbench project dsp-720m"),
        (("dsp-720m", "--against", "run"), "--against names the workloads itself"),
        (("--against", "run", "-s", "dsp"), "--strategy cannot be given with --against"),
        (("--against", "run", "-g", "8"), "--gpus cannot be given with --against"),
        (("--against", "run", "--set", "batch=2"), "--set cannot be given with --against"),
        (("--against", "run", "--axis", "space=8"), "--axis cannot be given with --against"),
        (("--against", "run", "--compiled"), "--compiled cannot be given with --against"),
        (("--against", "run", "--kernel", "flash"), "--kernel cannot be given with --against"),
        (("--against", "run", "--csv"), "--csv cannot be given with --against"),
        (("--against", "run"), "name with --cluster what its machine was calibrated as"),
        (
            ("dsp-720m", "--cluster", "hgx-h100", "--gpus", "8", "--axis", "space"),
            "--axis space: write an axis and its lengths, as in space=1024,4096",
        ),
        (("dsp-720m", "--cluster", "hgx-h10", "--gpus", "8"), "Did you mean 'hgx-h100'?"),
    ],
)
def test_what_cannot_be_projected_is_refused(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    """One sentence, and exit code 2."""
    done = spbench(tmp_path, "project", *words, torch=True)
    assert done.code == 2
    assert message in done.err


def test_a_mesh_is_part_of_the_name(tmp_path: Path) -> None:
    """Each strategy in each mesh; rows have the mesh as those of a run do."""
    words = ("--set", "batch=2", "--gpus", "4", "--mesh", "dp=1", "--mesh", "dp=2,tp=2")
    done = spbench(tmp_path, *SMALL, "depth=1", *words, "--json", "--out", "here", torch=True)
    assert done.code == 0, done.err
    names = ["dsp", "ulysses", "dsp dp=2 tp=2", "ulysses dp=2 tp=2"]
    cases = json.loads(done.out)
    assert [case["strategy"] for case in cases] == names
    assert all(case["samples_per_s"] * case["step_ms"] == pytest.approx(2e3) for case in cases)
    rows = read_runs(tmp_path / "here")
    assert list(rows["strategy"]) == names
    sizes = [*zip(rows["sp_size"], rows["dp_size"], rows["mesh"], strict=True)]
    assert sizes[0] == sizes[1] == (4, 1, "")
    assert {(sp, dp) for sp, dp, _ in sizes[2:]} == {(2, 2)}
    assert all(mesh.startswith("dp=2 ") and mesh.endswith("=2") for _, _, mesh in sizes[2:])


def test_a_share_has_no_mesh(tmp_path: Path) -> None:
    done = spbench(tmp_path, *CASES, "--mesh", "dp=2", "--share", "results/some", torch=True)
    assert done.code == 2
    assert "leave out --mesh" in done.err


def test_a_pipeline_shows_its_bubble(tmp_path: Path) -> None:
    """In a column of its own, which a table without stages does not have."""
    words = (*SMALL, "depth=2", "--set", "batch=2", "--gpus", "4", "--mesh")
    staged, plain = (spbench(tmp_path, *words, mesh, torch=True).out for mesh in ("pp=2", "dp=2"))
    assert "bubble ms" in staged and "bubble" not in plain
