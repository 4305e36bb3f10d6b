"""The first launch of a run stays in its folder, and later ones are held against it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spbench.results.sample import Sample
from spbench.sweep import first_launch
from spbench.sweep.first_launch import FOLDER, compare_with_first
from spbench.workload.case import Case
from spbench.workload.catalogue import find

PRINT = {
    "output": [8.0, 4.0, 1.0, -2.0, 3.0, 0.5],
    "gradient of x": [2.0, 1.0, 1.0, -1.0, 0.0, 1.0],
}
OTHER = PRINT | {"gradient of x": [2.0, 1.0, -1.0, -1.0, 0.0, 1.0]}


def case(strategy: str = "dsp", **more: Any) -> Case:
    fields = {"workload": find("axes-2d", "verify"), "strategy": strategy, "ranks": 2}
    return Case.model_validate(fields | {"device": "cpu"} | more)


def samples(fingerprint: Any = PRINT, **more: Any) -> list[Sample]:
    known = {"status": "ok", "versions": {"torch": "2"}, "device_name": "cpu"}
    first = Sample.model_validate(known | {"rank": 0, "fingerprint": fingerprint} | more)
    return [Sample(rank=1, status="ok"), first]


def test_later_launches_are_compared_with_the_first(tmp_path: Path) -> None:
    """Also in a run that is resumed, which has nothing but the folder."""
    assert compare_with_first(tmp_path, case(), samples()) is None
    same = compare_with_first(tmp_path, case("ulysses"), samples())
    assert same is not None and same.why_wrong is None
    assert same.columns == {"agreement_error": 0.0, "agreed_with": "dsp on 2 ranks"}
    wrong = compare_with_first(tmp_path, case("ulysses"), samples(OTHER))
    assert wrong is not None and wrong.why_wrong is not None
    assert wrong.why_wrong.startswith("gradient of x in the first step differs from that of dsp")


def test_what_cannot_be_compared_is_not(tmp_path: Path) -> None:
    """Another seed or torch has other weights; one device has been asked; a share has none."""
    compare_with_first(tmp_path, case(), samples())
    assert compare_with_first(tmp_path, case(seed=1), samples(OTHER)) is None
    assert compare_with_first(tmp_path, case(), samples(OTHER, versions={"torch": "3"})) is None
    assert compare_with_first(tmp_path, case(), samples(OTHER, agreed_with="one device")) is None
    assert compare_with_first(tmp_path, case(), samples(None)) is None


def test_a_first_launch_of_other_code_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is resumed after a defect was mended begins anew."""
    compare_with_first(tmp_path, case(), samples(OTHER))
    monkeypatch.setattr(first_launch, "_code_of", lambda strategy: "mended")
    assert compare_with_first(tmp_path, case("rsa"), samples()) is None
    again = compare_with_first(tmp_path, case(), samples())
    assert again is not None and again.agreed_with == "rsa on 2 ranks"


def test_a_torn_file_is_written_anew(tmp_path: Path) -> None:
    """Nothing fails, and the next launch is the first."""
    compare_with_first(tmp_path, case(), samples())
    (path,) = (tmp_path / FOLDER).iterdir()
    path.write_text(path.read_text()[:40])
    assert compare_with_first(tmp_path, case("rsa"), samples(OTHER)) is None
    again = compare_with_first(tmp_path, case(), samples(OTHER))
    assert again is not None and again.agreed_with == "rsa on 2 ranks"
