"""The first launch of a run stays in its folder, and later ones are held against it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.golden import Golden
from helpers.stored_rows import stored_latest

from spbench.results.hand_over import Sample
from spbench.results.record import Record
from spbench.results.store import Store
from spbench.sweep import first_launch
from spbench.sweep.first_launch import FOLDER, NOT_TOLD, compare_with_first, revised
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


def test_later_launches_are_compared_with_the_first(tmp_path: Path, golden: Golden) -> None:
    """Also in a run that is resumed, which has nothing but the folder."""
    assert compare_with_first(tmp_path, case(), samples()) is None
    same = compare_with_first(tmp_path, case("ulysses"), samples())
    assert same is not None and same.why_wrong is None
    assert same.columns == {"agreement_error": 0.0, "agreed_with": "dsp on 2 ranks"}
    wrong = compare_with_first(tmp_path, case("ring"), samples(OTHER))
    assert wrong is not None and wrong.why_wrong is not None
    golden(wrong.why_wrong, "with a third that agrees")
    own = compare_with_first(tmp_path, case("ulysses"), samples(OTHER))
    assert own is not None and own.is_of_launch
    golden(own.why_wrong, "a launch of its own")


def row(strategy: str, **more: Any) -> Record:
    known = {"run_id": "a run", "started_utc": "2030-01-01T00:00:00Z", "status": "ok"}
    return Record.of_case(case(strategy), **known | {"step_ms": 2.5} | more)


def launched(folder: Path, strategy: str, fingerprint: Any, **more: Any) -> dict[str, Record]:
    """The latest row of each strategy, after a launch that wrote one and those that follow."""
    of_sample = {name: more.pop(name) for name in ("agreed_with",) if name in more}
    compare_with_first(folder, case(strategy), samples(fingerprint, **of_sample))
    with Store(folder) as store:
        store.copy([row(strategy, **of_sample)])
        store.copy(revised(folder, case(strategy), stored_latest(folder)))
    return {each.strategy: each for each in stored_latest(folder)}


def statuses(rows: dict[str, Record]) -> dict[str, str]:
    return {name: each.status for name, each in rows.items()}


@pytest.mark.parametrize(("third", "right"), [(PRINT, "dsp"), (OTHER, "ulysses")])
def test_of_two_that_disagree_neither_counts_until_a_third_tells(
    tmp_path: Path, third: Any, right: str, golden: Golden
) -> None:
    """Whichever came first; what the right one measured counts again, with its figures."""
    assert statuses(launched(tmp_path, "dsp", PRINT)) == {"dsp": "ok"}
    two = launched(tmp_path, "ulysses", OTHER)
    assert statuses(two) == {"dsp": "wrong_result", "ulysses": "wrong_result"}
    assert [each.step_ms for each in two.values()] == [None, None]
    for one in ("dsp", "ulysses"):
        golden(two[one].reason, one)
        assert two[one].reason.endswith(f": {NOT_TOLD}")
    same = launched(tmp_path, "ulysses:padded", OTHER)  # a form of ulysses is no third strategy
    assert {each.status for each in same.values()} == {"wrong_result"}
    told = launched(tmp_path, "ring", third)
    wrong = {"dsp", "ulysses"} - {right}
    assert {name for name, each in told.items() if each.status == "ok"} >= {right, "ring"}
    assert told[right].step_ms == 2.5
    golden(told[right].agreed_with, "agreed with")
    for name in wrong:
        assert told[name].status == "wrong_result"
        golden(told[name].reason, f"{name} is wrong")


def test_one_device_tells(tmp_path: Path, golden: Golden) -> None:
    """A launch that it was compared with is right, however many others are not."""
    for strategy in ("dsp", "ulysses"):
        launched(tmp_path, strategy, OTHER)
    told = launched(tmp_path, "ring", PRINT, agreed_with="one device")
    assert statuses(told) == {"dsp": "wrong_result", "ulysses": "wrong_result", "ring": "ok"}
    golden(told["dsp"].reason)


def test_what_cannot_be_compared_is_not(tmp_path: Path) -> None:
    """Another seed or torch has other weights; one device has been asked; a share has none."""
    compare_with_first(tmp_path, case(), samples())
    assert compare_with_first(tmp_path, case(seed=1), samples(OTHER)) is None
    assert compare_with_first(tmp_path, case(), samples(OTHER, versions={"torch": "3"})) is None
    assert compare_with_first(tmp_path, case(), samples(OTHER, agreed_with="one device")) is None
    assert compare_with_first(tmp_path, case(), samples(None)) is None


def test_a_first_launch_of_other_code_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """A run that is resumed after a defect was mended begins anew."""
    compare_with_first(tmp_path, case(), samples(OTHER))
    monkeypatch.setattr(first_launch, "_code_of", lambda strategy: "mended")
    assert compare_with_first(tmp_path, case("rsa"), samples()) is None
    again = compare_with_first(tmp_path, case(), samples())
    assert again is not None
    golden(again.agreed_with)


def test_a_torn_file_is_written_anew(tmp_path: Path, golden: Golden) -> None:
    """Nothing fails, and the next launch is the first."""
    compare_with_first(tmp_path, case(), samples())
    (path,) = (tmp_path / FOLDER).iterdir()
    path.write_text(path.read_text()[:40])
    assert compare_with_first(tmp_path, case("rsa"), samples(OTHER)) is None
    again = compare_with_first(tmp_path, case(), samples(OTHER))
    assert again is not None
    golden(again.agreed_with)
