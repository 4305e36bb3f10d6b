"""``spbench list``: the columns that are shown where not all fit."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from helpers import example_rows
from helpers.terminal import STYLED, Terminal

from spbench.cli import list_command
from spbench.report import tables
from spbench.results.store import Store
from spbench.strategies import registry
from spbench.strategies.registry import expand_names
from spbench.sweep.run_folder import as_in_run_json
from spbench.text import counted
from spbench.workload.case import Case, Cell
from spbench.workload.catalogue import find
from spbench.workload.config_names import names
from spbench.workload.sweeps import load_sweep


def listed(monkeypatch: pytest.MonkeyPatch, what: str, columns: int) -> str:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    monkeypatch.setattr(list_command, "console", lambda: tables.console(stream))
    list_command.list_command.main([what], standalone_mode=False)
    return STYLED.sub("", stream.getvalue())


@pytest.mark.parametrize(("columns", "shown"), [(80, 5), (100, 5), (120, 6), (160, 8)])
def test_the_list_of_workloads_fits(
    monkeypatch: pytest.MonkeyPatch, columns: int, shown: int
) -> None:
    """Axes, tokens, parameters and activation stay, none is cut; operations and dtype go first."""
    text = listed(monkeypatch, "workloads", columns)
    assert max(map(len, text.splitlines())) <= columns
    assert len(re.split(r" {2,}", text.splitlines()[2].strip())) == shown
    assert all(f" {name} " in text for name in names())
    assert "…" not in text
    for row in ("dsp-720m", "open-sora-1.2-480p"):
        (line,) = [one for one in text.splitlines() if one.split()[:1] == [row]]
        work = find(row)
        for value in (*work.axes, *map(str, work.axes.values()), f"{work.tokens:,}"):
            assert value in line.split()


def test_which_packages_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A word in each row whose package, or something that it needs, is not; on any terminal."""

    def distribution(name: str) -> str:
        if name not in ("torch", "xfuser", "yunchang"):
            raise PackageNotFoundError(name)
        return name

    monkeypatch.setattr(registry, "distribution", distribution)
    found = {row["strategy"]: row["installed"] for row in list_command.rows_of("strategies")}
    there = {"torch-cp", "torch-kv-gather", "yunchang-ulysses", "yunchang-ring", "yunchang-usp"}
    assert {name for name in registry.VENDORS if found[name]} == there
    assert all(found[name] for name in registry.BUILT_IN)
    for columns in (80, 120):
        text = listed(monkeypatch, "strategies", columns)
        assert max(map(len, text.splitlines())) <= columns
        assert "…" not in text
        for name, is_there in found.items():
            assert is_there != bool(re.search(rf"^ *{name} .*not installed", text, re.M))


def test_tokens_are_those_of_a_step() -> None:
    """They count the whole batch, as the activation bytes and the operations do."""
    (bert,) = (row for row in list_command.rows_of("workloads") if row["workload"] == "bert-base")
    assert (bert["batch"], bert["tokens"]) == (64, 64 * 512)


def test_a_small_activation_is_in_kib() -> None:
    """Below a tenth of a MiB the unit is named; others are bare figures."""
    shown = [list_command._shown("activation_bytes", count) for count in (2**15, 2**20, 2**30)]
    assert shown == ["32 KiB", "1", "1,024"]


def test_one_is_not_several() -> None:
    """A count agrees with its noun."""
    assert [counted(n, "rank") for n in (0, 1, 2, 1024)] == [
        "0 ranks",
        "1 rank",
        "2 ranks",
        "1,024 ranks",
    ]


def test_as_data_workloads_are_whole() -> None:
    """--json has the fields that the table has no room for, each by itself."""
    for row in list_command.rows_of("workloads"):
        work = find(row["workload"])
        for name in ("hidden", "heads", "text", "batch", "dtype", "source"):
            assert row[name] == getattr(work, name)
        assert row["depth"] == work.blocks


def test_the_list_of_sweeps_keeps_its_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 columns have room for workloads, ranks and cells."""
    text = listed(monkeypatch, "sweeps", 80)
    assert max(map(len, text.splitlines())) <= 80
    assert text.splitlines()[1].split() == ["sweep", "workloads", "gpus", "cells"]
    for name in names("sweeps"):
        (line,) = [one for one in text.splitlines() if one.split()[:1] == [name]]
        assert line.split()[-1] == str(len(load_sweep(name, expand_names).combinations))


def test_the_list_of_clusters_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that ``recommend -c`` takes by name; sources break between words, and none is cut."""
    text = listed(monkeypatch, "clusters", 80)
    assert max(map(len, text.splitlines())) <= 80
    assert {row.split(" ")[1] for row in text.splitlines()[3:] if row} >= set(names("clusters"))
    assert "..." not in text and "PCIe alone" in text
    devices = {row["cluster"]: row["device"] for row in list_command.rows_of("clusters")}
    assert devices["l20-pcie"] == "L20-48GB"


def test_a_run_keeps_its_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first row says it, also of a launch that was measured again, and 80 columns show it."""
    monkeypatch.chdir(tmp_path)
    name = "20261123-115139-dsp-720m-small"
    with Store(tmp_path / "results" / name) as store:
        store.append(example_rows.row(status="crash", started_utc="2026-11-23T11:51:39Z"))
        store.append(example_rows.row(launch=1, started_utc="2026-11-23T12:00:00Z"))
        store.append(example_rows.row(started_utc="2026-11-24T08:00:00Z"))
    (known,) = list_command.rows_of("runs")
    assert (known["started"], known["ok"], known["other"]) == ("2026-11-23T11:51:39Z", 2, 0)
    text = listed(monkeypatch, "runs", 80)
    assert re.search(rf" {name} .* 2/2 .* 2026-11-23 11:51\b", text)


def test_a_run_that_is_incomplete_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Launches of run.json count, also where runs.csv is missing, empty or has a header alone;
    runs are in the order of their starts, whatever was touched last."""
    monkeypatch.chdir(tmp_path)
    case = Case(workload=find("axes-2d", "verify"), strategy="dsp", ranks=2, device="cpu")
    for name, started in (("late", "2026-11-24T08:00:00Z"), ("early", "2026-11-23T08:00:00Z")):
        with Store(tmp_path / "results" / name) as store:
            kept = [case.model_copy(update={"launch": launch}) for launch in range(4)]
            facts = [as_in_run_json(Cell(case=each, why_not=None)) for each in kept]
            store.write_run({"argv": ["spbench", "run"], "cases": facts})
            for launch, status in enumerate(("ok", "interrupted")):
                more = {"case": case.key, "launch": launch, "status": status}
                store.append(example_rows.row(**more, started_utc=started))
    for name, text in (("no-file", None), ("empty", ""), ("header", "run_id,case\n")):
        folder = tmp_path / "results" / name
        folder.mkdir()
        (folder / "run.json").write_bytes((tmp_path / "results/late/run.json").read_bytes())
        if text is not None:
            (folder / "runs.csv").write_text(text)
    rows = [
        (row["run"], row["ok"], row["other"], row["launches"])
        for row in list_command.rows_of("runs")
    ]
    assert sorted(rows[:3]) == [("empty", 0, 0, 4), ("header", 0, 0, 4), ("no-file", 0, 0, 4)]
    assert rows[3:] == [("early", 1, 1, 4), ("late", 1, 1, 4)]
    text = listed(monkeypatch, "runs", 100)
    assert re.search(r" no-file +axes-2d +0/4 ", text) and re.search(r" late .* 1/4 ", text)
