"""Jobs and rank files between checkouts of different age: fields at their defaults are left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.golden import Golden

from spbench.results.hand_over import Sample
from spbench.workload.case import QUICK, Case, GateCheck, Job, MeasurementBudget
from spbench.workload.catalogue import find
from spbench.workload.config_names import names
from spbench.workload.workload import Workload


def job(workload: Workload, **more: Any) -> Job:
    case = Case(workload=workload, strategy="dsp", ranks=2, device="cpu", **more)
    return Job(ranks=2, device="cpu", case=case, timeout_s=7.0)


@pytest.mark.parametrize("kind", ["workloads", "verify"])
def test_every_job_comes_back(tmp_path: Path, kind: str) -> None:
    """A job survives job.json and a joined group, with its aliases."""
    for name in names(kind):
        for effort in (MeasurementBudget(), QUICK, MeasurementBudget(silent=False, precision=0.5)):
            sent = job(find(name, kind), effort=effort, launch=2)
            sent.write(tmp_path)
            assert Job.read(tmp_path) == sent
            assert Job.model_validate_json(sent.model_dump_json(by_alias=True)) == sent
            bare = sent.model_dump_json(by_alias=True, exclude_defaults=True)
            assert Job.model_validate_json(bare) == sent


def test_checks_come_back(tmp_path: Path) -> None:
    """Gate checks survive job.json, with and without a sharpness of their own."""
    work = find("axes-2d", "verify")
    checks = [GateCheck(workload=work, strategy="dsp", sharpness=s) for s in (1.0, 8.0)]
    sent = Job(ranks=3, device="cpu", checks=checks, environment={"A": "1"})
    sent.write(tmp_path)
    assert Job.read(tmp_path) == sent


def test_defaults_are_not_sent(tmp_path: Path) -> None:
    """An older checkout reads a job with newer fields as long as they are at their defaults."""
    job(find("dsp-720m-small")).write(tmp_path)
    written = json.loads((tmp_path / "job.json").read_text())
    assert written.keys() == {"ranks", "device", "case", "timeout_s"}
    assert written["case"].keys() == {"workload", "strategy", "ranks", "device"}
    job(find("dsp-720m-small"), effort=MeasurementBudget(silent=False)).write(tmp_path)
    assert json.loads((tmp_path / "job.json").read_text())["case"]["effort"] == {"silent": False}


def test_a_new_field_of_effort_does_not_change_a_case() -> None:
    """The measurement budget is not part of a case's key."""
    work = find("dsp-720m-small")
    efforts = (MeasurementBudget(), MeasurementBudget(silent=False, precision=0.1), QUICK)
    keys = {made.case.key for e in efforts if (made := job(work, effort=e)).case}
    assert keys == {"09d76186bb34e554"}


def test_a_rank_file_of_another_checkout_is_read() -> None:
    """Unknown fields of a rank file are ignored; missing fields count as not measured."""
    text = json.dumps({"rank": 1, "status": "ok", "step_ms": [1.0], "mood": "good"})
    sample = Sample.model_validate_json(text)
    assert (sample.rank, sample.step_ms, sample.stopped_by) == (1, [1.0], "")
    assert (sample.conditions, sample.collectives, sample.steps_s) == (None, None, None)


def test_a_mesh_makes_another_case(tmp_path: Path, golden: Golden) -> None:
    """It is in the key, the label and the job; without one a case is what it was."""
    plain, meshed = (job(find("dsp-720m"), **more).case for more in ({}, {"mesh": {"cfg": 2}}))
    assert plain is not None and meshed is not None
    assert plain.key != meshed.key and (plain.workload_key == meshed.workload_key)
    assert plain.label == "dsp on 2"
    golden(meshed.label)
    assert job(find("dsp-720m"), mesh={"cfg": 1}).case == plain
    job(find("dsp-720m")).write(tmp_path)
    assert "mesh" not in (tmp_path / "job.json").read_text()
    check = GateCheck(workload=find("dsp-720m"), strategy="rsa", mesh=meshed.mesh)
    text = check.model_dump_json(by_alias=True)
    assert GateCheck.model_validate_json(text).name == "rsa cfg=2"
