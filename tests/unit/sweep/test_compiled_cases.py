"""Compiled steps are cases of their own, refused where nothing can compile them."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

import pytest

from spbench.analysis.comparable import in_panels, matched
from spbench.errors import UNFIT, Failure
from spbench.results.record import Record, columns_of_case
from spbench.results.runs_csv import frame_of
from spbench.sweep import devices
from spbench.sweep.devices import refuse_compiling
from spbench.workload.case import Case
from spbench.workload.catalogue import find


def case(**more: Any) -> Case:
    given = {"strategy": "dsp", "ranks": 2, "device": "cpu"} | more
    return Case(workload=find("axes-2d", "verify"), **given)


def row(of: Case) -> Record:
    return Record.of_case(of, run_id="r", started_utc="2026-01-31T12:00:00Z", status="ok")


def test_a_compiled_case_is_another_one() -> None:
    """Its key differs, an eager one's is what it was, and neither is set against the other."""
    eager, compiled = case(), case(execution="compiled")
    assert eager.key != compiled.key
    assert Case.model_validate_json(compiled.model_dump_json(by_alias=True)) == compiled
    assert columns_of_case(eager)["execution"] == ""
    frames = [frame_of([row(one)]) for one in (eager, compiled)]
    assert [*matched(*frames)] == [(None, compiled.key), (eager.key, None)]
    panels = in_panels(frame_of([row(eager), row(compiled)]))
    assert panels["panel_number"].nunique() == 2
    assert "compiled" in panels["panel"].iloc[1] and "compiled" not in panels["panel"].iloc[0]


@pytest.mark.parametrize(
    ("missing", "more", "named"),
    [
        ("g++", {}, "C++ compiler"),
        ("triton", {"device": "cuda"}, "triton"),
        ("gcc clang", {"device": "cuda"}, "C compiler"),
        ("Python.h", {}, "Python's headers"),
        ("g++", {"device": "cuda", "kind": "one_gpu_share"}, "C++ compiler"),
    ],
)
def test_nothing_starts_where_nothing_compiles(
    missing: str, more: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The environment is unfit, the message names what is missing; eager cases are not refused."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    (tmp_path / "Python.h").touch()
    headers = tmp_path / "none" if missing == "Python.h" else tmp_path
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(headers))
    monkeypatch.setattr(devices, "which", lambda name: None if name in missing.split() else name)
    monkeypatch.setattr(devices, "find_spec", lambda name: None if name == missing else name)
    refuse_compiling([case(**more)])
    with pytest.raises(Failure) as refused:
        refuse_compiling([case(execution="compiled", **more)])
    assert refused.value.code == UNFIT
    assert named in str(refused.value)


def test_what_compiles_is_not_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    monkeypatch.setattr(devices, "which", lambda name: name)
    monkeypatch.setattr(devices, "find_spec", lambda name: name)
    refuse_compiling([case(execution="compiled"), case(device="cuda", execution="compiled")])
