"""Captured steps are cases of their own, refused in words where nothing can capture them."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.in_process import inside

from spbench.analysis.comparable import in_panels
from spbench.errors import UNFIT, USAGE, Failure
from spbench.results.record import Record, columns_of_case
from spbench.results.runs_csv import frame_of
from spbench.sweep.devices import refuse_capturing
from spbench.sweep.plan import declined
from spbench.workload.case import Case
from spbench.workload.catalogue import find, with_settings


def case(**more: Any) -> Case:
    given = {"strategy": "dsp", "ranks": 2, "device": "cuda", "execution": "graph"} | more
    return Case(**({"workload": find("axes-2d", "verify")} | given))


def test_a_captured_case_is_another_one() -> None:
    """Its key, its row and its panel differ from those of the eager and of the compiled case."""
    cases = [case(execution=how) for how in ("eager", "compiled", "graph")]
    assert len({one.key for one in cases}) == 3
    assert [columns_of_case(one)["execution"] for one in cases] == ["", "compiled", "graph"]
    told = {"run_id": "r", "started_utc": "2026-01-31T12:00:00Z", "status": "ok"}
    frame = frame_of([Record.of_case(one, **told) for one in cases])
    assert in_panels(frame)["panel_number"].nunique() == 3


def test_a_cpu_has_no_graphs() -> None:
    """The message says what works there; eager and compiled cases are none of its business."""
    with pytest.raises(Failure, match="use --compiled here, or a machine with a GPU") as refused:
        refuse_capturing([case(device="cpu")])
    assert refused.value.code == UNFIT
    refuse_capturing(
        [case(), *(case(device="cpu", execution=how) for how in ("eager", "compiled"))]
    )


def test_a_share_has_no_graphs() -> None:
    """Nothing is sent there."""
    with pytest.raises(Failure, match="leave out --share"):
        refuse_capturing([case(kind="one_gpu_share")])


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        ((), UNFIT, "--graph captures a step on a GPU"),
        (("--dry-run",), UNFIT, "--graph captures a step on a GPU"),
        (("--compiled",), USAGE, "a row has one"),
    ],
)
def test_nothing_starts(more: tuple[str, ...], code: int, said: str) -> None:
    """Before any rank, by the command itself."""
    words = ["run", "-s", "dsp", "-g", "2", "-w", "dsp-720m-small", "--device", "cpu", "--graph"]
    done = inside(*words, *more)
    assert (done.code, done.out) == (code, "")
    assert said in done.err


def test_a_package_that_sends_by_itself_is_declined() -> None:
    """Its transfers are counted by a witness, to which a replay shows nothing."""
    work = with_settings(find("attention-alone", "verify"), ["dtype=float32"])
    assert declined(case(strategy="torch-cp", workload=work, execution="eager")) is None
    why_not = declined(case(strategy="torch-cp", workload=work))
    assert why_not is not None and "nobody counts" in why_not
    assert declined(case(workload=find("axes-2d", "verify"))) is None
